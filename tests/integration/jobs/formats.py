"""A job that copies what several sources of Kafka give, each row as JSON."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from streamwarden.driver.job_api import JobSettings

VERSION = 1
SOURCES = {"json": None, "avro": None, "registry": None, "protobuf": None, "several": None, "alike": None}
OUTPUTS = {"main": StructType([StructField(name, StringType()) for name in ("source", "topic", "key", "row")])}
MICROS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def transform(sources: Mapping[str, DataFrame], settings: JobSettings) -> DataFrame:
    parts = [
        rows.select(
            F.lit(name).alias("source"), "_kafka.topic", "_kafka.key", F.to_json(F.struct("*"), MICROS).alias("row")
        )
        for name, rows in sorted(sources.items())
    ]
    return functools.reduce(DataFrame.unionByName, parts)
