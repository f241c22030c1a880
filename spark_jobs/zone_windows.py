"""Trips, revenue and average fare by pickup zone in tumbling windows of event time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from pydantic import Field, field_validator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jobs.schemas import PICKUP, PICKUP_ZONE, cents
from streamwarden.driver.job_api import JobOptions, JobSettings, observe_event_ends
from streamwarden.errors import StreamwardenError
from streamwarden.model.durations import Duration

__all__ = ["OUTPUTS", "VERSION", "Options", "transform"]

VERSION = 1

OUTPUTS: Mapping[str, StructType] = {
    "main": StructType(
        [
            StructField("window_start", TimestampType()),
            StructField("window_end", TimestampType()),
            StructField("zone_id", IntegerType()),
            StructField("trips", LongType()),
            StructField("revenue", DecimalType(18, 2)),
            StructField("average_fare", DoubleType()),
            # transform does not emit it: the sink sets it from the watermark (`final_when_passed` of the spec).
            StructField("is_final", BooleanType()),
        ]
    )
}


class Options(JobOptions):
    """Options of ``zone_windows``."""

    window: Duration = Field(
        default=timedelta(hours=1), description="Length of a window, aligned to the epoch in UTC. 1h."
    )

    @field_validator("window")
    @classmethod
    def _whole_seconds(cls, value: timedelta) -> timedelta:
        if value < timedelta(seconds=1) or value % timedelta(seconds=1):
            raise ValueError("must be whole seconds, at least 1s")
        return value


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Aggregate trips; emits one row for each window and zone that changed in the batch.

    Parameters
    ----------
    source
        Rows of the ``trips`` table.
    settings
        Needs a watermark: without it no window becomes final, and state grows without bound.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without a watermark.
    """
    options = settings.options if isinstance(settings.options, Options) else Options()
    if settings.watermark is None:
        raise StreamwardenError("CONFIG_INVALID", "zone_windows: watermark: is required, to end windows")
    seconds = int(options.window.total_seconds())
    window = F.window(PICKUP, f"{seconds} seconds")
    # Equals the window function's end, but the late count needs it before the aggregation.
    end = F.timestamp_seconds(F.floor(F.unix_seconds(PICKUP) / seconds) * seconds + seconds)
    trips = source.withWatermark(PICKUP, f"{int(settings.watermark.total_seconds() * 1000)} milliseconds")
    fares = F.count("fare_amount")
    return (
        observe_event_ends(trips, end)
        .groupBy(window.alias("window"), F.col(PICKUP_ZONE).alias("zone_id"))
        .agg(
            F.count(F.lit(1)).alias("trips"),
            F.sum(cents("total_amount")).alias("revenue_cents"),
            F.sum(cents("fare_amount")).alias("fare_cents"),
            fares.alias("fares"),
        )
        .select(
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "zone_id",
            "trips",
            (F.col("revenue_cents").cast("decimal(18,0)") / 100).cast("decimal(18,2)").alias("revenue"),
            # One division of two exact numbers, so that every engine gets the same double.
            F.when(F.col("fares") > 0, F.col("fare_cents").cast("double") / (F.col("fares") * 100.0)).alias(
                "average_fare"
            ),
        )
    )
