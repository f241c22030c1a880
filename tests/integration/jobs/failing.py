"""The job `counts`, with a failure chosen by its options."""

from __future__ import annotations

import os
import signal
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamwarden.driver.job_api import JobOptions, JobSettings
from tests.integration.jobs.counts import OUTPUTS as OUTPUTS

VERSION = 1


class Options(JobOptions):
    how: Literal["", "state", "outputs", "worker", "gone worker", "heap", "context"] = ""


_options = Options()


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    global _options
    assert isinstance(settings.options, Options)
    _options = settings.options
    if _options.how == "worker":
        source = source.where(F.udf(_look_up, "boolean")("key"))
    if _options.how == "gone worker":
        source = source.where(F.udf(_die, "boolean")("key"))
    if _options.how == "heap":
        source = source.withColumn("x", F.length(F.repeat(F.lit("x"), 2_000_000_000)).cast("double"))
    rows = F.count(F.lit(1))
    if _options.how in ("state", "heap"):
        # Used, or it would be optimised away.
        rows = (rows + 0 * F.sum("x")).cast("long")
    return source.groupBy("key").agg(rows.alias("rows"))


def outputs(batch: DataFrame) -> dict[str, DataFrame]:
    if _options.how == "outputs":
        _tariff("night")
    if _options.how == "context":
        # As a standalone master does that gives an application up.
        batch.sparkSession.sparkContext._jsc.sc().stopInNewThread()  # type: ignore[attr-defined]
    return {"main": batch}


def _tariff(name: str) -> float:
    return {"day": 1.0}[name]


def _look_up(key: int) -> bool:
    return _tariff("weekend") > key


def _die(key: int) -> bool:
    # As the kernel does it to a worker that takes too much memory.
    os.kill(os.getpid(), signal.SIGKILL)
    return key > 0
