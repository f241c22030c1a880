"""Savepoints on S3: what a server's troubles do to them. Savepoints of a job that has run; no JVM is needed here."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.status import CheckpointRef
from streamwarden.savepoints import catalog
from streamwarden.savepoints import take as take_module
from streamwarden.savepoints.documents import record_document
from streamwarden.savepoints.take import Report, take
from streamwarden.savepoints.verify import verify
from streamwarden.storage import S3Files, S3Location, S3Storage
from streamwarden.storage.s3_client import make_client
from streamwarden.store.config import load_job
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.store.workspace import Workspace
from tests.batches import made_desired
from tests.integration.conftest import BY
from tests.integration.conftest import Place as Jobs
from tests.s3.conftest import Place
from tests.s3.proxy import Proxy, Trouble
from tests.s3.server import S3Server

pytestmark = pytest.mark.s3

JOB = "zone_windows"
PARTITIONS = 20


def _checkpoint(workspace: Workspace, batches: int = 3) -> None:
    """Write what a job of this state leaves: as many files as make a copy last a moment."""
    files, path = workspace.files, f"checkpoints/{JOB}/g000001"
    settings = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    files.write(f"{path}/metadata", b'{"id":"4f7d"}')
    for batch in range(batches):
        planned = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": settings})
        files.write(f"{path}/offsets/{batch}", f"v1\n{planned}\n-".encode())
        files.write(f"{path}/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    operator = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": PARTITIONS}],
    }
    files.write(f"{path}/state/0/_metadata/metadata", f"v1\n{json.dumps(operator)}".encode())
    files.write(f"{path}/state/0/0/_metadata/schema", b"schema")
    for partition in range(PARTITIONS):
        base = f"{path}/state/0/{partition}"
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as snapshot:
            tables = [{"localFileName": "1.sst", "dfsSstFileName": f"1-{partition}.sst", "sizeBytes": 5}]
            snapshot.writestr("metadata", "v1\n" + json.dumps({"sstFiles": tables, "numKeys": 1}))
        files.write(f"{base}/{batches}.zip", content.getvalue())
        files.write(f"{base}/SSTs/1-{partition}.sst", f"table{partition}".encode())
    documents = JobDocuments(workspace.storage, JOB)
    spec = load_job(JOB)
    documents.desired.write(made_desired(spec, "suspended"))
    documents.checkpoint.write(CheckpointRef(job=JOB, generation=1, path=path, since=utc_now(), reason="first start"))


@pytest.fixture
def workspace(place: Jobs) -> Workspace:
    _checkpoint(place.workspace)
    return place.workspace


def _through(workspace: Workspace, location: S3Location, **patience: float) -> Workspace:
    return replace(workspace, storage=S3Storage(location), files=S3Files(location, **patience))  # type: ignore[arg-type]


def _take(workspace: Workspace, report: Report | None = None) -> Manifest:
    return take(workspace, JOB, origin=Origin.MANUAL, by=BY, report=report)


def _nothing_is_left(workspace: Workspace) -> None:
    catalog.housekeeping(workspace, JOB, load_job(JOB).savepoints.keep)
    assert catalog.savepoints(workspace, JOB) == []
    assert list(workspace.files.walk(f"savepoints/{JOB}")) == []


def _later(work: Callable[[], None], seconds: float) -> threading.Thread:
    def run() -> None:
        time.sleep(seconds)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_savepoint_on_s3_is_whole_and_shares_nothing(workspace: Workspace) -> None:
    made = _take(workspace)
    assert len(made.files) == 1 + 3 + 3 + 2 + 2 * PARTITIONS
    found = catalog.find(workspace, JOB, made.id)
    described = catalog.describe(workspace, found)
    assert (described["shared_bytes"], described["own_bytes"]) == (0, made.bytes)
    workspace.files.delete_tree(made.checkpoint)
    assert verify(workspace, [found], by=BY, state=False)[made.id].verdict == "verified"


def test_throttling_is_waited_out(workspace: Workspace, proxy: Proxy, through_proxy: S3Location) -> None:
    proxy.trouble = Trouble(slow_down=0.15)
    # Documents have less patience, and with so much of it would now and then be refused.
    made = _take(replace(_through(workspace, through_proxy), storage=workspace.storage))
    assert proxy.seen["slow_down"] > 5
    found = catalog.find(workspace, JOB, made.id)
    assert verify(workspace, [found], by=BY, state=False)[made.id].verdict == "verified"


@pytest.mark.long
@pytest.mark.ci
def test_a_server_restarted_in_the_middle_of_a_copy(
    workspace: Workspace, server: S3Server, proxy: Proxy, through_proxy: S3Location
) -> None:
    restarting: list[threading.Thread] = []

    def in_the_middle(step: str, done: int, total: int) -> None:
        if step == "copy" and not restarting:
            server.kill()
            restarting.append(_later(server.start, 1.5))

    proxy.trouble = Trouble(delay_s=0.2)
    made = _take(_through(workspace, through_proxy), in_the_middle)
    assert len(restarting) == 1
    restarting[0].join()
    found = catalog.find(workspace, JOB, made.id)
    assert verify(workspace, [found], by=BY, state=False)[made.id].verdict == "verified"


@pytest.mark.long
def test_a_server_that_stays_away_is_a_clear_error_and_leaves_no_half_savepoint(
    workspace: Workspace, server: S3Server, proxy: Proxy, through_proxy: S3Location
) -> None:
    def in_the_middle(step: str, done: int, total: int) -> None:
        if step == "copy" and server.runs:
            server.kill()

    proxy.trouble = Trouble(delay_s=0.2)
    with pytest.raises(StreamwardenError) as raised:
        _take(_through(workspace, through_proxy, patience_s=1.0), in_the_middle)
    assert raised.value.code == "S3_UNREACHABLE" and raised.value.retryable
    server.start()
    assert catalog.savepoints(workspace, JOB) == []
    # Whose process lives could still be at it; this one's is the test's.
    for key in workspace.storage.list(f"control/{JOB}/savepoints"):
        document = record_document(workspace, JOB, key.rsplit("/", 1)[1].removesuffix(".json"))
        record = document.read()
        assert record is not None
        document.write(record.model_copy(update={"process": None}))
    _nothing_is_left(workspace)


def test_wrong_credentials_are_refused_at_once(
    workspace: Workspace, s3: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed:
        changed.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        make_client.cache_clear()
        started = time.monotonic()
        with pytest.raises(StreamwardenError) as raised:
            _take(_through(workspace, s3.location))
    make_client.cache_clear()
    assert raised.value.code == "S3_REFUSED"
    assert time.monotonic() - started < 60
    assert s3.secret_key not in str(raised.value)


def test_a_missing_bucket_is_named(workspace: Workspace, s3: Place) -> None:
    with pytest.raises(StreamwardenError) as raised:
        _take(_through(workspace, replace(s3.location, bucket="no-such-bucket")))
    assert raised.value.code == "S3_BUCKET_MISSING" and "no-such-bucket" in raised.value.what


def test_a_corrupted_object_is_found_and_named(workspace: Workspace, s3: Place) -> None:
    made = _take(workspace)
    key = f"{savepoint_checkpoint_key(JOB, made.id)}/state/0/7/SSTs/1-7.sst"
    s3.client().put_object(Bucket=s3.location.bucket, Key=f"{s3.location.prefix}/{key}", Body=b"tablx7")
    found = catalog.find(workspace, JOB, made.id)
    verdict = verify(workspace, [found], by=BY, state=False)[made.id]
    assert verdict.verdict == "damaged"
    assert verdict.problems == ["state/0/7/SSTs/1-7.sst: its SHA-256 is not the manifest's"]


def test_state_that_is_removed_under_a_copy_is_taken_at_a_newer_batch(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, chosen = take_module.closure, []

    def closure(*arguments: Any, **rest: Any) -> Any:
        chosen.append(real(*arguments, **rest))
        if len(chosen) == 1:
            # The next batch, and Spark's maintenance after it, before the first file is copied.
            _checkpoint(workspace, batches=4)
            for partition in range(PARTITIONS):
                workspace.files.delete(f"checkpoints/{JOB}/g000001/state/0/{partition}/3.zip")
        return chosen[-1]

    monkeypatch.setattr(take_module, "closure", closure)
    made = _take(workspace)
    assert made.batch == 3
    assert not [entry.path for entry in made.files if entry.path.endswith("/3.zip")]
    found = catalog.find(workspace, JOB, made.id)
    assert verify(workspace, [found], by=BY, state=False)[made.id].verdict == "verified"
