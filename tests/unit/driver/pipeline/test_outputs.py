"""What a driver does to its tables before the first batch, and a driver that is paused there and wakes too late."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from streamwarden.driver.pipeline import outputs
from streamwarden.driver.pipeline.outputs import clear_unborn, start_outputs
from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog, application_id
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.runtime.lease import LeaseHolder
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit

JOB = "job"
ELSEWHERE = ProcessRef(host="another-machine", boot="b", pid=1, started=0)


class NoSpark:
    """A session that no test here comes to use."""

    def __init__(self) -> None:
        self.conf: dict[str, str] = {}


SESSION = cast(SparkSession, NoSpark())


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A table of four batches of generation 1, and a checkpoint document that puts it back to the second."""
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    found = open_workspace("test", config=tmp_path / "config")
    for number in range(4):
        batch(found, number, generation=1)
    JobDocuments(found.storage, JOB).checkpoint.write(reference())
    return found


def reference(**values: Any) -> CheckpointRef:
    back = [OutputStart(table="t", version=1)]
    given = {"generation": 2, "highest": 2, "outputs": back, **values}
    return CheckpointRef(job=JOB, path="checkpoints/job/g000002", since=NOW, reason="for the test", **given)


NOW = utc_now()


def batch(workspace: Workspace, number: int, *, generation: int = 2) -> None:
    ids = CommitProperties(app_transactions=[Transaction(application_id(JOB, generation), number)])
    rows = pa.table({"batch": [number], "generation": [generation]})
    write_deltalake(workspace.table("t"), rows, mode="append", commit_properties=ids)


def rows(workspace: Workspace) -> list[tuple[int, int]]:
    found = DeltaTable(workspace.table("t")).to_pyarrow_table().to_pylist()
    return sorted((row["generation"], row["batch"]) for row in found)


def driver(workspace: Workspace, name: str, *, ttl: float = 60) -> LeaseHolder:
    made = LeaseHolder(JobDocuments(workspace.storage, JOB), name, ELSEWHERE, timedelta(seconds=ttl))
    made.acquire(wait=timedelta(seconds=1))
    return made


def document(workspace: Workspace) -> CheckpointRef:
    found = JobDocuments(workspace.storage, JOB).checkpoint.read()
    assert found is not None
    return found


def begin(workspace: Workspace, guard: Callable[[], None], read: CheckpointRef | None = None) -> None:
    start_outputs(SESSION, workspace, read or document(workspace), ["t"], guard=guard)


def takes_over(workspace: Workspace) -> None:
    """Another machine's driver does what the paused one was to do, and commits two batches."""
    successor = driver(workspace, "successor")
    begin(workspace, successor.renew)
    for number in (2, 3):
        batch(workspace, number)


ALL = [(1, 0), (1, 1), (2, 2), (2, 3)]


def test_tables_are_put_back_once_and_struck(workspace: Workspace) -> None:
    holder = driver(workspace, "first")
    begin(workspace, holder.renew)
    assert rows(workspace) == ALL[:2]
    assert document(workspace) == reference(outputs=[], fenced=True)
    before = DeltaTable(workspace.table("t")).version()
    begin(workspace, holder.renew)
    assert DeltaTable(workspace.table("t")).version() == before


def test_a_driver_that_was_paused_after_it_read_the_document_writes_nothing(workspace: Workspace) -> None:
    paused = driver(workspace, "paused", ttl=0.2)
    read = document(workspace)
    takes_over(workspace)
    with pytest.raises(StreamwardenError, match="LEASE_LOST"):
        begin(workspace, paused.renew, read)
    assert rows(workspace) == ALL


@pytest.mark.parametrize("at", ["fence", "put-back", "entry"])
def test_nor_does_one_that_was_paused_right_after_it_asked(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The answer is old by the time of the write: what is written is bound to what was looked at before."""
    paused = driver(workspace, "paused", ttl=0.2)
    check, asked = outputs._check_same, 0

    def checked(found: CheckpointRef | None, read: CheckpointRef) -> CheckpointRef:
        nonlocal asked
        same = check(found, read)
        asked += 1
        if asked == ["fence", "put-back", "entry"].index(at) + 1:
            monkeypatch.setattr(outputs, "_check_same", check)
            takes_over(workspace)
        return same

    monkeypatch.setattr(outputs, "_check_same", checked)
    with pytest.raises(StreamwardenError, match="LEASE_LOST"):
        begin(workspace, paused.renew)
    assert rows(workspace) == ALL
    assert document(workspace) == reference(outputs=[], fenced=True)


def test_one_that_holds_its_lease_yet_heeds_a_document_that_was_changed(workspace: Workspace) -> None:
    """As by an operation that has found it silent, and the driver wakes before its successor is there."""
    holder = driver(workspace, "woken")
    read = document(workspace)
    other = reference(generation=1, highest=3, outputs=[OutputStart(table="t", version=3)])
    JobDocuments(workspace.storage, JOB).checkpoint.write(other)
    with pytest.raises(StreamwardenError, match="DOCUMENT_CONFLICT"):
        begin(workspace, holder.renew, read)
    assert len(rows(workspace)) == 4 and document(workspace) == other


def test_what_is_to_be_put_back_since_is_not_struck(workspace: Workspace) -> None:
    """The same generation, gone back to once more while the driver was about to strike its own entry."""
    holder = driver(workspace, "woken")
    other = reference(highest=3, outputs=[OutputStart(table="t", version=0)])
    asked = 0

    def guard() -> None:
        nonlocal asked
        holder.renew()
        asked += 1
        if asked == 3:
            JobDocuments(workspace.storage, JOB).checkpoint.write(other)

    with pytest.raises(StreamwardenError, match="DOCUMENT_CONFLICT"):
        begin(workspace, guard)
    assert document(workspace) == other


def test_another_commit_meanwhile_is_no_reason_to_give_up(workspace: Workspace) -> None:
    """OPTIMIZE, as a rule."""
    holder = driver(workspace, "first")
    asked = 0

    def guard() -> None:
        nonlocal asked
        holder.renew()
        asked += 1
        if asked == 2:
            batch(workspace, 7)

    begin(workspace, guard)
    assert rows(workspace) == ALL[:2]


# -- a table that was never finished -----------------------------------------------------------------------------------


def log_of(workspace: Workspace) -> Path:
    return Path(workspace.table("new")) / "_delta_log"


@pytest.mark.parametrize("left", [[], [".0.json.tmp"]])
def test_what_a_killed_creation_left_is_removed(workspace: Workspace, left: list[str]) -> None:
    log_of(workspace).mkdir(parents=True)
    for name in left:
        (log_of(workspace) / name).touch()
    clear_unborn(workspace, "new", guard=lambda: None)
    assert not log_of(workspace).exists()
    clear_unborn(workspace, "t", guard=lambda: None)
    assert DeltaLog(workspace.files, "t").latest == 3


@pytest.mark.parametrize("left", [[], [".0.json.tmp"]])
def test_a_table_that_the_successor_has_made_meanwhile_stays(workspace: Workspace, left: list[str]) -> None:
    log_of(workspace).mkdir(parents=True)
    for name in left:
        (log_of(workspace) / name).touch()

    def guard() -> None:
        write_deltalake(workspace.table("new"), pa.table({"batch": [0]}))

    clear_unborn(workspace, "new", guard=guard)
    assert DeltaTable(workspace.table("new")).version() == 0


def test_nothing_is_removed_by_a_driver_that_lost_its_lease(workspace: Workspace) -> None:
    log_of(workspace).mkdir(parents=True)
    (log_of(workspace) / ".0.json.tmp").touch()
    paused = driver(workspace, "paused", ttl=0.2)
    driver(workspace, "successor")
    with pytest.raises(StreamwardenError, match="LEASE_LOST"):
        clear_unborn(workspace, "new", guard=paused.renew)
    assert (log_of(workspace) / ".0.json.tmp").exists()
