"""The savepoint benchmark's job: counts and sums by key, with one state row for each key."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from streamwarden.driver.job_api import JobSettings

VERSION = 1
OUTPUTS = {
    "main": StructType(
        [StructField("key", StringType()), StructField("rows", LongType()), StructField("amount", DoubleType())]
    )
}


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:  # noqa: ARG001
    """Return count and sum of the batch's keys."""
    return source.groupBy("key").agg(F.count(F.lit(1)).alias("rows"), F.sum("amount").alias("amount"))
