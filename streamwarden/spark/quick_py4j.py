"""Keep the first call into a JVM from importing pandas.

PySpark 4.2's converters, which Py4J tries on every argument (``pyspark.sql.types.NumpyScalarConverter``), ask
``pyspark.testing.utils`` whether NumPy exists. That test module imports pandas: half of a driver's Python time until
its query starts, and 38 MiB of memory.
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
    """Answers that question only; any other attribute loads the real module, which then replaces this one."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.have_numpy = find_spec("numpy") is not None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Attributes that Python's import system reads from any module.
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)


def install() -> None:
    """Install this module under that name, unless the real one is already imported."""
    sys.modules.setdefault(_NAME, _NumPyOnly())
