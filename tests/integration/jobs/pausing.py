"""The job `numbers`, whose driver stops dead between the check of its lease and a commit, once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from streamwarden.driver.job_api import JobSettings
from streamwarden.driver.pipeline.query import RunningQuery
from streamwarden.driver.pipeline.sink import Arrived, DeltaSink, Written
from tests.integration.jobs import numbers

VERSION = numbers.VERSION
OUTPUTS = numbers.OUTPUTS
outputs = numbers.outputs

_write = DeltaSink.write
_abandon = RunningQuery.abandon


class Options(numbers.Options):
    pause_before: int
    marker: str
    by_spark: bool = False


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    options = settings.options
    assert isinstance(options, Options)

    def write(
        sink: DeltaSink, arrived: Arrived, batch_id: int, watermark_ms: int, *, guard: Callable[[], None]
    ) -> Written:
        def pausing() -> None:
            guard()
            marker = Path(options.marker)
            if batch_id == options.pause_before and not marker.exists():
                marker.touch()
                # To this thread: another one of the process might not have a core yet, and this one go on meanwhile.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

        sink._by_spark = options.by_spark
        return _write(sink, arrived, batch_id, watermark_ms, guard=pausing)

    def abandon(query: RunningQuery) -> None:
        # A driver that wakes and finds its lease gone would end the write that is to be seen here.
        while query._writer.in_flight is not None:
            time.sleep(0.05)
        _abandon(query)

    DeltaSink.write = write  # type: ignore[method-assign]
    RunningQuery.abandon = abandon  # type: ignore[method-assign]
    return numbers.transform(source, settings)
