"""The job `counts`, with something in its state that is another each time that a batch is computed."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamwarden.driver.job_api import JobSettings
from tests.integration.jobs.counts import OUTPUTS, VERSION

__all__ = ["OUTPUTS", "VERSION", "transform"]


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    # Used, or it would be optimised away.
    rows = F.count(F.lit(1)) + 0 * F.sum("drawn")
    return source.withColumn("drawn", F.expr("uniform(0, 1000000)")).groupBy("key").agg(rows.alias("rows"))
