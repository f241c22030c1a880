"""Measure the keys of a batch's rows, so that a write to a table can skip files and nulls are compared as equal."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StructType, TimestampType

__all__ = ["KeyMeasures", "Measured", "all_of"]

# Convert to an integer and back. PySpark collects a timestamp as a naive datetime in the process's time zone. In the
# repeated hour at the end of daylight saving it is ambiguous, and as a literal it becomes either of the two moments.
_AS_INTEGER: dict[type[DataType], tuple[Callable[[Column], Column], Callable[[Column], Column]]] = {
    TimestampType: (F.unix_micros, F.timestamp_micros),
    DateType: (F.unix_date, F.date_from_unix_date),
}


@dataclass(frozen=True)
class Measured:
    """The number of rows, the keys with nulls, and the bounds of the timestamps among the keys.

    Bounds are integers, as :data:`_AS_INTEGER` makes them.
    """

    rows: int
    bounds: Mapping[str, tuple[int | None, int | None]]
    kinds: Mapping[str, type[DataType]]
    nulls: frozenset[str]

    def within(self, prefix: str = "") -> Column:
        """Return a condition on the table that every row of these keys meets, by which Delta can skip files."""
        conditions = [F.lit(True)]
        for key, (low, high) in self.bounds.items():
            column = F.col(f"{prefix}{key}")
            _, back = _AS_INTEGER[self.kinds[key]]
            inside = column.between(back(F.lit(low)), back(F.lit(high))) if low is not None else F.lit(False)
            conditions.append(inside | column.isNull() if key in self.nulls else inside)
        return all_of(conditions)


class KeyMeasures:
    """What is measured of a table's rows.

    Parameters
    ----------
    columns
        The table's columns.
    keys
        Those that identify a row.
    """

    def __init__(self, columns: StructType, keys: Sequence[str]) -> None:
        kinds = {key: type(columns[key].dataType) for key in keys}
        self._keys = keys
        self._timed = {key: kind for key, kind in kinds.items() if kind in _AS_INTEGER}

    def aggregates(self) -> list[Column]:
        """Return the aggregates over the rows: their number, nulls and bounds of keys."""
        return [
            F.count(F.lit(1)).alias("rows"),
            *(_AS_INTEGER[kind][0](F.min(key)).alias(f"min_{key}") for key, kind in self._timed.items()),
            *(_AS_INTEGER[kind][0](F.max(key)).alias(f"max_{key}") for key, kind in self._timed.items()),
            *(F.count(key).alias(f"count_{key}") for key in self._keys),
        ]

    def of(self, rows: DataFrame) -> Measured:
        """Measure rows. Reads all of them."""
        row = rows.agg(*self.aggregates()).first()
        assert row is not None
        return self.read(row.asDict())

    def read(self, found: Mapping[str, Any]) -> Measured:
        """Return what the values of :meth:`aggregates` say."""
        return Measured(
            rows=found["rows"],
            bounds={key: (found[f"min_{key}"], found[f"max_{key}"]) for key in self._timed},
            kinds=self._timed,
            nulls=frozenset(key for key in self._keys if found[f"count_{key}"] < found["rows"]),
        )


def all_of(conditions: object) -> Column:
    """Return a condition that all of some are met."""
    return functools.reduce(operator.and_, conditions)  # type: ignore[call-overload,no-any-return]
