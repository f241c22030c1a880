"""Rules for a landed file's columns and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, DoubleType, IntegerType, StringType, TimestampType

from spark_jobs.raw_rows import as_json
from spark_jobs.schemas import AMOUNTS, DROPOFF, DROPOFF_ZONE, PICKUP, PICKUP_ZONE, TRIP_COLUMNS
from spark_jobs.trip_columns import Rows
from spark_jobs.trip_times import TIMESTAMP, read_times
from spark_jobs.trip_values import read_doubles, read_integers, read_text

__all__ = ["MAX_AMOUNT", "PARSED", "ZONES", "Rules", "judge", "not_rows"]

ZONES: Final = (1, 265)
"""TLC's first and last zone; 264 and 265 mean "unknown" and "outside", and are valid."""

MAX_AMOUNT: Final = 1e9
"""Dollars. Larger values are no fares, and sums of cents must fit a 64-bit integer, or one row would stop jobs."""


@dataclass(frozen=True)
class Rules:
    """The job's options, as values for arrow.

    Parameters
    ----------
    earliest
        First valid pickup, microseconds since the epoch.
    latest
        End of the valid pickups (exclusive).
    time_zone
        Time zone of times without a zone.
    """

    earliest: int
    latest: int
    time_zone: str = "UTC"


def judge(rows: Rows, source_file: str, rules: Rules) -> pa.RecordBatch:
    """Type a batch's columns, find the errors of each row, and keep bad rows unchanged."""
    count = rows.batch.num_rows
    typed, unparsable = _typed_columns(rows, rules.time_zone)
    failures = [(f"UNPARSABLE:{column}", mask) for column, mask in unparsable.items()]
    failures += _broken_rules(typed, unparsable, rules)
    failures = [(code, mask) for code, mask in failures if mask.any()]

    reasons, raw = pa.nulls(count, _REASONS), pa.nulls(count, pa.string())
    if failures:
        table = np.column_stack([mask for _, mask in failures])
        bad = table.any(axis=1)
        of_row, of_rule = np.nonzero(table[bad])
        offsets = np.searchsorted(of_row, np.arange(int(bad.sum()) + 1))
        codes = pa.array([code for code, _ in failures]).take(pa.array(of_rule))
        found = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), codes)
        # Position of each bad row among the bad rows; null for good rows.
        where = pa.array(np.cumsum(bad) - 1, pa.int64(), mask=~bad)
        reasons = found.take(where).cast(_REASONS)
        if rows.raw is None:
            said = as_json(rows.batch.filter(pa.array(bad)))
        else:
            said = [rows.raw[place] for place in np.flatnonzero(bad).tolist()]
        raw = pa.array(said, pa.string()).take(where)
    source = pa.repeat(pa.scalar(source_file, pa.string()), count)
    return pa.RecordBatch.from_arrays([*typed.values(), source, rows.numbers, raw, reasons], schema=PARSED)


def not_rows(
    source_file: str, reasons: Sequence[Sequence[str]], numbers: Sequence[int | None], raw: Sequence[str | None]
) -> pa.RecordBatch:
    """Make quarantine rows without columns: for a whole file, or for lines that are no rows."""
    count = len(reasons)
    nothing = [pa.nulls(count, kind) for _, kind in _TRIP]
    given = [
        pa.array([source_file] * count, pa.string()),
        pa.array(numbers, pa.int64()),
        pa.array(raw, pa.string()),
        pa.array(reasons, _REASONS),
    ]
    return pa.RecordBatch.from_arrays([*nothing, *given], schema=PARSED)


def _typed_columns(rows: Rows, time_zone: str) -> tuple[dict[str, pa.Array], dict[str, np.ndarray]]:
    """Return each column in the table's type, and which of its values could not be converted."""
    typed: dict[str, pa.Array] = {}
    unparsable: dict[str, np.ndarray] = {}
    for column, kind in _TRIP:
        place = rows.columns.get(column)
        if place is None:
            typed[column] = pa.nulls(rows.batch.num_rows, kind)
            continue
        values, later, there = _typed(rows.batch.column(place), kind, time_zone)
        if column == DROPOFF:
            # In the repeated hour at the end of daylight saving: the first time that is not before the pickup. The
            # pickup precedes this column in the table.
            values = pc.if_else(pa.array(_mask(pc.less(values, typed[PICKUP]))), later, values)
        typed[column] = values
        lost = _mask(pc.and_(pc.is_null(values), there))
        if lost.any():
            unparsable[column] = lost
    return typed, unparsable


def _typed(raw: pa.Array, kind: pa.DataType, time_zone: str) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return values (for times: the earlier and the later of an ambiguous time), and which were present."""
    if pa.types.is_union(raw.type):
        parts = [_typed(raw.field(place), kind, time_zone) for place in range(raw.type.num_fields)]
        begins = np.cumsum([0, *(len(raw.field(place)) for place in range(raw.type.num_fields))])
        order = pa.array(begins[raw.type_codes.to_numpy()] + raw.offsets.to_numpy())
        values, later, there = (pa.concat_arrays(part).take(order) for part in zip(*parts, strict=True))
        return values, later, there
    if pa.types.is_dictionary(raw.type):
        raw = raw.dictionary_decode()
    there = pc.is_valid(raw)
    if pa.types.is_null(raw.type):
        values = pa.nulls(len(raw), kind)
    elif pa.types.is_timestamp(kind):
        return *read_times(raw, time_zone), there
    elif pa.types.is_int32(kind):
        values = read_integers(raw)
    elif pa.types.is_float64(kind):
        values = read_doubles(raw)
    else:
        values = read_text(raw)
    return values, values, there


def _broken_rules(
    columns: Mapping[str, pa.Array], unparsable: Mapping[str, np.ndarray], rules: Rules
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each rule's code with a mask of the rows that break it; a null breaks only the rules about nulls."""
    nothing = np.zeros(len(columns[PICKUP]), dtype=bool)
    pickup, dropoff = (columns[name].cast(pa.int64()) for name in (PICKUP, DROPOFF))
    # An unparsable value is present, so UNPARSABLE covers it.
    yield "NO_PICKUP_TIME", _mask(pc.is_null(pickup)) & ~unparsable.get(PICKUP, nothing)
    yield (
        "PICKUP_OUT_OF_BOUNDS",
        _mask(pc.or_(pc.less(pickup, rules.earliest), pc.greater_equal(pickup, rules.latest))),
    )
    yield "DROPOFF_BEFORE_PICKUP", _mask(pc.less(dropoff, pickup))
    yield "NO_PICKUP_ZONE", _mask(pc.is_null(columns[PICKUP_ZONE])) & ~unparsable.get(PICKUP_ZONE, nothing)
    yield (
        "ZONE_OUT_OF_RANGE",
        np.logical_or.reduce(
            [
                _mask(pc.or_(pc.less(columns[name], ZONES[0]), pc.greater(columns[name], ZONES[1])))
                for name in (PICKUP_ZONE, DROPOFF_ZONE)
            ]
        ),
    )
    finite, large = nothing.copy(), nothing.copy()
    for name in AMOUNTS:
        amounts = columns[name]
        if amounts.null_count == len(amounts):
            continue
        is_finite = pc.is_finite(amounts)
        finite |= _mask(pc.invert(is_finite))
        large |= _mask(pc.and_(is_finite, pc.greater(pc.abs(amounts), MAX_AMOUNT)))
    yield "AMOUNT_NOT_FINITE", finite
    yield "AMOUNT_OUT_OF_RANGE", large


def _mask(condition: pa.Array) -> np.ndarray:
    if condition.null_count:
        condition = pc.fill_null(condition, False)
    return np.asarray(condition.to_numpy(zero_copy_only=False), dtype=bool)


_ARROW_TYPES: Final[Mapping[DataType, pa.DataType]] = {
    IntegerType(): pa.int32(),
    DoubleType(): pa.float64(),
    StringType(): pa.string(),
    TimestampType(): TIMESTAMP,
}
_TRIP: Final = [(name, _ARROW_TYPES[kind]) for name, kind in TRIP_COLUMNS.items()]
_REASONS: Final = pa.list_(pa.string())

PARSED: Final = pa.schema(
    [
        *_TRIP,
        ("source_file", pa.string()),
        ("source_row", pa.int64()),
        ("raw", pa.string()),
        ("reasons", _REASONS),
    ]
)
"""Columns of a file's rows: those of both outputs."""
