"""A job with state: rows counted by key."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from streamwarden.driver.job_api import JobSettings

VERSION = 1
OUTPUTS = {"main": StructType([StructField("key", LongType()), StructField("rows", LongType())])}


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    return source.groupBy("key").agg(F.count(F.lit(1)).alias("rows"))
