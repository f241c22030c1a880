"""Py4J's converters ask whether there is NumPy, and import nothing for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

CODE = """
import sys
from streamwarden.spark import quick_py4j
quick_py4j.install()
quick_py4j.install()
import numpy as np
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter
for converter, values in ((NumpyScalarConverter(), (np.int64(3), 3)), (NumpyArrayConverter(), (np.zeros(2), [0]))):
    assert [converter.can_convert(value) for value in values] == [True, False]
assert not {"pandas", "unittest"} & set(sys.modules), "something else of PySpark or ours imports it"
from pyspark.testing import assertDataFrameEqual
from pyspark.testing.utils import have_pandas
assert have_pandas and sys.modules["pyspark.testing.utils"].assertDataFrameEqual is assertDataFrameEqual
assert NumpyScalarConverter().can_convert(np.int64(3))
quick_py4j.install()
assert sys.modules["pyspark.testing.utils"].assertDataFrameEqual is assertDataFrameEqual
"""


def test_it_answers_one_question_and_makes_way_for_any_other() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
