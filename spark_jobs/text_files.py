"""Read rows of CSV and JSON lines files, a few thousand lines at a time.

Uses Python's parsers, not arrow's: those guess a column's type from each block, and lose digits, row numbers or the
whole file over one bad line.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.raw_rows import json_value
from spark_jobs.schemas import TRIP_COLUMNS
from spark_jobs.trip_columns import REQUIRED, BadLines, FileRefusedError, Rows, find_columns, match_columns, near_misses

__all__ = ["csv_rows", "json_rows"]

# Limits of one batch: rows and characters.
_BATCH_ROWS: Final = 16_384
_BATCH_SIZE: Final = 8 * 1024 * 1024

# Characters. Rows of trips are shorter; a file without line ends must not be read whole.
_MAX_ROW: Final = 1024 * 1024


class _Lines:
    """The lines of a file, with their line ends, limited in length."""

    def __init__(self, content: BinaryIO, newline: str) -> None:
        # Bytes that are not UTF-8 become lone surrogates: nothing is lost, and only their row is invalid.
        self._text = io.TextIOWrapper(content, "utf-8-sig", errors="surrogateescape", newline=newline)
        self.size = 0
        self._row = 0
        self._row_began = 0

    def begin_row(self) -> None:
        self._row += 1
        self._row_began = self.size

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(_MAX_ROW):
            self.size += len(line)
            if self.size - self._row_began >= _MAX_ROW:
                raise FileRefusedError(f"FILE_UNREADABLE: line {self._row + 1} or a row there is longer than 1 MiB")
            yield line


def csv_rows(content: BinaryIO) -> Iterator[Rows | BadLines]:
    """Read CSV with a header: commas, and ``"`` around values with commas or line ends. Empty values are null.

    Raises
    ------
    FileRefusedError
        If the header is not that of trips, or a quote is not closed: then row ends are unknown.
    """
    lines = _Lines(content, newline="")
    records = _records(lines)
    header = next(records, None)
    if header is None:
        raise FileRefusedError("FILE_UNREADABLE: no header")
    columns = match_columns(header)
    first = 0
    for batch in _batches(records, lines):
        good = [(number, row) for number, row in enumerate(batch, first) if len(row) == len(header)]
        bad = [(number, row) for number, row in enumerate(batch, first) if len(row) != len(header)]
        first += len(batch)
        if good:
            arrays = [_empty_as_null(_text_array(values)) for values in zip(*(row for _, row in good), strict=True)]
            named = pa.RecordBatch.from_arrays(arrays, names=[_printable(name) for name in header])
            yield Rows(named, columns, pa.array([number for number, _ in good], pa.int64()))
        if bad:
            raw = [json.dumps([_value(field) for field in row], ensure_ascii=False) for _, row in bad]
            yield BadLines([number for number, _ in bad], raw, [["WRONG_FIELD_COUNT"]] * len(bad))


def json_rows(content: BinaryIO) -> Iterator[Rows | BadLines]:
    """Read JSON lines: one object a line. A missing field is null, unless every trip has it.

    Raises
    ------
    FileRefusedError
        If the first lines contain no trip.
    """
    lines = _Lines(content, newline="\n")
    first = 0
    for batch in _batches(_filled(lines), lines):
        numbers: list[int] = []
        trips: list[dict[str, Any]] = []
        bad: list[tuple[int, list[str]]] = []
        for number, line in enumerate(batch, first):
            trip, reasons = _parse_line(line)
            if reasons:
                bad.append((number, reasons))
            else:
                numbers.append(number)
                trips.append(trip)
        if first == 0 and not trips:
            raise FileRefusedError(f"FILE_FOREIGN: no line is a trip; the first: {', '.join(bad[0][1])}")
        if trips:
            arrays = [_array([trip.get(column) for trip in trips]) for column in TRIP_COLUMNS]
            named = pa.RecordBatch.from_arrays(arrays, names=list(TRIP_COLUMNS))
            raw = [batch[number - first] for number in numbers]
            yield Rows(named, _ALL_COLUMNS, pa.array(numbers, pa.int64()), raw)
        if bad:
            yield BadLines(
                [number for number, _ in bad],
                [_line_as_json(batch[number - first]) for number, _ in bad],
                [reasons for _, reasons in bad],
            )
        first += len(batch)


_ALL_COLUMNS: Final[Mapping[str, int]] = {column: place for place, column in enumerate(TRIP_COLUMNS)}


def _batches(records: Iterator[Any], lines: _Lines) -> Iterator[list[Any]]:
    batch: list[Any] = []
    end = lines.size + _BATCH_SIZE
    for record in records:
        batch.append(record)
        if len(batch) == _BATCH_ROWS or lines.size > end:
            yield batch
            batch, end = [], lines.size + _BATCH_SIZE
    if batch:
        yield batch


def _records(lines: _Lines) -> Iterator[list[str]]:
    reader = csv.reader(iter(lines), strict=True)
    try:
        for record in reader:
            lines.begin_row()
            if record:
                yield record
    except csv.Error as error:
        raise FileRefusedError(f"FILE_UNREADABLE: line {reader.line_num}: {error}") from error


def _filled(lines: _Lines) -> Iterator[str]:
    for line in lines:
        lines.begin_row()
        if not line.isspace():
            yield line.rstrip("\r\n")


class _Doubled(dict[str, Any]):
    """An object with duplicate field names: the last value of each, as usual in JSON, and all names."""

    names: tuple[str, ...]


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(fields)
    if len(found) != len(fields):
        found = _Doubled(found)
        found.names = tuple(name for name, _ in fields)
    return found


def _real(text: str) -> float | Decimal:
    # 1e400 is a number, not infinity.
    number = float(text)
    return Decimal(text) if math.isinf(number) else number


def _whole(text: str) -> int | Decimal:
    # Python refuses integers of more than 4,300 digits.
    return int(text) if len(text) < 1000 else Decimal(text)


# NaN and Infinity are not JSON, but Python and other tools write them; they become doubles.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_real, parse_int=_whole)


def _parse_line(line: str) -> tuple[dict[str, Any], list[str]]:
    """Return a line's trip by the table's columns, or the errors of the line."""
    try:
        line.encode()
        found = _DECODER.decode(line)
    except (ValueError, RecursionError):
        return {}, ["NOT_JSON"]
    if not isinstance(found, dict):
        return {}, ["NOT_AN_OBJECT"]
    names, reasons = _names_of(found.names if isinstance(found, _Doubled) else tuple(found))
    return {column: found[name] for column, name in names}, reasons


@lru_cache(maxsize=64)
def _names_of(names: tuple[str, ...]) -> tuple[list[tuple[str, str]], list[str]]:
    found = find_columns(names)
    reasons = [f"FIELD_TWICE:{column}" for column, places in found.items() if len(places) > 1]
    missing = {*near_misses(names), *(column for column in REQUIRED if column not in found)}
    reasons += [f"NO_FIELD:{column}" for column in TRIP_COLUMNS if column in missing]
    return [(column, names[places[0]]) for column, places in found.items()], reasons


def _array(values: Sequence[Any]) -> pa.Array:
    """Return an arrow column; several JSON types become a union, so that no value changes its type."""
    kinds = [_kind(value) for value in values]
    there = sorted(set(kinds) - {_NULL})
    if len(there) <= 1:
        return _ARRAY_OF[there[0] if there else _NULL](values)
    there = sorted(set(kinds))
    parts: list[list[Any]] = [[] for _ in there]
    offsets = []
    codes = [there.index(kind) for kind in kinds]
    for code, value in zip(codes, values, strict=True):
        offsets.append(len(parts[code]))
        parts[code].append(value)
    children = [_ARRAY_OF[kind](part) for kind, part in zip(there, parts, strict=True)]
    return pa.UnionArray.from_dense(pa.array(codes, pa.int8()), pa.array(offsets, pa.int32()), children)


_NULL, _WHOLE, _DOUBLE, _TEXT, _OTHER = range(5)
_KINDS: Final = {type(None): _NULL, int: _WHOLE, float: _DOUBLE, str: _TEXT, Decimal: _TEXT}


def _kind(value: Any) -> int:
    kind = _KINDS.get(type(value), _OTHER)
    return _TEXT if kind == _WHOLE and not -(2**63) <= value < 2**63 else kind


def _others(values: Sequence[Any]) -> pa.Array:
    # Booleans, lists and objects: no column of a trip can be read from them.
    return pa.array([None if value is None else True for value in values], pa.bool_())


_ARRAY_OF: Final = {
    _NULL: lambda values: pa.nulls(len(values)),
    _WHOLE: lambda values: pa.array(values, pa.int64()),
    _DOUBLE: lambda values: pa.array(values, pa.float64()),
    _TEXT: lambda values: _text_array([value if value is None else str(value) for value in values]),
    _OTHER: _others,
}


def _text_array(values: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:
        # As Parquet does for invalid text: keep the bytes, for the reader to check.
        found = pa.array([None if value is None else _as_bytes(value) for value in values], pa.large_binary())
        return pa.Array.from_buffers(pa.large_string(), len(found), found.buffers(), found.null_count)


def _empty_as_null(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(values.cast(pa.large_binary()), b""), pa.scalar(None, values.type), values)


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # Half of a surrogate pair, from a JSON escape.
        return text.encode("utf-8", "surrogatepass")


def _printable(text: str) -> str:
    return _as_bytes(text).decode("utf-8", "backslashreplace")


def _value(text: str) -> Any:
    return json_value(_as_bytes(text))


def _line_as_json(line: str) -> str:
    return json.dumps(_value(line), ensure_ascii=False)
