from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from streamwarden.driver import progress as module
from streamwarden.driver.pipeline.source import QuerySource
from streamwarden.driver.progress import ProgressListener
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.progress import BatchProgress, SourceProgress, Totals
from streamwarden.model.record import utc_now
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import JobDocuments

pytestmark = pytest.mark.unit

CHECKPOINT = "checkpoints/job/g000001"


class NoBacklog:
    def after(self, *_: object) -> SourceProgress | None:
        return None


class Away(LocalStorage):
    """A store that takes none of some documents while it is away."""

    def __init__(self, root: Path, *keys: str) -> None:
        super().__init__(root)
        self.keys: tuple[str, ...] = keys

    def _refuse(self, key: str) -> None:
        if key.endswith(self.keys):
            raise StreamwardenError("S3_UNREACHABLE", key)

    def read(self, key: str) -> Any:
        self._refuse(key)
        return super().read(key)

    def write(self, key: str, data: bytes) -> str:
        self._refuse(key)
        return super().write(key, data)


def event(batch: int) -> QueryProgressEvent:
    found: dict[str, Any] = {
        **{"id": "0" * 8 + "-0000-0000-0000-" + "0" * 12, "runId": "0" * 8 + "-0000-0000-0000-" + "0" * 12},
        **{"name": "job", "timestamp": "2026-01-01T00:00:00.000Z", "batchId": batch, "batchDuration": 10},
        **{"durationMs": {"addBatch": 5, "triggerExecution": 10}, "eventTime": {}, "stateOperators": []},
        **{"sources": [], "sink": {"description": "foreach", "numOutputRows": -1}, "observedMetrics": {}},
        **{"numInputRows": 7, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0},
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(found))


def listener(storage: LocalStorage, committed: Any, tries: Callable[[], int] = lambda: 1) -> ProgressListener:
    return ProgressListener(
        JobDocuments(storage, "job"),
        "i",
        1,
        CheckpointReader(storage, CHECKPOINT),
        lambda _: None,
        committed,
        lambda: None,
        tries,
        {"source": NoBacklog()},
        sources=lambda: [QuerySource("source")],
        memory=lambda: 700_000_000,
        files=False,
    )


def committed_batch(root: Path, batch: int) -> None:
    (root / CHECKPOINT / "commits").mkdir(parents=True, exist_ok=True)
    (root / CHECKPOINT / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_a_batch_is_in_the_progress_before_anybody_is_told_of_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    told: list[tuple[int, int | None]] = []

    def committed(done: BatchProgress) -> None:
        progress = JobDocuments(storage, "job").progress("i").read()
        told.append((done.batch, progress.last.batch if progress and progress.last else None))

    listens = listener(storage, committed)
    for batch in (0, 1):
        committed_batch(tmp_path, batch)
        listens.onQueryProgress(event(batch))
    assert told == [(0, 0), (1, 1)]
    progress = JobDocuments(storage, "job").progress("i").read()
    assert progress is not None and [done.process_bytes for done in progress.recent] == [700_000_000] * 2


def test_a_batch_counts_though_its_progress_can_t_be_written(tmp_path: Path) -> None:
    told: list[int] = []
    committed_batch(tmp_path, 0)
    listener(Away(tmp_path, ".json"), lambda done: told.append(done.batch)).onQueryProgress(event(0))
    assert told == [0]


@pytest.mark.parametrize("away", ["commits/1", "progress.json", "g000001.json"])
def test_nothing_is_lost_of_a_batch_that_the_store_was_away_for(tmp_path: Path, away: str) -> None:
    storage = Away(tmp_path)
    told: list[int] = []
    listens = listener(storage, lambda done: told.append(done.batch))
    for batch in range(4):
        committed_batch(tmp_path, batch)
        storage.keys = (away,) if batch == 1 else ()
        listens.onQueryProgress(event(batch))
    documents = JobDocuments(storage, "job")
    totals, progress = documents.totals(1).read(), documents.progress("i").read()
    assert told == [0, 1, 2, 3]
    assert totals is not None and (totals.batches, totals.rows_in, totals.through_batch) == (4, 28, 3)
    assert progress is not None and [done.batch for done in progress.recent] == [0, 1, 2, 3]


@pytest.mark.parametrize("away", ["commits/0", "progress.json", "g000001.json"])
@pytest.mark.parametrize("by", ["idle", "terminated", "the driver's own end"])
def test_the_last_batchs_report_needs_no_other_batch(tmp_path: Path, away: str, by: str) -> None:
    storage = Away(tmp_path, away)
    committed_batch(tmp_path, 0)
    listens = listener(storage, lambda _: None)
    listens.onQueryProgress(event(0))
    storage.keys = ()
    if by == "idle":
        listens.onQueryIdle(QueryIdleEvent("0", "0", "2026-01-01T00:00:00.000Z"))  # type: ignore[arg-type]
    elif by == "terminated":
        listens.onQueryTerminated(QueryTerminatedEvent("0", "0", None, None))  # type: ignore[arg-type]
    else:
        listens.catch_up()
    documents = JobDocuments(storage, "job")
    totals, progress = documents.totals(1).read(), documents.progress("i").read()
    assert totals is not None and totals.batches == 1 and progress is not None


@pytest.mark.parametrize("away", ["commits/0", "progress.json"])
def test_a_late_report_has_its_batchs_time_and_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    storage, began = Away(tmp_path, away), utc_now()
    driver = {"failures": 0}

    def committed(done: BatchProgress) -> None:
        driver["failures"] -= done.tries - 1

    listens = listener(storage, committed, lambda: driver["failures"] + 1)
    for batch, failed in enumerate([2, 1, 0]):
        committed_batch(tmp_path, batch)
        driver["failures"] += failed
        storage.keys = () if batch == 2 else (away,)
        monkeypatch.setattr(module, "utc_now", lambda batch=batch: began + batch * timedelta(minutes=1))
        listens.onQueryProgress(event(batch))
    found = JobDocuments(storage, "job").progress("i").read()
    assert found is not None
    assert [(done.batch, done.tries, done.at - began) for done in found.recent] == [
        *((0, 3, timedelta(0)), (1, 2, timedelta(minutes=1)), (2, 1, timedelta(minutes=2))),
    ]
    assert driver["failures"] == 0


def test_a_generation_counts_for_itself(tmp_path: Path) -> None:
    storage = Away(tmp_path, "g000001.json")
    listens = listener(storage, lambda _: None)
    committed_batch(tmp_path, 0)
    listens.onQueryProgress(event(0))
    storage.keys = ()
    # Of one that has failed, and from which the job has gone back; or that has taken this driver's place.
    other = Totals(generation=2, through_batch=5, batches=3, rows_in=9)
    documents = JobDocuments(storage, "job")
    documents.totals(2).write(other)
    listens.catch_up()
    mine = documents.totals(1).read()
    assert mine is not None and (mine.batches, mine.through_batch) == (1, 0)
    assert documents.totals(2).read() == other
