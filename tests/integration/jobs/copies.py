"""A job that copies numbers from JSON records of Kafka."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from streamwarden.driver.job_api import JobSettings

VERSION = 1
OUTPUTS = {"main": StructType([StructField("number", LongType()), StructField("text", StringType())])}


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    return source.select("number", "text")
