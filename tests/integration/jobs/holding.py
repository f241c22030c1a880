"""The job `counts`, which stays in its batch while a file is there, and whose tasks may take their time."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame

from streamwarden.driver.job_api import JobOptions, JobSettings
from tests.integration.jobs import counts

VERSION = counts.VERSION
OUTPUTS = counts.OUTPUTS


class Options(JobOptions):
    marker: str
    row_ms: int = 0


_options: Options | None = None


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    global _options
    assert isinstance(settings.options, Options)
    _options = settings.options
    if _options.row_ms:
        # Not in Python: executors need no worker for it. It returns "null", as a text.
        source = source.where(f"java_method('java.lang.Thread', 'sleep', {_options.row_ms}L) IS NOT NULL")
    return counts.transform(source, settings)


def outputs(batch: DataFrame) -> dict[str, DataFrame]:
    assert _options is not None
    while Path(_options.marker).exists():
        time.sleep(0.05)
    return {"main": batch}
