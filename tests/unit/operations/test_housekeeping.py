"""Housekeeping of a job: what is known of old runs goes, all of it; the newest stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from streamwarden.model.gate import GateRecord, Hold
from streamwarden.model.record import utc_now
from streamwarden.model.spec import RetentionSpec
from streamwarden.operations.housekeeping import housekeep, look_after_tables
from streamwarden.quality.gate_state import gate_document
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit

JOB = "zone_windows"
KEPT = 20
RUNS = [f"20261122T0000{number:05}z" for number in range(KEPT + 3)]


class Small(BaseModel):
    """Stands for any document: housekeeping does not look into those of old runs."""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    config = tmp_path / "config"
    (config / "profiles").mkdir(parents=True)
    (config / "profiles" / "test.yaml").write_text(
        f"{{name: test, root: {tmp_path / 'root'}, logs: {{incarnations: {KEPT}}}}}"
    )
    return open_workspace("test", config=config)


def run(workspace: Workspace, incarnation: str) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    for name in ("launch", "stop", "heartbeat", "progress", "exit"):
        key = getattr(documents, name)(incarnation).key
        workspace.storage.write(key, Small().model_dump_json().encode())
    logs = workspace.log_dir(JOB, incarnation)
    logs.mkdir(parents=True)
    (logs / "driver.log").write_text("started")


def known(workspace: Workspace) -> set[str]:
    """Whatever is named after a run, below control and logs."""
    keys = workspace.storage.list(f"control/{JOB}")
    paths = [str(path) for path in (workspace.root / "logs").rglob("*")]
    return {name for name in RUNS if any(name in one for one in [*keys, *paths])}


def test_old_runs_go_with_all_that_is_known_of_them(workspace: Workspace) -> None:
    for name in RUNS[:KEPT]:
        run(workspace, name)
    assert housekeep(workspace, JOB, RetentionSpec())["old_incarnations"] == []
    for name in RUNS[KEPT:]:
        run(workspace, name)
    before = len(workspace.storage.list(f"control/{JOB}"))
    assert housekeep(workspace, JOB, RetentionSpec())["old_incarnations"] == RUNS[:3]
    assert known(workspace) == set(RUNS[3:])
    assert len(workspace.storage.list(f"control/{JOB}")) == before * KEPT / len(RUNS)
    assert JobDocuments(workspace.storage, JOB).incarnations() == RUNS[3:]
    assert housekeep(workspace, JOB, RetentionSpec())["old_incarnations"] == []


@pytest.mark.parametrize("left", ["launch", "stop", "logs"])
def test_what_a_removal_that_was_cut_short_left_goes_with_the_next(workspace: Workspace, left: str) -> None:
    for name in RUNS:
        run(workspace, name)
    stays = "logs/" if left == "logs" else f"/{left}.json"
    for key in workspace.storage.list(f"control/{JOB}"):
        if RUNS[0] in key and stays not in key:
            workspace.storage.delete(key)
    assert RUNS[0] in housekeep(workspace, JOB, RetentionSpec())["old_incarnations"]
    assert known(workspace) == set(RUNS[3:])


def test_a_job_that_never_ran_has_nothing_to_remove(workspace: Workspace) -> None:
    assert set(map(len, housekeep(workspace, JOB, RetentionSpec()).values())) == {0}


def test_old_reports_go_and_those_of_held_ranges_stay(workspace: Workspace) -> None:
    runs = ["20200101T000000Z-aaaaaa", "20200102T000000Z-bbbbbb", f"{utc_now():%Y%m%dT%H%M%SZ}-cccccc"]
    for name in runs:
        folder = workspace.root / "quality" / name
        folder.mkdir(parents=True)
        (folder / "report.html").write_text("a report")
    hold = Hold(after=0, version=1, since=utc_now(), run=runs[1], failures=[], batches=[])
    gate_document(workspace, "trips").write(GateRecord(table="trips", hold=hold))
    assert look_after_tables(workspace) == {"quality": {"runs_removed": 1}}
    assert sorted(path.name for path in (workspace.root / "quality").glob("*/")) == runs[1:]
    assert look_after_tables(workspace) == {}
