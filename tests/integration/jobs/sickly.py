"""The job `hungry`, which fails in every batch where there are seven state partitions."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamwarden.driver.job_api import JobSettings
from tests.integration.jobs import hungry
from tests.integration.jobs.counts import OUTPUTS, VERSION

__all__ = ["OUTPUTS", "VERSION", "transform"]


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    counted = hungry.transform(source, settings)
    if source.sparkSession.conf.get("spark.sql.shuffle.partitions") == "7":
        return counted.withColumn("rows", F.col("rows") + F.raise_error(F.lit("seven is too many")).cast("bigint"))
    return counted
