"""Feature vectors of pickup zones: trips and revenue of the last 1, 6 and 24 hours, for models that are served by key.

A vector is as of ``as_of``: the end of the zone's newest step, or the watermark if that is later. It counts the trips
of ``(as_of - hours, as_of]``, in whole steps. A zone without new trips is written again when a step leaves one of its
periods, so that a vector never counts what is too old by the watermark.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar, Final

import polars as pl
import pyarrow as pa
from pydantic import Field, field_validator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, IntegerType, LongType, StructField, StructType, TimestampType

from spark_jobs.schemas import PICKUP, PICKUP_ZONE, cents
from streamwarden.driver.job_api import JobOptions, JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state import KEY_ID, KeyedBatch, KeyedJob, KeyedResult, StateField, with_keyed_state
from streamwarden.model.durations import Duration

__all__ = ["HOURS", "OUTPUTS", "VERSION", "Options", "ZoneFeatures", "transform"]

VERSION = 1

HOURS: Final = (1, 6, 24)
"""The periods of a vector."""

_HOUR_US: Final = 3_600_000_000

OUTPUTS: Mapping[str, StructType] = {
    "main": StructType(
        [
            StructField("zone_id", IntegerType()),
            StructField("as_of", TimestampType()),
            *(
                field
                for hours in HOURS
                for field in (
                    StructField(f"trips_{hours}h", LongType()),
                    StructField(f"revenue_{hours}h", DecimalType(18, 2)),
                )
            ),
        ]
    )
}


class Options(JobOptions):
    """Options of ``zone_features``."""

    step: Duration = Field(
        default=timedelta(minutes=10),
        description="Trips are counted in steps of this length, aligned to the epoch: state is at most 24 hours of them"
        " a zone. 10m: a period is exact to a sixth of the shortest one. It must divide an hour.",
    )

    @field_validator("step")
    @classmethod
    def _divides_an_hour(cls, value: timedelta) -> timedelta:
        if value < timedelta(seconds=1) or timedelta(hours=1) % value:
            raise ValueError("must divide an hour, and be at least 1s")
        return value


class ZoneFeatures(KeyedJob):
    """A row of state for each step of a zone that has trips; times are microseconds since the epoch.

    All rows of a zone have the same timer, so that a timer gets all of them.

    Parameters
    ----------
    step_us
        Length of a step.
    """

    fields: ClassVar = {
        "step": StateField(pa.int64()),
        "trips": StateField(pa.int64()),
        "cents": StateField(pa.int64()),
    }
    output: ClassVar = {
        "as_of": pa.int64(),
        **{f"{what}_{hours}": pa.int64() for hours in HOURS for what in ("trips", "cents")},
    }

    def __init__(self, step_us: int) -> None:
        self._step_us = step_us

    def update(self, batch: KeyedBatch) -> KeyedResult:
        """Add the trips of a batch to their steps."""
        new = batch.events.select(
            KEY_ID,
            step=pl.col("pickup").dt.epoch("us") // self._step_us * self._step_us,
            trips=pl.lit(1, pl.Int64),
            cents=pl.col("cents"),
        )
        known = batch.state.select(KEY_ID, *self.fields)
        steps = pl.concat([known, new]).group_by(KEY_ID, "step").agg(pl.col("trips", "cents").sum())
        return self._vectors(steps, batch.now)

    def on_timer(self, batch: KeyedBatch) -> KeyedResult:
        """Write vectors again of which a step has left a period."""
        return self._vectors(batch.state.select(KEY_ID, *self.fields), batch.now)

    def _vectors(self, steps: pl.DataFrame, now: int) -> KeyedResult:
        reached = now * 1000 // self._step_us * self._step_us
        as_of = pl.max_horizontal(pl.col("step").max().over(KEY_ID) + self._step_us, pl.lit(reached))
        dated = steps.with_columns(as_of=as_of, ends=pl.col("step") + self._step_us)
        periods = []
        for hours in HOURS:
            is_in = pl.col("ends") > pl.col("as_of") - hours * _HOUR_US
            periods += [pl.col(what).filter(is_in).sum().alias(f"{what}_{hours}") for what in ("trips", "cents")]
        vectors = dated.group_by(KEY_ID).agg(pl.col("as_of").first(), *periods)
        kept = dated.filter(pl.col("ends") > pl.col("as_of") - max(HOURS) * _HOUR_US)
        # The watermark at which a step next leaves a period.
        leaves = [
            pl.when(pl.col("ends") > pl.col("as_of") - hours * _HOUR_US).then(pl.col("ends") + hours * _HOUR_US)
            for hours in HOURS
        ]
        timer = pl.min_horizontal(*leaves).min().over(KEY_ID) // 1000
        return KeyedResult(kept.select(KEY_ID, *self.fields, timer_at=timer), vectors)


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Return the changed vectors of each batch.

    Parameters
    ----------
    source
        Rows of the ``trips`` table. Trips without a zone are left out.
    settings
        Needs a watermark: by it, steps leave their periods.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without a watermark.
    """
    options = settings.options if isinstance(settings.options, Options) else Options()
    if settings.watermark is None:
        raise StreamwardenError("CONFIG_INVALID", "zone_features: watermark: is required, or vectors never grow old")
    trips = (
        source.where(F.col(PICKUP_ZONE).isNotNull() & F.col(PICKUP).isNotNull())
        .withWatermark(PICKUP, f"{settings.watermark // timedelta(milliseconds=1)} milliseconds")
        .select(
            F.col(PICKUP_ZONE).alias("zone_id"), F.col(PICKUP).alias("pickup"), cents("total_amount").alias("cents")
        )
    )
    found = with_keyed_state(
        trips,
        ["zone_id"],
        ZoneFeatures(options.step // timedelta(microseconds=1)),
        buckets=settings.buckets,
        ttl=None,
        time="event",
        event_time="pickup",
        initial=settings.initial_state,
    )
    columns = []
    for hours in HOURS:
        revenue = (F.col(f"cents_{hours}").cast("decimal(18,0)") / 100).cast("decimal(18,2)")
        columns += [F.col(f"trips_{hours}").alias(f"trips_{hours}h"), revenue.alias(f"revenue_{hours}h")]
    return found.select("zone_id", F.timestamp_micros("as_of").alias("as_of"), *columns)
