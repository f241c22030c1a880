"""A job that reads another job's table: the files of `numbers`, counted by their size."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from streamwarden.driver.job_api import JobSettings

VERSION = 1
OUTPUTS = {"main": StructType([StructField("bytes", LongType()), StructField("files", LongType())])}


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    return source.groupBy("bytes").agg(F.count(F.lit(1)).alias("files"))
