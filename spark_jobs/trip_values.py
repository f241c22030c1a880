"""Convert values of a landed file, of any type, to the table's types."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["is_text", "read_doubles", "read_integers", "read_text", "where"]

_WHOLE_MAX = 2**53
"""Every whole number up to this value is exact as a double."""


def read_integers(raw: pa.Array) -> pa.Array:
    """Return 32-bit integers; null if a value isn't one."""
    kind = raw.type
    if pa.types.is_integer(kind):
        low, high = -(2**31), 2**31 - 1
        if pa.types.is_unsigned_integer(kind):
            fits = pc.less_equal(raw, pa.scalar(min(high, 2**kind.bit_width - 1), kind))
        elif kind.bit_width <= 32:
            return raw.cast(pa.int32())
        else:
            fits = pc.and_(pc.greater_equal(raw, low), pc.less_equal(raw, high))
        return where(fits, raw).cast(pa.int32())
    if pa.types.is_floating(kind):
        values = raw.cast(pa.float64())
        # NaN compares false; -0.0 counts as an integer.
        fits = pc.and_(pc.less_equal(pc.abs(values), 2.0**31 - 1), pc.equal(values, pc.trunc(values)))
        return where(fits, values).cast(pa.int32())
    if is_text(kind) and _all_match(raw, r"^[+-]?\d{1,9}(\.0*)?$"):
        return pc.replace_substring_regex(raw, r"^\+|\.0*$", "").cast(pa.int32())
    if pa.types.is_decimal(kind) or is_text(kind):
        return _each(raw, _parse_int, pa.int32())
    return pa.nulls(len(raw), pa.int32())


def read_doubles(raw: pa.Array) -> pa.Array:
    """Return doubles; null if a value isn't a number, has no double, or is a whole number beyond 2^53."""
    kind = raw.type
    if pa.types.is_floating(kind):
        return raw.cast(pa.float64())
    if pa.types.is_integer(kind):
        if kind.bit_width <= 32:
            return raw.cast(pa.float64())
        top = pa.scalar(_WHOLE_MAX, kind)
        fits = pc.less_equal(raw, top)
        if pa.types.is_signed_integer(kind):
            fits = pc.and_(fits, pc.greater_equal(raw, pa.scalar(-_WHOLE_MAX, kind)))
        return where(fits, raw).cast(pa.float64())
    if is_text(kind) and _all_match(raw, r"^-?\d{1,15}(\.\d{1,100})?$"):
        return raw.cast(pa.float64())
    if pa.types.is_decimal(kind) or is_text(kind):
        return _each(raw, _parse_double, pa.float64())
    return pa.nulls(len(raw), pa.float64())


def read_text(raw: pa.Array) -> pa.Array:
    """Return text; null if a value is neither text nor a whole number."""
    kind = raw.type
    if pa.types.is_integer(kind):
        return raw.cast(pa.string())
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        # Parquet declares a column as text without checking its bytes.
        try:
            return raw.cast(pa.large_binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return _each(raw.cast(pa.large_binary()), bytes.decode, pa.string())
    return pa.nulls(len(raw), pa.string())


def is_text(kind: pa.DataType) -> bool:
    """Whether the type is one of arrow's text types."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def where(condition: pa.Array, values: pa.Array) -> pa.Array:
    """Return `values` with null where the condition doesn't hold."""
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def _all_match(raw: pa.Array, pattern: str) -> bool:
    """Whether arrow's much faster conversion agrees with ours for every value."""
    return bool(pc.all(pc.match_substring_regex(raw, pattern), min_count=0).as_py())


def _each(raw: pa.Array, parse: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Convert value by value."""
    if is_text(raw.type):
        raw = raw.cast(pa.large_binary())

    def convert(value: Any) -> Any:
        if value is None:
            return None
        try:
            return parse(value.decode() if isinstance(value, bytes) and parse is not bytes.decode else value)
        except (ValueError, ArithmeticError):
            return None

    return pa.array([convert(value) for value in raw.to_pylist()], kind)


def _parse_int(value: str | Decimal) -> int:
    number = _decimal(value)
    if number != number.to_integral_value() or not -(2**31) <= number < 2**31:
        raise ValueError(value)
    return int(number)


def _parse_double(value: str | Decimal) -> float:
    exact = _decimal(value)
    number = float(exact)
    # All digits are written out, so it is no measurement: rounding would change the number.
    if abs(exact) > _WHOLE_MAX and exact.as_tuple().exponent == 0:
        raise ValueError(value)
    # "1e999" is a number, not infinity.
    if math.isinf(number) and exact.is_finite():
        raise ValueError(value)
    return number


def _decimal(value: str | Decimal) -> Decimal:
    # Python accepts 1_000 as a number; other tools don't.
    if isinstance(value, str) and "_" in value:
        raise ValueError(value)
    return Decimal(value)
