"""Arrow types of Spark's types, for the versions of Spark that we run."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

__all__ = ["arrow_type"]

# Spark 4.1 knows no zone, and takes UTC: the zone of our sessions.
_TAKES_ZONE = "timezone" in inspect.signature(to_arrow_type).parameters


def arrow_type(data_type: DataType, zone: str | None) -> pa.DataType:
    """Return the type with which Spark sends a column to Python.

    Parameters
    ----------
    data_type
        The column's type.
    zone
        The time zone of the session.
    """
    options: dict[str, Any] = {"timezone": zone} if _TAKES_ZONE else {}
    return to_arrow_type(data_type, **options)
