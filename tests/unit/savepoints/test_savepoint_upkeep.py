"""What is left of interrupted work on savepoints, on a checkpoint made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.model.operation import OperationState
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.spec import RetentionSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.runtime.operation_lock import begin
from streamwarden.savepoints import catalog
from streamwarden.savepoints import verify as verifying
from streamwarden.savepoints.documents import record_document
from streamwarden.savepoints.take import take
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.batches import made_desired

pytestmark = pytest.mark.unit

JOB = "lamp"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    config = tmp_path / "config"
    for folder in ("jobs", "profiles"):
        (config / folder).mkdir(parents=True)
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": str(tmp_path / "root")}))
    spec = {
        "name": JOB,
        "module": "spark_jobs.none",
        "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": JOB, "mode": "append"}],
    }
    (config / "jobs" / f"{JOB}.yaml").write_text(yaml.safe_dump(spec))
    made = open_workspace("test", config=config)
    documents, loaded = JobDocuments(made.storage, JOB), made.job(JOB)
    documents.desired.write(made_desired(loaded, "suspended"))
    reference = CheckpointRef(
        job=JOB, generation=1, path=f"checkpoints/{JOB}/g000001", since=utc_now(), reason="first start"
    )
    documents.checkpoint.write(reference)
    files = {
        "metadata": '{"id":"1"}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"logOffset":0}',
        "commits/0": "v1\n{}",
    }
    for name, text in files.items():
        made.files.write(f"{reference.path}/{name}", text.encode())
    return made


def taken(workspace: Workspace) -> Manifest:
    return take(workspace, JOB, origin=Origin.MANUAL, by="test")


def test_a_savepoint_used_by_a_killed_operation_is_freed_once_another_took_its_place(workspace: Workspace) -> None:
    made = taken(workspace)
    found = catalog.find(workspace, JOB, made.id)
    with begin(workspace, JOB, "restore", by="killed", params={}) as handle:
        catalog.use(workspace, found, handle.id)
    catalog.housekeeping(workspace, JOB, RetentionSpec())
    record = catalog.find(workspace, JOB, made.id).record
    assert record.in_use_by == [handle.id], "it may still be resumed"
    with begin(workspace, JOB, "restore", by="another", params={}) as later:
        later.end(OperationState.DONE)
    catalog.housekeeping(workspace, JOB, RetentionSpec())
    assert catalog.find(workspace, JOB, made.id).record.in_use_by == []
    catalog.delete(workspace, JOB, made.id)


def test_verifying_a_savepoint_that_is_deleted_meanwhile_leaves_nothing_of_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = taken(workspace), taken(workspace)
    chosen = catalog.savepoints(workspace, JOB)
    real = verifying.check_files

    def slow(*args: Any, **kwargs: Any) -> list[str]:
        if args[1].id == gone.id:
            catalog.delete(workspace, JOB, gone.id)
        return real(*args, **kwargs)

    monkeypatch.setattr(verifying, "check_files", slow)
    found = verifying.verify(workspace, chosen, by="test")
    assert {name: one.verdict for name, one in found.items()} == {stays.id: "verified"}
    assert record_document(workspace, JOB, gone.id).read() is None
