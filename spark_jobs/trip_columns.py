"""Match a landed file's columns with those of a trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spark_jobs.schemas import DROPOFF, DROPOFF_ZONE, PICKUP, PICKUP_ZONE, TRIP_COLUMNS

__all__ = ["REQUIRED", "BadLines", "FileRefusedError", "Rows", "find_columns", "match_columns", "near_misses"]

REQUIRED: Final = (
    "VendorID",
    PICKUP,
    DROPOFF,
    PICKUP_ZONE,
    DROPOFF_ZONE,
    "fare_amount",
    "extra",
    "mta_tax",
    "tip_amount",
    "tolls_amount",
    "total_amount",
)
"""Columns of every TLC file: the trip's key, which separates trips, and the older amounts."""


@dataclass(frozen=True)
class Rows:
    """Rows of a file, unchanged.

    Parameters
    ----------
    batch
        The rows' columns.
    columns
        Position of each of the file's columns in `batch`; see :func:`match_columns`.
    numbers
        The rows' numbers in the file.
    raw
        The source text of each row; None if `batch` has all of it.
    """

    batch: pa.RecordBatch
    columns: Mapping[str, int]
    numbers: pa.Array
    raw: Sequence[str] | None = None


@dataclass(frozen=True)
class BadLines:
    """Lines of a file that can't be read as rows.

    Parameters
    ----------
    numbers
        Their row numbers.
    raw
        Their source text.
    reasons
        The error of each line.
    """

    numbers: Sequence[int]
    raw: Sequence[str]
    reasons: Sequence[Sequence[str]]


class FileRefusedError(Exception):
    """The file is quarantined whole, with this error's text as the reason."""


def find_columns(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the position of each trip column among a file's; ignores capitals and surrounding blanks."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if (column := _BY_FOLDED.get(name.strip().casefold())) is not None:
            places.setdefault(column, []).append(place)
    return places


def near_misses(names: Sequence[str]) -> dict[str, str]:
    """Return missing columns that the file has in another spelling, such as ``Total Amount``."""
    found = find_columns(names)
    bare = {_bare(name): name for name in names}
    return {column: bare[_bare(column)] for column in TRIP_COLUMNS if column not in found and _bare(column) in bare}


def _bare(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


_BY_FOLDED: Final = {column.casefold(): column for column in TRIP_COLUMNS}


def match_columns(names: Sequence[str]) -> dict[str, int]:
    """Find the columns of a trip among a file's.

    Returns
    -------
    dict
        The position of each column that the file has.

    Raises
    ------
    FileRefusedError
        If a required column is missing, is there twice, or has another spelling.
    """
    found = find_columns(names)
    twice = [
        f"{column} is there as {' and '.join(repr(names[place]) for place in places)}"
        for column, places in found.items()
        if len(places) > 1
    ]
    if twice:
        raise FileRefusedError(f"FILE_AMBIGUOUS: {'; '.join(twice)}")
    if missing := [column for column in REQUIRED if column not in found]:
        raise FileRefusedError(f"FILE_FOREIGN: no column {', '.join(missing)}")
    if near := near_misses(names):
        raise FileRefusedError(
            f"FILE_FOREIGN: no column {', '.join(f'{name}, but {was!r}' for name, was in near.items())}"
        )
    return {column: places[0] for column, places in found.items()}
