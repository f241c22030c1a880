"""Without this, the first call into a JVM imports pandas.

PySpark 4.2 asks ``pyspark.testing.utils`` whether there is NumPy, in the converters that Py4J tries on every argument
(``pyspark.sql.types.NumpyScalarConverter``). That module, made for tests, imports pandas to see whether it is there:
half of what a driver's Python does until its query starts, and 38 MiB that it keeps.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["install"]

_NAME = "pyspark.testing.utils"


class _NumPyOnly(ModuleType):
    """Answers that one question; whoever asks for anything else gets the module itself, from then on."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.have_numpy = find_spec("numpy") is not None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # What Python's import system looks for in any module.
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)


def install() -> None:
    """Put it in the place of the module, unless that is imported already."""
    sys.modules.setdefault(_NAME, _NumPyOnly())
