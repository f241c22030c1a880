"""The job `pairs`, whose first table has newly got a column."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from tests.integration.jobs import pairs

VERSION = pairs.VERSION
OUTPUTS = {**pairs.OUTPUTS, "main": StructType([*pairs.OUTPUTS["main"].fields, StructField("size", LongType())])}
Options = pairs.Options
transform = pairs.transform


def outputs(batch: DataFrame) -> dict[str, DataFrame]:
    marked = F.lit(pairs._options.mark).alias("marked")
    return {**pairs.outputs(batch), "main": batch.select("file", marked, F.col("bytes").alias("size"))}
