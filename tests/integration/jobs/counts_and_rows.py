"""The job `counts`, which also hands its rows on as they came: to a table without keys, where one twice would show."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from streamwarden.driver.job_api import JobSettings
from tests.integration.jobs import counts

VERSION = 1
OUTPUTS = {**counts.OUTPUTS, "rows": StructType([StructField("key", LongType()), StructField("id", LongType())])}


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    # No other state: the stream joins its own aggregation, and is read once.
    none = F.lit(None).cast("bigint")
    counted = counts.transform(source, settings).select("key", "rows", none.alias("id"))
    return counted.unionByName(source.select("key", none.alias("rows"), "id"))


def outputs(batch: DataFrame) -> dict[str, DataFrame]:
    return {
        "main": batch.where("id is null").select("key", "rows"),
        "rows": batch.where("id is not null").select("key", "id"),
    }
