"""The file of Prometheus' targets follows the drivers, and outlives what it is made from."""

from __future__ import annotations

import json
import logging
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.status import DriverState, Heartbeat
from streamwarden.operations import target_file
from streamwarden.operations.status import metrics_targets
from streamwarden.operations.target_file import TargetFile
from streamwarden.runtime.processes import current_process
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.batches import make_place
from tests.unit.savepoints import test_catalog
from tests.unit.supervision.test_supervision import GONE, JOB, desired, launched

pytestmark = pytest.mark.unit


class Looks(threading.Event):
    """Stops after so many looks; before each pause it notes the file."""

    def __init__(self, file: Path, number: int) -> None:
        super().__init__()
        self.seen: list[object] = []
        self._file, self._number = file, number

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout == 15
        self.seen.append(json.loads(self._file.read_text()) if self._file.exists() else None)
        return len(self.seen) == self._number


Answers = list[dict[str, str] | Exception]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Answer with these addresses by job, one after the other; the drivers' documents have tests of their own."""
    given: Answers = []

    def next_answer(_: Workspace) -> dict[str, str]:
        answer = given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(target_file, "metrics_targets", next_answer)
    return given


def group(job: str, address: str) -> dict[str, object]:
    return {"targets": [address], "labels": {"profile": "test", "job": job}}


def test_the_list_follows_the_drivers_and_only_changes_are_logged(
    tmp_path: Path, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    workspace, file = make_place(tmp_path), tmp_path / "targets.json"
    answers += [{}, {"lamp": "one:9400"}, {"lamp": "one:9400"}, {"lamp": "two:9400", "tick": "one:9400"}]
    with caplog.at_level(logging.INFO):
        TargetFile(workspace, file).keep(timedelta(seconds=15), looks := Looks(file, 4))
    assert looks.seen == [
        [],
        [group("lamp", "one:9400")],
        [group("lamp", "one:9400")],
        [group("lamp", "two:9400"), group("tick", "one:9400")],
    ]
    assert [record.getMessage().removeprefix(f"{file}: ") for record in caplog.records] == [
        "no drivers",
        "lamp one:9400",
        "lamp two:9400, tick one:9400",
    ]


def test_an_outage_leaves_the_list_and_another_error_ends_the_command(
    tmp_path: Path, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    workspace, file = make_place(tmp_path), tmp_path / "targets.json"
    lamp = {"lamp": "one:9400"}
    answers += [lamp, StreamwardenError("S3_UNREACHABLE", "no answer"), OSError("no space"), lamp]
    TargetFile(workspace, file).keep(timedelta(seconds=15), looks := Looks(file, 4))
    assert looks.seen == [[group("lamp", "one:9400")]] * 4
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"{file} is not written: no answer", f"{file} is not written: no space"]
    answers.append(StreamwardenError("CONFIG_INVALID", "no profile"))
    with pytest.raises(StreamwardenError, match="no profile"):
        TargetFile(workspace, file).keep(timedelta(seconds=15), Looks(file, 1))


def test_a_new_process_writes_at_once_what_is_true_now(tmp_path: Path, answers: Answers) -> None:
    workspace, file = make_place(tmp_path), tmp_path / "targets.json"
    file.write_text(json.dumps([group("gone", "one:9400")]))
    answers.append({})
    TargetFile(workspace, file).keep(timedelta(seconds=15), looks := Looks(file, 1))
    assert looks.seen == [[]]


def test_a_driver_that_is_down_is_listed_unless_an_operation_works_on_its_job(tmp_path: Path) -> None:
    workspace = test_catalog.opened(tmp_path)
    documents, now = JobDocuments(workspace.storage, JOB), utc_now()
    documents.desired.write(desired())
    launched(workspace, "a1", process=GONE)
    beat = Heartbeat(
        incarnation="a1", at=now, started_at=now, state=DriverState.RUNNING, process=GONE, metrics="one:9400"
    )
    documents.heartbeat("a1").write(beat)
    assert metrics_targets(workspace) == {JOB: "one:9400"}
    test_catalog.operation(workspace, "running", current_process())
    assert metrics_targets(workspace) == {}
    # Its process died: nobody works on the job.
    test_catalog.operation(workspace, "running", GONE)
    assert metrics_targets(workspace) == {JOB: "one:9400"}
