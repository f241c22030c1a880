"""Render rows of a landed file as lossless JSON."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pyarrow as pa

from spark_jobs.trip_values import is_text

__all__ = ["as_json", "json_value"]


def as_json(rows: pa.RecordBatch) -> list[str]:
    """Return each row as a JSON object with all columns. A second column of the same name becomes ``NAME (2)``."""
    names: list[str] = []
    for name in rows.schema.names:
        same = names.count(name) + 1
        names.append(name if same == 1 else f"{name} ({same})")
    columns = [_said(column) for column in rows.columns]
    return [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in zip(*columns, strict=True)]


def _said(column: pa.Array) -> list[Any]:
    try:
        return _values(column)
    except (ValueError, OverflowError, KeyError, pa.ArrowException):
        # Python can't represent some values, such as a date after year 9999, in a column that nobody reads.
        return [_text_of(scalar) for scalar in column]


def _text_of(scalar: pa.Scalar) -> str | None:
    if not scalar.is_valid:
        return None
    try:
        return str(scalar.cast(pa.string()).as_py())
    except (ValueError, OverflowError, KeyError, pa.ArrowException):
        return f"<{scalar.type}>"


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _values(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        # By arrow, which has no last year and keeps nanoseconds, unlike Python's datetime.
        return list(column.cast(pa.string()).to_pylist())
    if is_text(kind):
        return [json_value(value) for value in column.cast(pa.large_binary()).to_pylist()]
    return [json_value(value) for value in column.to_pylist()]


def json_value(value: Any) -> Any:
    """Return a lossless JSON value; JSON has no NaN, infinity, bytes or decimals."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    return str(value)
