"""A job that copies numbers, slowly, and fails when told to."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from streamwarden.driver.job_api import JobOptions, JobSettings

VERSION = 1
OUTPUTS = {"main": StructType([StructField("file", StringType()), StructField("bytes", LongType())])}


class Options(JobOptions):
    slow: float = 0.0
    fail_while: str | None = None
    chatter: int = 0


_options = Options()


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    global _options
    assert isinstance(settings.options, Options)
    _options = settings.options
    name, length = F.get_json_object("file", "$.name"), F.get_json_object("file", "$.length")
    return source.select(name.alias("file"), length.cast("long").alias("bytes"))


def outputs(batch: DataFrame) -> dict[str, DataFrame]:
    logging.getLogger(__name__).info("outputs of a batch")
    for number in range(_options.chatter):
        sys.stdout.write(f"line {number} of what a job's author forgot to remove\n")
    sys.stdout.flush()
    time.sleep(_options.slow)
    if _options.fail_while and Path(_options.fail_while).exists():
        raise ValueError("the marker file is there")
    return {"main": batch}
