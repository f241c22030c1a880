"""`streamwarden doctor` on a real S3 server: it tests conditional writes without a write, and adopts a lost job."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, Transaction, write_deltalake
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.formats.delta_log import application_id
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef, Launch
from streamwarden.operations.doctor import Verdict, examine, in_order
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.batches import made_desired
from tests.integration.conftest import REPOSITORY
from tests.s3.conftest import Place

pytestmark = pytest.mark.s3

JOB, INCARNATION = "ingest_trips", "20260101T000000000z0001"


@pytest.fixture
def workspace(s3: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A stopped job with one batch, in its table too."""
    config = tmp_path / "config"
    (config / "jobs").mkdir(parents=True)
    (config / "jobs" / f"{JOB}.yaml").write_text((REPOSITORY / "config" / "jobs" / f"{JOB}.yaml").read_text())
    (config / "profiles").mkdir()
    where = {"bucket": s3.location.bucket, "prefix": s3.location.prefix, "endpoint": s3.location.endpoint}
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root", "s3": where}))
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(config))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "test")
    made = open_workspace("test", config=config)
    path = f"checkpoints/{JOB}/g000001"
    planned = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
    made.files.write(f"{path}/metadata", b'{"id":"1"}')
    made.files.write(f"{path}/offsets/0", f'v1\n{planned}\n{{"logOffset":0}}'.encode())
    made.files.write(f"{path}/commits/0", b"v1\n{}")
    made.files.write(f"{path}/sources/0/0", b"v1\n{}")
    documents, spec, now = JobDocuments(made.storage, JOB), made.job(JOB), utc_now()
    documents.desired.write(made_desired(spec, "suspended"))
    documents.checkpoint.write(CheckpointRef(job=JOB, generation=1, path=path, since=now, reason=""))
    launch = Launch(incarnation=INCARNATION, at=now, by="test", reason="", digest="d", spec=spec)
    documents.launch(INCARNATION).write(launch)
    address, options = made.delta_rs("trips")
    batch = CommitProperties(app_transactions=[Transaction(application_id(JOB, 1), 0)])
    write_deltalake(address, pa.table({"x": [1]}), storage_options=options, commit_properties=batch)
    return made


def content(s3: Place) -> dict[str, object]:
    listed = s3.client().list_objects_v2(Bucket=s3.location.bucket)["Contents"]
    return {one["Key"]: (one["ETag"], one["LastModified"]) for one in listed}


def run(command: str) -> None:
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output


def test_it_writes_nothing_and_its_command_adopts_lost_documents(workspace: Workspace, s3: Place) -> None:
    before = content(s3)
    found = examine(workspace)
    assert content(s3) == before
    assert found[0].what.endswith("conditional writes hold")
    # Its launch is newer than any driver's report: the driver did not come so far.
    assert [one.about for one in found if one.verdict is Verdict.BROKEN] == []
    for key in workspace.storage.list(f"control/{JOB}"):
        workspace.storage.delete(key)
    found = examine(workspace)
    assert found[0].what.endswith("nothing to test writes with")
    assert in_order(found) == [f"streamwarden repair {JOB} --yes", f"streamwarden deploy {JOB}"]
    run(in_order(found)[0])
    reference = JobDocuments(workspace.storage, JOB).checkpoint.read()
    assert reference is not None and (reference.generation, reference.highest) == (1, 2)
    assert [one.about for one in examine(workspace) if one.verdict is Verdict.BROKEN] == []
