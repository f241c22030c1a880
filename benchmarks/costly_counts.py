"""A job with costly rows after the shuffle, for recordings of loads."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from streamwarden.driver.job_api import JobSettings

VERSION = 1
OUTPUTS = {"main": StructType([StructField("key", StringType()), StructField("rows", LongType())])}
_HASHES = 400
"""Nested hashes of each row. 400: about half a millisecond, so that a few thousand rows keep a core busy."""


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:  # noqa: ARG001
    """Return each key's count, after hashing its rows many times in the partition that counts them."""
    steps = F.sequence(F.lit(1), F.lit(_HASHES))
    hashed = F.aggregate(steps, F.col("key"), lambda text, _: F.sha2(text, 256))
    # By key, like the state: the work is done where the state is, by as many tasks.
    costly = source.repartition("key").withColumn("hashed", hashed)
    return costly.groupBy("key").agg(F.count("hashed").alias("rows"))
