"""Cards used too often: an alert for a burst of trips, and the trips of each card in sliding windows.

A trip is *hot* if, with it, at least ``trips`` trips of its card lie within ``within``. Hot trips that are at most
``within`` apart are one episode. An episode gives one alert, in the batch in which its first hot trip is known.

All times are of the events: trips may arrive in any order, up to the watermark. Later ones are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

import polars as pl
import pyarrow as pa
from pydantic import Field, field_validator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DecimalType, LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.schemas import PICKUP, cents
from streamwarden.driver.job_api import JobOptions, JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state import (
    KEY_ID,
    KeyedBatch,
    KeyedJob,
    KeyedResult,
    StateField,
    session_ids,
    sliding_windows,
    with_keyed_state,
)
from streamwarden.model.durations import Duration

__all__ = ["OUTPUTS", "VERSION", "CardVelocity", "Options", "outputs", "transform"]

VERSION = 1

OUTPUTS: Mapping[str, StructType] = {
    "main": StructType(
        [
            StructField("card_id", StringType()),
            # Pickup of the trip that made the episode hot.
            StructField("alert_at", TimestampType()),
            StructField("trips", LongType()),
            StructField("total_amount", DecimalType(18, 2)),
        ]
    ),
    "windows": StructType(
        [
            StructField("card_id", StringType()),
            StructField("window_start", TimestampType()),
            StructField("window_end", TimestampType()),
            StructField("trips", LongType()),
            StructField("total_amount", DecimalType(18, 2)),
            # The sink sets it from the watermark (`final_when_passed` of the spec).
            StructField("is_final", BooleanType()),
        ]
    ),
}


class Options(JobOptions):
    """Options of ``card_velocity``."""

    trips: int = Field(default=5, ge=2, description="So many trips of a card within `within` are a burst. 5.")
    within: Duration = Field(default=timedelta(minutes=3), description="Event time of a burst. 3m.")
    window: Duration = Field(default=timedelta(minutes=5), description="Length of a sliding window. 5m.")
    every: Duration = Field(
        default=timedelta(minutes=1), description="Distance of two windows, aligned to the epoch in UTC. 1m."
    )
    window_trips: int = Field(
        default=2, ge=1, description="Windows with fewer trips are not written. 2: a window of one trip says nothing."
    )

    @field_validator("within", "window", "every")
    @classmethod
    def _positive(cls, value: timedelta) -> timedelta:
        if value < timedelta(milliseconds=1):
            raise ValueError("must be at least 1ms")
        return value


class CardVelocity(KeyedJob):
    """A row of state for each trip that a later one may still count; `at` is its pickup in microseconds.

    Parameters
    ----------
    options
        The job's options.
    """

    fields: ClassVar = {
        "at": StateField(pa.int64()),
        "cents": StateField(pa.int64()),
        # Whether it was hot before the batch: an alert was given for its episode.
        "told": StateField(pa.bool_()),
    }
    output: ClassVar = {"alert": pa.bool_(), "at": pa.int64(), "trips": pa.int64(), "cents": pa.int64()}

    def __init__(self, options: Options) -> None:
        self._options = options
        self._within, self._window, self._every = (
            one // timedelta(microseconds=1) for one in (options.within, options.window, options.every)
        )
        # A trip at the watermark counts hot trips back to `within` before it, and each of those looks as far back.
        self._keep_ms = max(2 * self._within, self._window) // 1000 + 1

    def update(self, batch: KeyedBatch) -> KeyedResult:
        """Add the trips of a batch to their cards' recent ones."""
        trips = batch.events.select(
            KEY_ID,
            at=pl.col("pickup").dt.epoch("us"),
            cents=pl.col("cents").fill_null(0),
            told=pl.lit(False),
            is_new=pl.lit(True),
        )
        known = batch.state.select(KEY_ID, *self.fields, is_new=pl.lit(False))
        recent = pl.concat([known, trips]).sort(KEY_ID, "at")
        # Most trips are far from the next one of their card: they are in no burst, and alone in each window.
        reach = max(self._within, self._window)
        follows = (pl.col(KEY_ID) == pl.col(KEY_ID).shift(1)) & (pl.col("at").diff() <= reach)
        is_near = recent.select((follows | follows.shift(-1)).fill_null(False)).to_series()
        near = recent.filter(is_near)
        burst = near.rolling("at", period=f"{self._within}i", group_by=KEY_ID, closed="both")
        counted = burst.agg(pl.len().alias("trips").cast(pl.Int64), pl.col("cents").sum())
        is_hot = counted["trips"] >= self._options.trips
        hot = counted.with_columns(near["told"]).filter(is_hot)
        hot = hot.with_columns(session_ids(hot, start="at", end="at", gap=self._within))
        episodes = hot.group_by("session", maintain_order=True).agg(
            pl.col(KEY_ID, "at", "trips", "cents").first(), pl.col("told").any()
        )
        alerts = episodes.filter(~pl.col("told")).with_columns(alert=True)
        state = pl.concat([recent.filter(~is_near), near.with_columns(told=is_hot)])
        windows = self._windows(near) if self._options.window_trips > 1 else self._windows(recent)
        return KeyedResult(
            state.with_columns(expires_at=pl.col("at") // 1000 + self._keep_ms),
            pl.concat([alerts, windows], how="diagonal"),
        )

    def _windows(self, trips: pl.DataFrame) -> pl.DataFrame:
        new = trips.filter("is_new")
        windows = sliding_windows(new, trips, at="at", size=self._window, every=self._every, sums=["cents"])
        windows = windows.filter(pl.col("rows") >= self._options.window_trips)
        return windows.select(KEY_ID, at="window_start", trips="rows", cents="cents", alert=False)


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Return the alerts and the changed windows of each batch.

    Parameters
    ----------
    source
        Rows of the ``trips`` table. Trips without a card are left out.
    settings
        Needs a watermark: state would grow without bound.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without a watermark.
    """
    options = settings.options if isinstance(settings.options, Options) else Options()
    if settings.watermark is None:
        raise StreamwardenError("CONFIG_INVALID", "card_velocity: watermark: is required, or state grows for ever")
    trips = (
        source.where(F.col("card_id").isNotNull() & F.col(PICKUP).isNotNull())
        .withWatermark(PICKUP, f"{settings.watermark // timedelta(milliseconds=1)} milliseconds")
        .select("card_id", F.col(PICKUP).alias("pickup"), cents("total_amount").alias("cents"))
    )
    return with_keyed_state(
        trips,
        ["card_id"],
        CardVelocity(options),
        buckets=settings.buckets,
        ttl=None,
        time="event",
        event_time="pickup",
    ).withColumn("window_us", F.lit(options.window // timedelta(microseconds=1)))


def outputs(batch: DataFrame) -> Mapping[str, DataFrame]:
    """Split a batch into alerts (``main``) and ``windows``."""
    amount = (F.col("cents").cast("decimal(18,0)") / 100).cast("decimal(18,2)").alias("total_amount")
    at = F.timestamp_micros("at")
    return {
        "main": batch.where("alert").select("card_id", at.alias("alert_at"), "trips", amount),
        "windows": batch.where("not alert").select(
            "card_id",
            at.alias("window_start"),
            F.timestamp_micros(F.col("at") + F.col("window_us")).alias("window_end"),
            "trips",
            amount,
        ),
    }
