"""The job `counts`, for a row of which it takes as many megabytes of heap, for a moment, as the row's key says."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamwarden.driver.job_api import JobSettings
from tests.integration.jobs.counts import OUTPUTS, VERSION

__all__ = ["OUTPUTS", "VERSION", "transform"]


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    taken = F.length(F.expr("repeat('x', int(key * 1000000))"))
    # Used, or it would be optimised away.
    rows = F.count(F.lit(1)) + 0 * F.sum("taken")
    return source.withColumn("taken", taken).groupBy("key").agg(rows.alias("rows"))
