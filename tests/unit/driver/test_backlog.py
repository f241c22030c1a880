from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.control.documents import SourceProgress
from streamwarden.control.spec import DeltaSource, FileSource
from streamwarden.control.workspace import Workspace, open_workspace
from streamwarden.driver.backlog import DeltaBacklog, FileBacklog, KafkaBacklog

pytestmark = pytest.mark.unit

CHECKPOINT = "checkpoints/job/g000001"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


def land(workspace: Workspace, name: str, at_ms: int, data: bytes = b"x") -> dict[str, Any]:
    path = workspace.root / "landing" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
    return {"path": path.as_uri(), "timestamp": at_ms}


def taken(workspace: Workspace, batch: int, entries: list[dict[str, Any]], *, suffix: str = "") -> None:
    path = workspace.root / CHECKPOINT / "sources" / "0" / f"{batch}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", *(json.dumps({"batchId": batch, **entry}) for entry in entries)]))


def files(workspace: Workspace) -> FileBacklog:
    return FileBacklog(workspace, FileSource(kind="files", path="landing"), CHECKPOINT)


def offset(number: int) -> str:
    return json.dumps({"logOffset": number})


def test_files_left_are_those_younger_than_the_last_taken(workspace: Workspace) -> None:
    first = [land(workspace, "a.txt", 1_000), land(workspace, "with blank.txt", 2_000)]
    taken(workspace, 0, first)
    land(workspace, "same moment.txt", 2_000)
    land(workspace, "later.txt", 3_000)
    land(workspace, "day=1/down.txt", 3_500)
    land(workspace, "deep/down.txt", 3_500)
    land(workspace, ".hidden", 3_000)
    land(workspace, "_hidden", 3_000)
    land(workspace, "half.txt._COPYING_", 3_000)
    land(workspace, "empty.txt", 3_000, b"")
    assert files(workspace).after(None, offset(0)) == SourceProgress(unit="files", taken=2, pending=4)


def test_files_of_one_moment_are_told_apart_over_batches(workspace: Workspace) -> None:
    entries = [land(workspace, f"{number}.txt", 1_000) for number in range(4)]
    backlog = files(workspace)
    for batch, left in enumerate([3, 2, 1, 0]):
        taken(workspace, batch, [entries[batch]])
        before = offset(batch - 1) if batch else None
        assert backlog.after(before, offset(batch)) == SourceProgress(unit="files", taken=1, pending=left)


def test_a_batch_without_input_tells_what_waits(workspace: Workspace) -> None:
    """As the one that Spark owes after a restart: a job is not caught up with what came meanwhile because of it."""
    backlog = files(workspace)
    taken(workspace, 0, [land(workspace, "a.txt", 1_000)])
    taken(workspace, 1, [land(workspace, "b.txt", 1_000)])
    assert backlog.after(offset(1), offset(1)) == SourceProgress(unit="files", taken=0, pending=0)
    land(workspace, "c.txt", 1_000)
    land(workspace, "d.txt", 2_000)
    assert backlog.after(offset(1), offset(1)) == SourceProgress(unit="files", taken=0, pending=2)


def test_a_compacted_log_counts_its_own_batch_only(workspace: Workspace) -> None:
    old = {**land(workspace, "a.txt", 1_000), "batchId": 8}
    new = land(workspace, "b.txt", 2_000)
    taken(workspace, 9, [old, new], suffix=".compact")
    assert files(workspace).after(offset(8), offset(9)) == SourceProgress(unit="files", taken=1, pending=0)


def test_files_that_were_cleaned_away_hide_nothing(workspace: Workspace) -> None:
    gone = land(workspace, "a.txt", 1_000)
    taken(workspace, 0, [gone])
    (workspace.root / "landing" / "a.txt").unlink()
    land(workspace, "b.txt", 2_000)
    assert files(workspace).after(None, offset(0)) == SourceProgress(unit="files", taken=1, pending=1)


@pytest.mark.parametrize("end", [None, "None", "null", "", "{}"])
def test_an_offset_that_says_nothing_is_no_progress(workspace: Workspace, end: str | None) -> None:
    assert files(workspace).after(None, end) is None
    assert DeltaBacklog(workspace, DeltaSource(kind="delta", table="t")).after(None, end) is None


def commit(workspace: Workspace, version: int, *actions: dict[str, Any]) -> None:
    path = workspace.root / "tables" / "t" / "_delta_log" / f"{version:020d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def at(version: int, index: int = -1) -> str:
    return json.dumps({"reservoirVersion": version, "index": index})


def test_versions_left_are_those_that_bring_rows(workspace: Workspace) -> None:
    commit(workspace, 0, {"metaData": {}})
    for version in (1, 2, 3):
        commit(workspace, version, {"add": {"path": str(version), "dataChange": True}})
    commit(workspace, 4, {"remove": {"path": "1"}}, {"add": {"path": "c", "dataChange": False}})
    commit(workspace, 5, {"txn": {"appId": "x", "version": 1}})
    backlog = DeltaBacklog(workspace, DeltaSource(kind="delta", table="t"))
    assert backlog.after(None, at(2)) == SourceProgress(unit="versions", taken=2, finished=2, pending=2)
    assert backlog.after(at(2), at(3)) == SourceProgress(unit="versions", taken=1, finished=1, pending=1)
    # Half of version 3 is read: it is pending as long as its last file is.
    assert backlog.after(at(3), at(3, index=5)) == SourceProgress(unit="versions", taken=1, finished=0, pending=1)
    assert backlog.after(at(3, index=5), at(4)) == SourceProgress(unit="versions", taken=1, finished=1, pending=0)


def test_commits_that_changed_rows_are_passed_over_where_that_was_asked_for(workspace: Workspace) -> None:
    def row(kind: str, change: bool = True) -> dict[str, Any]:
        return {kind: {"path": "a", "dataChange": change}}

    commit(workspace, 0, {"metaData": {}}, row("add"))
    commit(workspace, 1, {"commitInfo": {"operation": "UPDATE"}}, row("remove"), row("add"))
    commit(workspace, 2, {"commitInfo": {"operation": "DELETE"}}, row("remove"), row("add"))
    commit(workspace, 3, row("add"))
    commit(workspace, 4, {"commitInfo": {"operation": "OPTIMIZE"}}, row("remove", False), row("add", False))
    commit(workspace, 5, {"commitInfo": {"operation": "MERGE"}}, row("remove"), row("add"))
    commit(workspace, 6, row("remove"))
    backlog = DeltaBacklog(workspace, DeltaSource(kind="delta", table="t", on_change="skip"))
    first = backlog.after(None, json.dumps({"reservoirVersion": 1, "index": 0, "isStartingVersion": True}))
    assert first == SourceProgress(unit="versions", taken=1, finished=1, pending=1), (
        "version 3, and no other brings rows"
    )
    # The version that the table was first read at is no commit that was passed over, whatever made it.
    start = json.dumps({"reservoirVersion": 1, "index": 5, "isStartingVersion": True})
    second = backlog.after(start, at(4))
    assert second is not None and second.skipped == 1
    assert second.skipped_last == "version 2 of t deleted or updated rows (DELETE); the job passed over it"
    third = backlog.after(at(4), at(6))
    assert third is not None and third.skipped == 1, "OPTIMIZE is none"
    assert third.skipped_last.endswith("(MERGE); the job passed over it, and read none of the rows that came with it")
    last = backlog.after(at(6), at(7))
    assert last is not None and last.skipped == 1 and last.skipped_last.startswith("version 6 of t deleted")
    again = backlog.after(at(7), at(7))
    assert again is not None and again.skipped == 0
    failing = DeltaBacklog(workspace, DeltaSource(kind="delta", table="t"))
    for start, end in ((None, at(1)), (at(3), at(5))):
        found = failing.after(start, end)
        assert found is not None and found.skipped == 0


def topic(*offsets: int) -> str:
    return json.dumps({"trips": dict(enumerate(offsets))})


def test_offsets_left_are_those_that_were_there_when_a_batch_was_planned() -> None:
    backlog = KafkaBacklog()
    # Of a first batch, from the topic's beginning, only the rows are known.
    assert backlog.after(None, topic(40, 30), topic(90, 30), 50) == SourceProgress(unit="offsets", taken=50, pending=50)
    assert backlog.after(topic(40, 30), topic(60, 35), topic(61, 37)) == SourceProgress(
        unit="offsets", taken=25, pending=3
    )
    # A partition that was added since.
    assert backlog.after(topic(60, 35), topic(60, 35, 5), topic(60, 35, 7)) == SourceProgress(
        unit="offsets", taken=5, pending=2
    )
    assert backlog.after(topic(1), topic(2)) == SourceProgress(unit="offsets", taken=1, pending=None)
    assert backlog.after(None, None, None) is None
