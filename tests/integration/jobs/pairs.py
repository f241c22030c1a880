"""A stateless job with two output tables, whose second can be made to fail after the first is written."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from streamwarden.driver.job_api import JobOptions, JobSettings

VERSION = 1
OUTPUTS = {
    "main": StructType([StructField("file", StringType()), StructField("marked", StringType())]),
    "second": StructType([StructField("file", StringType()), StructField("bytes", LongType())]),
}


class Options(JobOptions):
    mark: str = "old"
    broken: bool = False


_options = Options()


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    global _options
    assert isinstance(settings.options, Options)
    _options = settings.options
    name, length = F.get_json_object("file", "$.name"), F.get_json_object("file", "$.length")
    return source.select(name.alias("file"), length.cast("long").alias("bytes"))


def outputs(batch: DataFrame) -> dict[str, DataFrame]:
    size = F.raise_error(F.lit("broken as it was told")).cast("bigint") if _options.broken else F.col("bytes")
    return {
        "main": batch.select("file", F.lit(_options.mark).alias("marked")),
        "second": batch.select("file", size.alias("bytes")),
    }
