from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.model.spec import JobSpec

pytestmark = pytest.mark.unit


def _writer(pause: timedelta) -> BatchWriter:
    spec = JobSpec.model_validate(
        {
            "name": "job",
            "module": "m",
            "source": {"kind": "files", "path": "landing"},
            "sinks": [{"table": "t", "mode": "append"}],
            "trigger": {"min_pause": pause},
        }
    )
    nothing: Any = None
    writer = BatchWriter(spec, nothing, {}, nothing, lambda: None)
    writer._write = lambda batch, batch_id: None  # type: ignore[method-assign]
    return writer


def _two_batches(writer: BatchWriter) -> float:
    nothing: Any = None
    began = time.monotonic()
    writer(nothing, 0)
    writer(nothing, 1)
    return time.monotonic() - began


def test_a_batch_waits_for_the_pause_after_the_one_before() -> None:
    assert _two_batches(_writer(timedelta(milliseconds=300))) >= 0.29
    assert _two_batches(_writer(timedelta(0))) < 10


def test_a_stop_does_not_wait_for_the_pause() -> None:
    writer = _writer(timedelta(seconds=60))
    threading.Timer(0.2, writer.hurry.set).start()
    assert _two_batches(writer) < 30


def test_a_guard_that_refuses_ends_the_batch() -> None:
    nothing: Any = None
    writer = _writer(timedelta(0))

    def refuse() -> None:
        raise PermissionError

    writer._guard = refuse
    with pytest.raises(PermissionError):
        writer(nothing, 0)
    assert writer.in_flight is None
