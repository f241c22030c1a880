from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.driver.backlog import DeltaBacklog, KafkaBacklog
from streamwarden.model.progress import SourceProgress
from streamwarden.model.source_spec import DeltaSource
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


@pytest.mark.parametrize("end", [None, "None", "null", "", "{}"])
def test_an_offset_that_says_nothing_is_no_progress(workspace: Workspace, end: str | None) -> None:
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
    # Version 3, and no other brings rows; and the table as it was is not read to its end.
    assert first == SourceProgress(unit="versions", taken=1, finished=1, pending=1, cut=True)
    # The version that the table was first read at is no commit that was passed over, whatever made it.
    start = json.dumps({"reservoirVersion": 1, "index": 5, "isStartingVersion": True})
    second = backlog.after(start, at(4))
    assert second is not None and second.skipped == 1
    assert second.skipped_last == "version 2 of t deleted or updated rows (DELETE); the job skipped it"
    third = backlog.after(at(4), at(6))
    assert third is not None and third.skipped == 1, "OPTIMIZE is none"
    assert third.skipped_last.endswith("(MERGE); the job skipped it, and did not read the rows that it added")
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
