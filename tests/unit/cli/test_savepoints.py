from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.model.operation import Operation, Step
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef
from streamwarden.savepoints import catalog
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.store.workspace import Workspace, open_workspace
from tests.batches import made_desired

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).parents[3]
JOB = "ingest_trips"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A place where a stateless job has run for three batches and is stopped."""
    config = tmp_path / "config"
    shutil.copytree(REPOSITORY / "config" / "jobs", config / "jobs")
    (config / "profiles").mkdir()
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(config))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "test")
    made = open_workspace("test", config=config)
    path = f"checkpoints/{JOB}/g000001"
    made.files.write(f"{path}/metadata", b'{"id":"1"}')
    for batch in range(3):
        planned = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
        made.files.write(f"{path}/offsets/{batch}", f'v1\n{planned}\n{{"logOffset":{batch}}}'.encode())
        made.files.write(f"{path}/commits/{batch}", b"v1\n{}")
        made.files.write(f"{path}/sources/0/{batch}", b"v1")
    documents = JobDocuments(made.storage, JOB)
    spec = made.job(JOB)
    documents.desired.write(made_desired(spec, "suspended"))
    documents.checkpoint.write(CheckpointRef(job=JOB, generation=1, path=path, since=utc_now(), reason="first start"))
    return made


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


def taken(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("savepoint", JOB, "--json", *words))
    return found


def test_a_savepoint_is_taken_listed_shown_labelled_and_deleted(workspace: Workspace) -> None:
    first = taken("--note", "one")
    assert (first["batch"], first["state"], first["note"], first["origin"]) == (2, "verified", "one", "manual")
    second = taken("--no-verify")
    assert second["state"] == "unverified"
    listed = json.loads(run("savepoints", "list", "--json"))
    assert [one["id"] for one in listed] == [second["id"], first["id"]]
    assert first["id"] in run("savepoints", "list", JOB)
    shown = json.loads(run("savepoints", "show", JOB, "latest", "--json"))
    assert shown["id"] == first["id"]
    assert len(shown["manifest"]["files"]) == 10
    assert "table trips" in run("savepoints", "show", JOB, first["id"])
    run("savepoints", "label", JOB, second["id"], "before-the-change")
    assert "SAVEPOINT_IN_USE" in run("savepoints", "delete", JOB, "before-the-change", code=2)
    for taken_already in ("latest", "all", "before-the-change", second["id"], " blank"):
        assert "SAVEPOINT_LABEL_INVALID" in run("savepoints", "label", JOB, first["id"], taken_already, code=2)
    run("savepoints", "label", JOB, second["id"], "")
    run("savepoints", "delete", JOB, second["id"])
    assert "SAVEPOINT_IN_USE" in run("savepoints", "delete", JOB, first["id"], code=2), "the newest verified one"
    run("savepoints", "delete", JOB, first["id"], "--force")
    assert json.loads(run("savepoints", "list", "--json")) == []


def test_a_savepoint_that_a_restore_finds_damaged_is_marked(workspace: Workspace) -> None:
    first, second = taken()["id"], taken()["id"]
    run("savepoints", "verify", JOB, "all", "--no-state")
    damaged = workspace.root / savepoint_checkpoint_key(JOB, second) / "offsets" / "2"
    # Not in place: the two savepoints share the file.
    damaged.unlink()
    damaged.write_bytes(b"")
    assert f"{second}: offsets/2: 0 bytes" in run("restore", JOB, "--savepoint", second, code=2)
    verdicts = {one.id: one.verdict for one in catalog.savepoints(workspace, JOB)}
    assert (verdicts[first], verdicts[second]) == ("verified", "damaged")
    assert catalog.find(workspace, JOB, "latest").id == first


def test_a_damaged_savepoint_is_named_and_is_not_well(workspace: Workspace) -> None:
    made = taken()
    (workspace.root / "savepoints" / JOB / made["id"] / "checkpoint" / "offsets" / "1").unlink()
    said = run("savepoints", "verify", JOB, code=1)
    assert "damaged" in said and "offsets/1: missing" in said
    assert "SAVEPOINT_DAMAGED" in run("restore", JOB, "--savepoint", made["id"], code=2)


def test_what_is_not_there_is_a_clear_error(workspace: Workspace) -> None:
    assert "SAVEPOINT_NOT_FOUND" in run("savepoints", "show", JOB, "latest", code=2)
    assert "NOT_DEPLOYED" in run("savepoint", "zone_windows", code=2)
    assert "JOB_UNKNOWN" in run("restore", "nothing", code=2)


def test_housekeeping_says_what_it_removed(workspace: Workspace) -> None:
    workspace.files.write(f"checkpoints/{JOB}/g000000/metadata", b"old")
    found = json.loads(run("housekeeping", JOB, "--json"))
    assert found[JOB]["old_checkpoints"] == [f"checkpoints/{JOB}/g000000"]
    assert "nothing to do" in run("housekeeping", JOB)


def test_operations_are_shown_with_their_steps_and_error(workspace: Workspace) -> None:
    assert "no operation yet" in run("operations", JOB) and json.loads(run("operations", JOB, "--json")) == []
    made = taken()
    (workspace.config / "jobs" / f"{JOB}.yaml").write_text(
        (workspace.config / "jobs" / f"{JOB}.yaml").read_text().replace("path: landing", "path: elsewhere")
    )
    assert "RESTORE_SOURCE_CHANGED" in run("restore", JOB, "--savepoint", made["id"], code=2)
    said = run("operations", JOB)
    assert "precheck" in said and "RESTORE_SOURCE_CHANGED" in said
    (found,) = json.loads(run("operations", JOB, "--json"))
    assert found["state"] == "failed"


def test_an_operation_s_record_is_told_to_people_too(workspace: Workspace) -> None:
    parallelism = {"partitions": 2, "cores": 1, "memory": "1g"}
    began = utc_now()
    documents = JobDocuments(workspace.storage, JOB)
    documents.operation.write(
        Operation(
            id="op1",
            kind="rescale",
            job=JOB,
            by="airflow:rescale/manual__1, for anna",
            params={"partitions": None, "cores": 2, "memory": None, "reason": "twice the [trips] since Monday"},
            plan={
                "was": parallelism,
                "to": {**parallelism, "cores": 2},
                "savepoint": "20260101T120000Z-abc",
                "state_rows": 12345,
                "downtime_s": 4.25,
            },
            state="rolled back",
            started_at=began,
            ended_at=began + timedelta(seconds=61),
            seen_at=began,
            process=None,
            steps=[Step(name="stop", started_at=began, ended_at=began + timedelta(seconds=2), detail="clean [1]")],
        )
    )
    lines = [" ".join(line.split()) for line in run("operations", JOB).splitlines()]
    for line in (
        "who airflow:rescale/manual__1, for anna",
        "why twice the [trips] since Monday",
        "from → to cores 1 → 2",
        "savepoint 20260101T120000Z-abc",
        "state rows 12,345",
        "stop 2.0 s clean [1]",
        "downtime 4.2 s last commit before to first commit after",
        "verdict 61.0 s rolled back",
    ):
        assert line in lines, "\n".join(lines)
    # One that was refused has only what was asked for.
    left = documents.operation.read()
    assert left is not None
    documents.operation.write(left.model_copy(update={"plan": {}, "steps": []}))
    assert "asked for cores 2" in [" ".join(line.split()) for line in run("operations", JOB).splitlines()]
