"""The digest of a state: the same rows have the same, wherever they lie; anything else has another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from streamwarden.driver.state_digest import _digest

pytestmark = pytest.mark.spark

AT = datetime(2023, 3, 8, 12, 0, 0, 123_456)
SCHEMA = (
    "key struct<zone: int, window: struct<start: timestamp, end: timestamp>>,"
    " value struct<trips: bigint, fare: double, first: timestamp_ntz, tags: array<string>, counts: map<string, int>>"
)
Row = tuple[Any, ...]


def rows() -> list[Row]:
    return [
        (
            (zone, (AT, AT + timedelta(hours=1))),
            (zone * 10, None if zone == 3 else 0.1 * zone, AT, [f"t{zone}"], {"a": zone}),
        )
        for zone in range(20)
    ]


def changed(number: int, change: Callable[[Row], Row]) -> list[Row]:
    return [change(row) if place == number else row for place, row in enumerate(rows())]


@pytest.fixture
def digest(spark: SparkSession) -> Callable[[Sequence[Row]], str]:
    def of(given: Sequence[Row], partitions: int = 2) -> str:
        frame: DataFrame = spark.createDataFrame(list(given), SCHEMA).repartition(partitions)
        return _digest(frame)

    return of


def test_order_and_partitions_are_nothing_to_it(digest: Callable[..., str]) -> None:
    assert digest(rows()) == digest(rows()[::-1], 7) == digest(rows()[5:] + rows()[:5], 1)
    assert digest(rows()).split(":")[0] == "14", "twenty rows"


DIFFERENT = {
    "a lost key": rows()[:-1],
    "a key that is there twice": [*rows(), rows()[0]],
    "one lost, another twice": [*rows()[:-1], rows()[0]],
    "a value": changed(7, lambda row: (row[0], (71, *row[1][1:]))),
    "a value's last digit": changed(7, lambda row: (row[0], (70, row[1][1] + 1e-12, *row[1][2:]))),
    "nothing for zero": changed(0, lambda row: (row[0], (0, None, *row[1][2:]))),
    "a value of another key": changed(7, lambda row: (row[0], rows()[8][1])),
    "a key": changed(7, lambda row: ((99, row[0][1]), row[1])),
    "a microsecond": changed(7, lambda row: (row[0], (*row[1][:2], AT + timedelta(microseconds=1), *row[1][3:]))),
    "a microsecond of a window": changed(7, lambda row: ((7, (AT + timedelta(microseconds=1), row[0][1][1])), row[1])),
    "a list's element": changed(7, lambda row: (row[0], (*row[1][:3], ["t8"], row[1][4]))),
    "a map's value": changed(7, lambda row: (row[0], (*row[1][:4], {"a": 8}))),
}


@pytest.mark.parametrize("different", DIFFERENT)
def test_whatever_is_another_state_has_another_digest(digest: Callable[..., str], different: str) -> None:
    assert digest(DIFFERENT[different]) != digest(rows())


def test_two_values_that_change_places_are_seen(digest: Callable[..., str]) -> None:
    swapped = rows()
    (first, one), (second, other) = swapped[4], swapped[5]
    swapped[4], swapped[5] = (first, other), (second, one)
    assert digest(swapped) != digest(rows())
