"""The thread that writes batches down: when, and what it does about trouble."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from streamwarden.driver import recorder as module
from streamwarden.driver.recorder import BatchRecorder
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.model.profile import ProgressTableSpec
from streamwarden.model.progress import BatchProgress, Progress
from streamwarden.model.record import utc_now
from streamwarden.model.status import DriverState, Heartbeat, Launch
from streamwarden.runtime.processes import current_process
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.batches import made_batch, make_place
from tests.http_receiver import wait_until

pytestmark = pytest.mark.unit


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_place(tmp_path)


Maker = Callable[..., BatchRecorder]


@pytest.fixture
def recorder(workspace: Workspace) -> Maker:
    def make(incarnation: str = "i5", **spec: Any) -> BatchRecorder:
        made = BatchRecorder(
            workspace, "lamp", incarnation, 2, ProgressTableSpec.model_validate({"every": "1h", "batches": 40, **spec})
        )
        made.start()
        return made

    return make


def ids(workspace: Workspace) -> list[tuple[str, int]]:
    if ProgressTable(workspace)._open(make=False) is None:
        return []
    return [(row["incarnation"], row["batch"]) for row in ProgressTable(workspace).read("lamp")]


def reported(
    workspace: Workspace, incarnation: str, batches: list[BatchProgress], *, at: timedelta = timedelta(0)
) -> None:
    """Write what a driver leaves behind."""
    documents = JobDocuments(workspace.storage, "lamp")
    now = utc_now()
    documents.launch(incarnation).write(Launch(incarnation=incarnation, at=now, by="test", reason="", digest=""))
    documents.heartbeat(incarnation).write(
        Heartbeat(
            incarnation=incarnation,
            at=now,
            started_at=now,
            state=DriverState.RUNNING,
            process=current_process(),
            generation=1,
        )
    )
    if batches:
        documents.progress(incarnation).write(
            Progress(incarnation=incarnation, at=now - at, last=batches[-1], recent=batches)
        )


def test_rows_are_written_after_some_after_a_while_and_at_the_end(workspace: Workspace, recorder: Maker) -> None:
    counting = recorder(batches=3)
    for number in range(2):
        counting.add(made_batch(number))
    time.sleep(0.3)
    assert ids(workspace) == [] and counting.held == 2
    counting.add(made_batch(2))
    wait_until(lambda: counting.held == 0)
    assert ids(workspace) == [("i5", 0), ("i5", 1), ("i5", 2)]
    counting.add(made_batch(3))
    assert counting.close(10)
    assert ids(workspace)[-1] == ("i5", 3)

    timed = recorder("i6", every="100ms")
    timed.add(made_batch(4))
    wait_until(lambda: ids(workspace)[-1] == ("i6", 4))
    assert timed.close(10)


def test_nothing_to_write_makes_no_table(workspace: Workspace, recorder: Maker) -> None:
    assert recorder().close(10)
    assert not (workspace.root / "tables").exists()


def test_a_table_that_hangs_delays_neither_a_batch_nor_the_end(
    workspace: Workspace, recorder: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hang(*_: object) -> int:
        inside.set()
        go_on.wait(60)
        return 0

    monkeypatch.setattr(ProgressTable, "append", hang)
    hung = recorder(batches=1)
    hung.add(made_batch(0))
    assert inside.wait(10)
    began = time.monotonic()
    for number in range(1, 500):
        hung.add(made_batch(number))
    assert not hung.close(0.3)
    assert time.monotonic() - began < 20
    go_on.set()


def test_a_table_that_is_away_is_said_once_and_caught_up_with(
    workspace: Workspace, recorder: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    tables = workspace.root / "tables"
    tables.mkdir(parents=True)
    (tables / "job_progress").write_text("in the way")
    away = recorder(every="100ms")
    for number in range(5):
        away.add(made_batch(number))

    def told() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if "batches wait to be written" in text]

    wait_until(lambda: bool(told()))
    # Further tries, of which nothing is said.
    time.sleep(1)
    assert away.held == 5
    said = told()
    assert len(said) == 1 and "PROGRESS_TABLE_FAILED" in said[0]
    (tables / "job_progress").unlink()
    wait_until(lambda: away.held == 0)
    assert away.close(10)
    assert ids(workspace) == [("i5", number) for number in range(5)]


def test_more_than_can_be_held_costs_the_oldest_and_a_warning(
    workspace: Workspace, recorder: Maker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_HELD", 10)
    full = recorder()
    for number in range(13):
        full.add(made_batch(number))
    assert full.close(10)
    assert ids(workspace) == [("i5", number) for number in range(3, 13)]
    assert "3 batches will be missing" in caplog.text


def test_what_earlier_incarnations_left_comes_first(workspace: Workspace, recorder: Maker) -> None:
    # i1 wrote all, i2 half of it, i3 nothing, i4 never had a batch; i0's rows are known to be there by i1's.
    batches = [made_batch(number) for number in range(12)]
    table = ProgressTable(workspace)
    reported(workspace, "i0", batches[:2])
    reported(workspace, "i1", batches[2:4])
    reported(workspace, "i2", batches[4:8])
    reported(workspace, "i3", batches[8:10])
    reported(workspace, "i4", [])
    reported(workspace, "i5", [])
    table.append("lamp", "i1", 1, batches[2:4])
    table.append("lamp", "i2", 1, batches[4:6])
    made = recorder()
    made.add(batches[10])
    assert made.close(10)
    wanted = [("i1", 2), ("i1", 3), *(("i2", n) for n in range(4, 8)), ("i3", 8), ("i3", 9), ("i5", 10)]
    assert ids(workspace) == wanted
    assert {row["incarnation"]: row["generation"] for row in table.read("lamp")} == {"i1": 1, "i2": 1, "i3": 1, "i5": 2}
    # And once.
    reported(workspace, "i5", [batches[10]])
    assert recorder("i6").close(10)
    assert ids(workspace) == wanted


def test_what_is_too_old_is_left_alone(workspace: Workspace, recorder: Maker) -> None:
    # The table forgets what it has of an incarnation; it would be added a second time.
    reported(workspace, "i1", [made_batch(1)], at=timedelta(days=8))
    assert recorder().close(10)
    assert ids(workspace) == []


def test_own_rows_wait_until_what_was_left_is_there(
    workspace: Workspace, recorder: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the table would say of this incarnation that those before it have theirs.
    reported(workspace, "i1", [made_batch(1)])
    broken = JobDocuments.progress
    monkeypatch.setattr(JobDocuments, "progress", lambda self, name: 1 / 0)
    waits = recorder(every="100ms")
    waits.add(made_batch(2))
    time.sleep(0.5)
    assert ids(workspace) == [] and waits.held == 1
    monkeypatch.setattr(JobDocuments, "progress", broken)
    wait_until(lambda: waits.held == 0)
    assert waits.close(10)
    assert ids(workspace) == [("i1", 1), ("i5", 2)]
