"""The busiest pickup zones of each hour, by hand: state variables and a timer of Spark's own transformWithState.

The key is the hour. A map holds the trips of each zone, a list the board as it was last written. A batch emits the
ranks that changed. When the watermark passes the end of the hour, a timer emits all ranks as closed and removes the
state. A trip at or before the watermark is late: Spark drops and counts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic import Field, field_validator
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, ListState, MapState, TimerValues
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.schemas import PICKUP, PICKUP_ZONE
from streamwarden.driver.job_api import JobOptions, JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.model.durations import Duration

__all__ = ["OUTPUTS", "VERSION", "Leaderboard", "Options", "transform"]

VERSION = 1

OUTPUTS: Mapping[str, StructType] = {
    "main": StructType(
        [
            StructField("window_start", TimestampType()),
            StructField("rank", IntegerType()),
            StructField("zone_id", IntegerType()),
            # From the lookup `zones`; null without it.
            StructField("borough", StringType()),
            StructField("zone", StringType()),
            StructField("trips", LongType()),
            # No trip can change it any more.
            StructField("is_closed", BooleanType()),
        ]
    )
}

_EMITTED: Final = "window_us long, rank int, zone_id int, trips long, is_closed boolean"
_ZONE: Final = StructType([StructField("zone", IntegerType())])
_TRIPS: Final = StructType([StructField("trips", LongType())])
_PLACE: Final = StructType([StructField("zone", IntegerType()), StructField("trips", LongType())])


class Options(JobOptions):
    """Options of ``zone_leaderboard``."""

    window: Duration = Field(default=timedelta(hours=1), description="Length of a window, aligned to the epoch. 1h.")
    places: int = Field(default=10, ge=1, le=1000, description="Ranks of a board. 10.")

    @field_validator("window")
    @classmethod
    def _whole_seconds(cls, value: timedelta) -> timedelta:
        if value < timedelta(seconds=1) or value % timedelta(seconds=1):
            raise ValueError("must be whole seconds, at least 1s")
        return value


class Leaderboard(StatefulProcessor):
    """Holds the counts of a window.

    Parameters
    ----------
    window_us
        Length of a window in microseconds.
    places
        Ranks of a board.
    """

    def __init__(self, *, window_us: int, places: int) -> None:
        self._window_us = window_us
        self._places = places

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._zones: MapState = handle.getMapState("zones", _ZONE, _TRIPS)
        self._board: ListState = handle.getListState("board", _PLACE)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Count trips, and emit the ranks that changed. Of zones with equal counts, the lower number comes first."""
        (window,) = key
        known = {zone: trips for (zone,), (trips,) in self._zones.iterator()}
        if not known:
            # The window's first trips.
            self._handle.registerTimer((window + self._window_us) // 1000)
        added: Counter[int] = Counter()
        for row in rows:
            added[row.zone] += 1
        for zone, trips in added.items():
            known[zone] = known.get(zone, 0) + trips
            self._zones.updateValue((zone,), (known[zone],))
        board = sorted(known.items(), key=lambda one: (-one[1], one[0]))[: self._places]
        before = [(zone, trips) for zone, trips in self._board.get()]
        if board != before:
            self._board.put(board)
        if timerValues.getCurrentWatermarkInMs() * 1000 >= window + self._window_us:
            # The timer fires in this batch and emits all ranks: a rank must not come twice.
            return
        for rank, place in enumerate(board, 1):
            if rank > len(before) or before[rank - 1] != place:
                yield _row(window, rank, place, is_closed=False)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: ARG002, N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        """Close the window."""
        (window,) = key
        for rank, (zone, trips) in enumerate(list(self._board.get()), 1):
            yield _row(window, rank, (zone, trips), is_closed=True)
        self._zones.clear()
        self._board.clear()

    def close(self) -> None:
        """Do nothing: there are no open resources."""


def _row(window: int, rank: int, place: tuple[int, int], *, is_closed: bool) -> Row:
    return Row(window_us=window, rank=rank, zone_id=place[0], trips=place[1], is_closed=is_closed)


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Return the changed ranks of each batch.

    Parameters
    ----------
    source
        Rows of the ``trips`` table. Trips without a zone are left out.
    settings
        Needs a watermark: without it no window closes.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without a watermark.
    """
    options = settings.options if isinstance(settings.options, Options) else Options()
    if settings.watermark is None:
        raise StreamwardenError("CONFIG_INVALID", "zone_leaderboard: watermark: is required, to close windows")
    length = options.window // timedelta(microseconds=1)
    trips = (
        source.where(F.col(PICKUP_ZONE).isNotNull() & F.col(PICKUP).isNotNull())
        .withWatermark(PICKUP, f"{settings.watermark // timedelta(milliseconds=1)} milliseconds")
        # Spark drops late rows by the column of the watermark, so it stays.
        .select(
            (F.floor(F.unix_micros(PICKUP) / length) * length).alias("window_us"),
            F.col(PICKUP_ZONE).alias("zone"),
            PICKUP,
        )
    )
    emitted = trips.groupBy("window_us").transformWithState(
        statefulProcessor=Leaderboard(window_us=length, places=options.places),
        outputStructType=_EMITTED,
        outputMode="Update",
        timeMode="EventTime",
    )
    start = F.timestamp_micros("window_us").alias("window_start")
    return _named(emitted, settings).select(start, "rank", "zone_id", "borough", "zone", "trips", "is_closed")


def _named(rows: DataFrame, settings: JobSettings) -> DataFrame:
    """Add the names of zones, each as of the batch that wrote the row."""
    zones = settings.lookups.get("zones")
    if zones is None:
        return rows.withColumns({name: F.lit(None).cast("string") for name in ("borough", "zone")})
    names = zones.select(
        F.col("LocationID").cast("int").alias("zone_id"), F.col("Borough").alias("borough"), F.col("Zone").alias("zone")
    )
    # A zone that the table has twice must not make two rows of one rank.
    return rows.join(F.broadcast(names.dropDuplicates(["zone_id"])), "zone_id", "left")
