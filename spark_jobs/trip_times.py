"""Read times of a landed file, of any type, as instants."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TIMESTAMP", "check_time_zone", "micros_of", "moment", "read_times"]

TIMESTAMP: Final = pa.timestamp("us", "UTC")

_HOUR: Final = 3_600_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# A nonzero digit after the sixth, which Python drops silently.
_NANOSECONDS: Final = re.compile(r"[.,]\d{6}\d*[1-9]")

# Form that arrow parses exactly like Python, but much faster.
_PLAIN: Final = r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?$"


def moment(value: Any) -> datetime:
    """Return a date or time, which may be text, as an instant; UTC if it has no zone."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    raise ValueError("must be a date or a timestamp, like 2023-01-01 or 2023-01-01T06:00:00; UTC")


def micros_of(value: datetime) -> int:
    """Return microseconds since the epoch."""
    return (value - _EPOCH) // timedelta(microseconds=1)


# Spark's first and last timestamp; arrow and parquet allow 290,000 more years.
_FIRST: Final = micros_of(datetime(1, 1, 1, tzinfo=UTC))
_LAST: Final = micros_of(datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))


def check_time_zone(name: str) -> str:
    """Return `name` if this machine knows that time zone.

    Raises
    ------
    ValueError
        If it is unknown.
    """
    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise ValueError("must be a time zone that this machine knows, like America/New_York") from error
    return name


def read_times(raw: pa.Array, time_zone: str) -> tuple[pa.Array, pa.Array]:
    """Read a column of times.

    Parameters
    ----------
    raw
        Timestamps of any unit, dates, or text.
    time_zone
        Time zone of times without a zone. Times with a zone are instants.

    Returns
    -------
    earlier, later : TimestampArray
        Each value as an instant, null if it can't be converted without loss. The two differ for an ambiguous time, when
        the clock is put back. A time that the clock skips is null.
    """
    kind = raw.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        micros, local = _micros_of_ticks(raw), pa.repeat(not zoned, len(raw))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        micros, local = _micros_of_text(raw)
    else:
        # A bare number is not a time: its unit and origin are unknown.
        return pa.nulls(len(raw), TIMESTAMP), pa.nulls(len(raw), TIMESTAMP)
    micros = _in_range(micros)
    instants = micros.cast(TIMESTAMP)
    if time_zone == "UTC":
        return instants, instants
    earlier, later = (_in_range(found).cast(TIMESTAMP) for found in _on_a_clock(micros, time_zone))
    return pc.if_else(local, earlier, instants), pc.if_else(local, later, instants)


def _in_range(micros: pa.Array) -> pa.Array:
    return _where(pc.and_(pc.greater_equal(micros, _FIRST), pc.less_equal(micros, _LAST)), micros)


def _on_a_clock(micros: pa.Array, time_zone: str) -> tuple[pa.Array, pa.Array]:
    # Not by arrow's conversion: it knows no daylight saving after 2037, or none at all for some systems' zones.
    local = np.asarray(pc.fill_null(micros, 0))
    hours, hour_of = np.unique(local // _HOUR, return_inverse=True)
    offsets = [_offset_in(time_zone, hour) for hour in hours.tolist()]
    earlier = local - np.array([offset or 0 for offset in offsets])[hour_of]
    later, exists = earlier.copy(), ~np.asarray(micros.is_null())
    for place in np.flatnonzero(np.array([offset is None for offset in offsets])[hour_of]).tolist():
        first, second = _offsets_at(time_zone, int(local[place]))
        earlier[place], later[place] = local[place] - first, local[place] - second
        # The clock skips these times.
        exists[place] &= first >= second
    return pa.array(earlier, mask=~exists), pa.array(later, mask=~exists)


@lru_cache(maxsize=10_000)
def _offset_in(time_zone: str, hour: int) -> int | None:
    """Return the zone's offset in an hour; None if it changes within the hour, or the hour is skipped or repeated."""
    found = {*_offsets_at(time_zone, hour * _HOUR), *_offsets_at(time_zone, hour * _HOUR + _HOUR - 1)}
    return found.pop() if len(found) == 1 else None


def _offsets_at(time_zone: str, micros: int) -> tuple[int, int]:
    """Return the zone's offsets when the clock shows a time for the first and for the second time."""
    time = (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=ZoneInfo(time_zone))
    first, second = (time.replace(fold=fold).utcoffset() or timedelta() for fold in (0, 1))
    return first // timedelta(microseconds=1), second // timedelta(microseconds=1)


def _micros_of_ticks(raw: pa.Array) -> pa.Array:
    if pa.types.is_date(raw.type):
        raw = raw.cast(pa.timestamp("ms"))
    ticks, unit = raw.cast(pa.int64()), raw.type.unit
    if unit == "ns":
        fits = pc.equal(pc.multiply(pc.divide(ticks, 1000), 1000), ticks)
        return pc.divide(_where(fits, ticks), 1000)
    factor = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    limit = 2**63 // factor - 1
    fits = pc.and_(pc.less_equal(ticks, limit), pc.greater_equal(ticks, -limit))
    return pc.multiply(_where(fits, ticks), factor)


def _micros_of_text(raw: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the microseconds, and which of them have no zone."""
    if pc.all(pc.match_substring_regex(raw, _PLAIN), min_count=0).as_py():
        try:
            return raw.cast(pa.timestamp("us")).cast(pa.int64()), pa.repeat(True, len(raw))
        except pa.ArrowInvalid:
            pass  # Such as a 13th month: one by one, then.
    parsed = [_parsed(value) for value in raw.cast(pa.large_binary()).to_pylist()]
    micros = pa.array([micros for micros, _ in parsed], pa.int64())
    return micros, pa.array([local for _, local in parsed], pa.bool_())


def _parsed(value: bytes | None) -> tuple[int | None, bool]:
    try:
        text = (value or b"").decode().strip()
        if _NANOSECONDS.search(text):
            return None, True
        found = datetime.fromisoformat(text)
        return micros_of(moment(found)), found.tzinfo is None
    except (ValueError, OverflowError):
        return None, True


def _where(condition: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(condition, values, pa.scalar(None, values.type))
