"""Trips, revenue, average fare and last activity of each pickup zone, since the beginning: a GROUP BY that goes on."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jobs.schemas import PICKUP, PICKUP_ZONE, cents
from streamwarden.driver.job_api import JobSettings

__all__ = ["OUTPUTS", "VERSION", "transform"]

VERSION = 1

OUTPUTS: Mapping[str, StructType] = {
    "main": StructType(
        [
            StructField("zone_id", IntegerType()),
            StructField("trips", LongType()),
            StructField("revenue", DecimalType(18, 2)),
            StructField("average_fare", DoubleType()),
            # Newest pickup, in event time.
            StructField("last_activity", TimestampType()),
        ]
    )
}


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:  # noqa: ARG001 - none is needed
    """Aggregate trips; emits one row for each zone that changed in the batch.

    State is a row for each zone and never expires: the City has 265 zones, and other numbers are quarantined.

    Parameters
    ----------
    source
        Rows of the ``trips`` table. No trip is late: without a watermark, none is dropped.
    settings
        Not used.
    """
    return (
        source.groupBy(F.col(PICKUP_ZONE).alias("zone_id"))
        .agg(
            F.count(F.lit(1)).alias("trips"),
            F.sum(cents("total_amount")).alias("revenue_cents"),
            F.sum(cents("fare_amount")).alias("fare_cents"),
            F.count("fare_amount").alias("fares"),
            F.max(PICKUP).alias("last_activity"),
        )
        .select(
            "zone_id",
            "trips",
            (F.col("revenue_cents").cast("decimal(18,0)") / 100).cast("decimal(18,2)").alias("revenue"),
            # One division of two exact numbers, so that every engine gets the same double.
            F.when(F.col("fares") > 0, F.col("fare_cents").cast("double") / (F.col("fares") * 100.0)).alias(
                "average_fare"
            ),
            "last_activity",
        )
    )
