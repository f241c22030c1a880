"""The job `numbers`, whose driver stops dead between the check of its lease and a commit, once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from streamwarden.driver.job_api import JobSettings
from streamwarden.driver.sink import DeltaSink, Written
from tests.integration.jobs import numbers

VERSION = numbers.VERSION
OUTPUTS = numbers.OUTPUTS
outputs = numbers.outputs

_append = DeltaSink._append


class Options(numbers.Options):
    pause_before: int
    marker: str


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    options = settings.options
    assert isinstance(options, Options)

    def append(sink: DeltaSink, batch: DataFrame, arrived: Any, batch_id: int, guard: Callable[[], None]) -> Written:
        def pausing() -> None:
            guard()
            marker = Path(options.marker)
            if batch_id == options.pause_before and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGSTOP)
                # Another thread may be the one that the signal goes to, and not have a core yet.
                time.sleep(1)

        return _append(sink, batch, arrived, batch_id, pausing)

    DeltaSink._append = append  # type: ignore[method-assign]
    return numbers.transform(source, settings)
