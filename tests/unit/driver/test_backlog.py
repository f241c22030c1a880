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
    # The first batch of a query on a table: how many files its present state has no commit tells.
    assert backlog.after(None, at(2)) == SourceProgress(unit="versions", taken=2, finished=2, pending=2, cut=True)
    assert backlog.after(at(2), at(3)) == SourceProgress(unit="versions", taken=1, finished=1, pending=1)
    # Half of version 3 is read: it is pending as long as its last file is.
    half = SourceProgress(unit="versions", taken=1, finished=0, pending=1, cut=True)
    assert backlog.after(at(3), at(3, index=0)) == half == backlog.after(at(3), at(3, index=5))
    assert backlog.after(at(3, index=5), at(4)) == SourceProgress(unit="versions", taken=1, finished=1, pending=0)


def topic(*offsets: int) -> str:
    return json.dumps({"trips": dict(enumerate(offsets))})


def test_offsets_left_are_those_that_were_there_when_a_batch_was_planned() -> None:
    backlog = KafkaBacklog()
    # Of a first batch, from the topic's beginning, only the rows are known.
    assert backlog.after(None, topic(40, 30), topic(90, 30), 50) == SourceProgress(
        unit="offsets", taken=50, pending=50, cut=True
    )
    assert backlog.after(topic(40, 30), topic(60, 35), topic(61, 37)) == SourceProgress(
        unit="offsets", taken=25, pending=3, cut=True
    )
    # A partition that was added since.
    assert backlog.after(topic(60, 35), topic(60, 35, 5), topic(60, 35, 7)) == SourceProgress(
        unit="offsets", taken=5, pending=2, cut=True
    )
    assert backlog.after(topic(1), topic(2)) == SourceProgress(unit="offsets", taken=1, pending=None)
    assert backlog.after(None, None, None) is None


@pytest.mark.parametrize(("limit", "left", "cut"), [(2, 1, True), (3, 1, False), (2, 0, False)])
def test_a_batch_of_files_is_cut_by_its_limit_and_not_by_what_lands_meanwhile(
    workspace: Workspace, limit: int, left: int, cut: bool
) -> None:
    taken(workspace, 0, [land(workspace, f"{number}.txt", 1_000 + number) for number in range(2)])
    for number in range(left):
        land(workspace, f"left {number}.txt", 2_000)
    source = FileSource(kind="files", path="landing", max_files_per_batch=limit)
    found = FileBacklog(workspace, source, CHECKPOINT).after(None, offset(0))
    assert found == SourceProgress(unit="files", taken=2, pending=left, cut=cut)


def rows(path: str) -> dict[str, Any]:
    return {"add": {"path": path, "dataChange": True}}


@pytest.mark.parametrize(("limit", "cut"), [(3, True), (4, False)])
def test_a_batch_of_versions_is_cut_by_its_limit_of_files_and_not_by_commits_meanwhile(
    workspace: Workspace, limit: int, cut: bool
) -> None:
    commit(workspace, 0, {"metaData": {}}, rows("a"))
    commit(workspace, 1, rows("b"), {"add": {"path": "moved", "dataChange": False}})
    commit(workspace, 2, rows("c"), rows("d"))
    commit(workspace, 3, rows("e"))
    backlog = DeltaBacklog(workspace, DeltaSource(kind="delta", table="t", max_files_per_batch=limit))
    found = backlog.after(at(1), at(3))
    assert found == SourceProgress(unit="versions", taken=2, finished=2, pending=1, cut=cut)
    # Its end, whatever the limit.
    assert backlog.after(at(1), at(4)) == SourceProgress(unit="versions", taken=3, finished=3, pending=0)


def test_a_table_that_is_read_from_its_present_state_on_is_cut_until_that_is_read(workspace: Workspace) -> None:
    for version in range(4):
        commit(workspace, version, rows(str(version)))
    backlog = DeltaBacklog(workspace, DeltaSource(kind="delta", table="t", max_files_per_batch=2))

    def within(index: int) -> str:
        return json.dumps({"reservoirVersion": 3, "index": index, "isStartingVersion": True})

    for start, end in ((None, within(1)), (within(1), within(3))):
        found = backlog.after(start, end)
        assert found is not None and found.cut


def test_a_batch_without_input_is_not_cut_by_commits_that_bring_none(workspace: Workspace) -> None:
    """A job that asks the clock each interval, as one with a TTL does, would else ask it without a pause."""
    for version in range(250):
        commit(workspace, version, {"commitInfo": {"operation": "OPTIMIZE"}})
    backlog = DeltaBacklog(workspace, DeltaSource(kind="delta", table="t"))
    found = backlog.after(at(1), at(1))
    assert found == SourceProgress(unit="versions", taken=0, finished=0, pending=249)


def test_a_topic_that_gets_records_meanwhile_has_not_cut_a_batch() -> None:
    backlog = KafkaBacklog()
    # The latest offsets that Spark reports are those of the batch's planning.
    found = backlog.after(topic(40, 30), topic(60, 35), topic(60, 35))
    assert found == SourceProgress(unit="offsets", taken=25, pending=0)
    # One without input.
    found = backlog.after(topic(60, 35), topic(60, 35), topic(61, 35))
    assert found == SourceProgress(unit="offsets", taken=0, pending=1)
