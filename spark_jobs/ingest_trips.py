"""Landed trip files become typed, valid trips, and a quarantine for everything else.

The source hands over each file as bytes, and pyarrow reads it: so a corrupt or foreign file is one row of the
quarantine and not the end of the query, and files whose columns have other types (TLC changes them) are read side by
side.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BeforeValidator, Field, model_validator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jobs.schemas import (
    AMOUNTS,
    DROPOFF,
    DROPOFF_ZONE,
    PICKUP,
    PICKUP_ZONE,
    QUARANTINE,
    TRIP_COLUMNS,
    TRIPS,
)
from streamwarden.driver.job_api import JobOptions, JobSettings
from streamwarden.errors import StreamwardenError

__all__ = ["MAX_AMOUNT", "OUTPUTS", "VERSION", "ZONES", "Options", "outputs", "read_file", "transform"]

VERSION = 1

OUTPUTS: Mapping[str, StructType] = {"main": TRIPS, "quarantine": QUARANTINE}

ZONES: Final = (1, 265)
"""TLC's first and last zone; 264 and 265 mean "unknown" and "outside", and are valid."""

MAX_AMOUNT: Final = 1e9
"""Dollars. Larger is no fare, and sums of cents must fit a 64-bit integer, or one row would stop the jobs that sum."""

# A file without these can't hold one valid trip: it is something else (yellow taxis, say), and is quarantined whole.
_REQUIRED: Final = (PICKUP, PICKUP_ZONE)

# Rows decoded at a time.
_BATCH_ROWS: Final = 16_384

# A file must be decoded whole before its first row goes out, since a damaged page may come last. Up to this (decoded
# bytes) the rows are kept meanwhile; beyond it the file is decoded twice, so that memory stays bounded.
_KEEP_BYTES: Final = 256 * 1024 * 1024

# Spark's last timestamp; arrow's and parquet's go on for 290,000 years.
_TIMESTAMP_END: Final = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
_TIMESTAMP_BEGIN: Final = datetime(1, 1, 1, tzinfo=UTC)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_MAX_MESSAGE: Final = 300

_NANOSECONDS: Final = re.compile(r"\.\d{6}\d*[1-9]")


def _moment(value: Any) -> Any:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    raise ValueError("must be a date or a timestamp, like 2023-01-01 or 2023-01-01T06:00:00; UTC")


class Options(JobOptions):
    """Options of ``ingest_trips``."""

    earliest: Annotated[datetime, BeforeValidator(_moment)] = Field(
        description="Pickups before this are quarantined. No default: it depends on what is replayed."
    )
    latest: Annotated[datetime, BeforeValidator(_moment)] = Field(
        description="Pickups at or after this are quarantined: one far in the future would carry every watermark along."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.earliest >= self.latest:
            raise ValueError("earliest must be before latest")
        return self


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Read and judge the files of each batch.

    Parameters
    ----------
    source
        Files as Spark's ``binaryFile`` gives them: ``path`` and ``content``.
    settings
        Needs the module's options.

    Returns
    -------
    DataFrame
        All columns of both outputs. ``reasons`` is null in a valid row; :func:`outputs` tells them apart.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without options.
    """
    if not isinstance(settings.options, Options):
        raise StreamwardenError("CONFIG_INVALID", "ingest_trips: options: earliest and latest are required")
    rules = Rules.of(settings.options)
    parsed = source.select("path", "content").mapInArrow(partial(_read_files, rules), _PARSED)
    # In a streaming plan this is the batch's own time, which the checkpoint keeps: a replayed batch says the same.
    return parsed.withColumn("quarantined_at", F.current_timestamp())


def outputs(batch: DataFrame) -> Mapping[str, DataFrame]:
    """Split a batch into trips (``main``) and ``quarantine``."""
    return {
        "main": batch.where(F.col("reasons").isNull()).select(*TRIPS.names),
        "quarantine": batch.where(F.col("reasons").isNotNull()).select(*QUARANTINE.names),
    }


@dataclass(frozen=True)
class Rules:
    """The options as what arrow compares: microseconds since the epoch.

    Parameters
    ----------
    earliest
        First pickup that is valid.
    latest
        First pickup that is not valid any more.
    """

    earliest: int
    latest: int

    @classmethod
    def of(cls, options: Options) -> Rules:
        """Take the bounds from options."""
        return cls(_micros(options.earliest), _micros(options.latest))


def read_file(name: str, content: bytes, rules: Rules) -> list[pa.RecordBatch] | Iterator[pa.RecordBatch]:
    """Read one file, whatever it is.

    Parameters
    ----------
    name
        What ``source_file`` will say.
    content
        The file's bytes.
    rules
        Bounds of the pickup.

    Returns
    -------
    iterable of RecordBatch
        Rows in the file's order, or one row for a file that can't be read or isn't of trips.
    """
    # Every kind of exception: whatever pyarrow makes of a damaged file (Arrow, OS, overflow, Unicode, an allocation as
    # absurd as a damaged header asks for), the file is at fault, and a file must never stop the job.
    try:
        if not content:
            return [_whole_file(name, "FILE_UNREADABLE: the file is empty")]
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        missing = [column for column in _REQUIRED if file.schema_arrow.get_field_index(column) < 0]
        if missing:
            return [_whole_file(name, f"FILE_FOREIGN: no column {', '.join(missing)}")]
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(group).total_byte_size for group in groups) <= _KEEP_BYTES:
            return list(_judged(file, name, rules))
        for _ in _judged(file, name, rules):
            pass
        return _judged(pq.ParquetFile(pa.BufferReader(content)), name, rules)
    except Exception as error:
        return [_whole_file(name, f"FILE_UNREADABLE: {_message(error)}")]


def _read_files(rules: Rules, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            yield from read_file(path.as_py().rsplit("/", 1)[-1], content.as_py(), rules)


def _judged(file: pq.ParquetFile, name: str, rules: Rules) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
        yield _judge(batch, name, first, rules)
        first += batch.num_rows


def _judge(batch: pa.RecordBatch, name: str, first: int, rules: Rules) -> pa.RecordBatch:
    """Type a batch's columns, find what is wrong with each row, and keep the bad rows as they came."""
    rows = batch.num_rows
    failures: list[tuple[str, np.ndarray]] = []
    columns: dict[str, pa.Array] = {}
    for column, kind in _ARROW_TRIP:
        index = batch.schema.get_field_index(column)
        if index < 0:
            columns[column] = pa.nulls(rows, kind)
            continue
        raw = batch.column(index)
        typed = _typed(raw, kind)
        columns[column] = typed
        if typed.null_count != raw.null_count:
            failures.append((f"UNPARSABLE:{column}", _mask(pc.and_(pc.is_null(typed), pc.is_valid(raw)))))
    unparsable = {code.partition(":")[2]: mask for code, mask in failures}
    failures += _broken_rules(columns, unparsable, rules)
    failures = [(code, mask) for code, mask in failures if mask.any()]

    numbers = pa.array(np.arange(first, first + rows))
    reasons, raw_rows = pa.nulls(rows, _REASONS), pa.nulls(rows, pa.string())
    if failures:
        table = np.column_stack([mask for _, mask in failures])
        bad = table.any(axis=1)
        of_row, of_rule = np.nonzero(table[bad])
        offsets = np.searchsorted(of_row, np.arange(int(bad.sum()) + 1))
        codes = pa.array([code for code, _ in failures]).take(pa.array(of_rule))
        found = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), codes)
        # Position of each bad row among the bad ones; null for good rows, and so null in what is taken.
        where = pa.array(np.cumsum(bad) - 1, pa.int64(), mask=~bad)
        reasons = found.take(where).cast(_REASONS)
        raw_rows = pa.array(_as_json(batch.filter(pa.array(bad))), pa.string()).take(where)
    source = pa.repeat(pa.scalar(name, pa.string()), rows)
    return pa.RecordBatch.from_arrays([*columns.values(), source, numbers, raw_rows, reasons], schema=_ARROW_PARSED)


def _broken_rules(
    columns: Mapping[str, pa.Array], unparsable: Mapping[str, np.ndarray], rules: Rules
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each rule's code with a mask of the rows that break it; a null breaks only the rules about nulls."""
    nothing = np.zeros(len(columns[PICKUP]), dtype=bool)
    pickup, dropoff = (columns[name].cast(pa.int64()) for name in (PICKUP, DROPOFF))
    # A value that couldn't be parsed is there, so UNPARSABLE says all.
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


def _typed(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert without loss; a value that can't be is null in the result."""
    if pa.types.is_null(raw.type):
        return pa.nulls(len(raw), kind)
    if pa.types.is_dictionary(raw.type):
        raw = raw.dictionary_decode()
    convert: Callable[[pa.Array], pa.Array]
    if pa.types.is_timestamp(kind):
        convert = _to_timestamp
    elif pa.types.is_int32(kind):
        convert = _to_int
    elif pa.types.is_float64(kind):
        convert = _to_double
    else:
        convert = _to_string
    return convert(raw)


def _to_int(raw: pa.Array) -> pa.Array:
    kind = raw.type
    if pa.types.is_integer(kind):
        low, high = -(2**31), 2**31 - 1
        if pa.types.is_unsigned_integer(kind):
            fits = pc.less_equal(raw, pa.scalar(min(high, 2**kind.bit_width - 1), kind))
        elif kind.bit_width <= 32:
            return raw.cast(pa.int32())
        else:
            fits = pc.and_(pc.greater_equal(raw, low), pc.less_equal(raw, high))
        return _where(fits, raw).cast(pa.int32())
    if pa.types.is_floating(kind):
        values = raw.cast(pa.float64())
        # NaN compares false; -0.0 is an integer in every sense that matters.
        fits = pc.and_(pc.less_equal(pc.abs(values), 2.0**31 - 1), pc.equal(values, pc.trunc(values)))
        return _where(fits, values).cast(pa.int32())
    if pa.types.is_decimal(kind) or _is_text(kind):
        return _each(raw, _parse_int, pa.int32())
    return pa.nulls(len(raw), pa.int32())


def _to_double(raw: pa.Array) -> pa.Array:
    kind = raw.type
    if pa.types.is_floating(kind):
        return raw.cast(pa.float64())
    if pa.types.is_integer(kind):
        if kind.bit_width <= 32:
            return raw.cast(pa.float64())
        top = pa.scalar(2**53, kind)
        fits = pc.less_equal(raw, top)
        if pa.types.is_signed_integer(kind):
            fits = pc.and_(fits, pc.greater_equal(raw, pa.scalar(-(2**53), kind)))
        return _where(fits, raw).cast(pa.float64())
    if pa.types.is_decimal(kind) or _is_text(kind):
        return _each(raw, _parse_double, pa.float64())
    return pa.nulls(len(raw), pa.float64())


def _to_timestamp(raw: pa.Array) -> pa.Array:
    kind = raw.type
    result_type = pa.timestamp("us", "UTC")
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if pa.types.is_date(kind):
            raw = raw.cast(pa.timestamp("ms"))
        ticks, unit = raw.cast(pa.int64()), raw.type.unit
        if unit == "ns":
            fits = pc.equal(pc.multiply(pc.divide(ticks, 1000), 1000), ticks)
            micros = pc.divide(_where(fits, ticks), 1000)
        else:
            factor = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
            limit = 2**63 // factor - 1
            fits = pc.and_(pc.less_equal(ticks, limit), pc.greater_equal(ticks, -limit))
            micros = pc.multiply(_where(fits, ticks), factor)
    elif _is_text(kind):
        micros = _each(raw, _parse_timestamp, pa.int64())
    else:
        # A bare number is not a time: its unit and origin are anybody's guess.
        return pa.nulls(len(raw), result_type)
    in_range = pc.and_(
        pc.greater_equal(micros, _micros(_TIMESTAMP_BEGIN)), pc.less_equal(micros, _micros(_TIMESTAMP_END))
    )
    return _where(in_range, micros).cast(result_type)


def _to_string(raw: pa.Array) -> pa.Array:
    kind = raw.type
    if pa.types.is_integer(kind):
        return raw.cast(pa.string())
    if _is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        # Parquet says that a column is text; whether its bytes are is for us to find out.
        try:
            return raw.cast(pa.large_binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return _each(raw.cast(pa.large_binary()), bytes.decode, pa.string())
    return pa.nulls(len(raw), pa.string())


def _each(raw: pa.Array, parse: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Convert value by value: for columns that came as text, which TLC's never do."""
    if _is_text(raw.type):
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
    # "1e999" is a number, and not infinity.
    if math.isinf(number) and exact.is_finite():
        raise ValueError(value)
    return number


def _parse_timestamp(value: str) -> int:
    # Python drops digits after the sixth without a word.
    if _NANOSECONDS.search(value):
        raise ValueError(value)
    return _micros(_moment(value.strip()))


def _decimal(value: str | Decimal) -> Decimal:
    # Python reads 1_000 as a number; nobody else does.
    if isinstance(value, str) and "_" in value:
        raise ValueError(value)
    return Decimal(value)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _where(condition: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def _mask(condition: pa.Array) -> np.ndarray:
    if condition.null_count:
        condition = pc.fill_null(condition, False)
    return np.asarray(condition.to_numpy(zero_copy_only=False), dtype=bool)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _as_json(rows: pa.RecordBatch) -> list[str]:
    names = rows.schema.names
    columns = [_json_values(column) for column in rows.columns]
    return [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in zip(*columns, strict=True)]


def _json_values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _json_values(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        # By arrow, which has no last year and keeps nanoseconds; Python's datetime has neither virtue.
        return list(column.cast(pa.string()).to_pylist())
    if _is_text(kind):
        return [_json_value(value) for value in column.cast(pa.large_binary()).to_pylist()]
    return [_json_value(value) for value in column.to_pylist()]


def _json_value(value: Any) -> Any:
    """Return what JSON can say without loss; it has no NaN, no infinity, no bytes and no decimals."""
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
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    return str(value)


def _message(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"


def _whole_file(name: str, reason: str) -> pa.RecordBatch:
    values: dict[str, Any] = dict.fromkeys(_ARROW_PARSED.names)
    values |= {"source_file": name, "reasons": [reason]}
    return pa.RecordBatch.from_pylist([values], schema=_ARROW_PARSED)


_ARROW_TYPES: Final[Mapping[DataType, pa.DataType]] = {
    IntegerType(): pa.int32(),
    DoubleType(): pa.float64(),
    StringType(): pa.string(),
    # Zone-less times of TLC are taken as UTC, the session's zone, so that nothing shifts on the way.
    TimestampType(): pa.timestamp("us", "UTC"),
}
_ARROW_TRIP: Final = [(name, _ARROW_TYPES[kind]) for name, kind in TRIP_COLUMNS.items()]
_REASONS: Final = pa.list_(pa.string())
_ARROW_PARSED: Final = pa.schema(
    [
        *_ARROW_TRIP,
        ("source_file", pa.string()),
        ("source_row", pa.int64()),
        ("raw", pa.string()),
        ("reasons", _REASONS),
    ]
)
_PARSED: Final = StructType(
    [*TRIPS.fields, StructField("raw", StringType()), StructField("reasons", ArrayType(StringType()))]
)
