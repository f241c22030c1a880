from __future__ import annotations

import hashlib
import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import application_id
from streamwarden.model.progress import BatchProgress, OperatorProgress, Progress
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.status import DriverState, Exit, Heartbeat, Launch, OutputStart
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints.catalog import savepoints
from streamwarden.savepoints.documents import manifest_document, record_document
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import check_files, verify
from streamwarden.savepoints.writers import writer_versions
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.store.workspace import Workspace
from tests.batches import made_desired
from tests.unit.formats.test_checkpoint_files import Made
from tests.unit.savepoints.test_compatibility import current, job_module, made, spec, workspace

__all__ = ["job_module", "made", "workspace"]

pytestmark = pytest.mark.unit

UNTRACKED = {"spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false"}


@pytest.fixture
def documents(workspace: Workspace, made: Made) -> JobDocuments:
    """Those of a job that stopped after batch 2, with 7 rows of state."""
    found = JobDocuments(workspace.storage, "job")
    found.checkpoint.write(current())
    _deploy(found)
    at = utc_now()
    operators = [OperatorProgress(id=0, name="stateStoreSave", rows=7, bytes=1)]
    done = BatchProgress(batch=2, at=at, duration_ms=1, rows_in=1, operators=operators)
    found.launch("a1").write(Launch(incarnation="a1", at=at, by="test", reason="", digest=""))
    found.progress("a1").write(Progress(incarnation="a1", at=at, last=done, recent=[done]))
    found.exit("a1").write(Exit(incarnation="a1", at=at, outcome="stopped", batch=2))
    return found


def _deploy(documents: JobDocuments, **fields: Any) -> None:
    found = spec(**fields)
    documents.desired.write(made_desired(found))


def _take(workspace: Workspace) -> Manifest:
    return take(workspace, "job", origin=Origin.MANUAL, by="test", note="for the test")


def test_a_savepoint_is_the_closure_of_the_newest_batch(
    workspace: Workspace, documents: JobDocuments, made: Made
) -> None:
    taken = _take(workspace)
    assert (taken.batch, taken.state_rows, taken.partitions) == (2, 7, 2)
    assert {entry.path for entry in taken.files} == set(made.closure(2).files)
    assert check_files(workspace, taken, savepoint_checkpoint_key("job", taken.id)) == []
    (found,) = savepoints(workspace, "job")
    assert found.manifest == taken and (found.record.state, found.record.note) == ("complete", "for the test")
    folder = workspace.root / savepoint_checkpoint_key("job", taken.id)
    described = json.loads((folder / "state/0/_metadata/v2/0").read_text().partition("\n")[2])
    (path,) = described["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert path == f"file:{folder}/state/0/_stateSchema/default/0_schema"
    for entry in taken.files:
        assert entry.sha256 == hashlib.sha256((folder / entry.path).read_bytes()).hexdigest()


def test_a_checkpoint_without_the_offsets_before_the_newest_is_not_saved(
    workspace: Workspace, documents: JobDocuments, made: Made
) -> None:
    taken = _take(workspace)
    made.remove("offsets/1")
    with pytest.raises(StreamwardenError, match="batch 2 needs offsets/1"):
        _take(workspace)
    # One that was taken so before this was checked: its files are as in its manifest.
    document = manifest_document(workspace, "job", taken.id)
    files = [one for one in taken.files if one.path != "offsets/1"]
    document.write(taken.model_copy(update={"files": files}))
    workspace.files.delete(f"{savepoint_checkpoint_key('job', taken.id)}/offsets/1")
    found = verify(workspace, savepoints(workspace, "job"), by="test", state=False)[taken.id]
    assert (found.verdict, len(found.problems)) == ("damaged", 1) and "offsets/1: it is missing" in found.problems[0]


def test_a_record_sums_up_its_manifest(workspace: Workspace, documents: JobDocuments) -> None:
    taken = _take(workspace)
    stored = workspace.storage.read(manifest_document(workspace, "job", taken.id).key)
    record = record_document(workspace, "job", taken.id).read()
    assert stored is not None and record is not None and record.state == "complete"
    assert record.summary == taken.summary(stored.etag)


def test_rows_that_spark_did_not_count_are_not_said(workspace: Workspace, documents: JobDocuments) -> None:
    _deploy(documents, spark=UNTRACKED)
    assert _take(workspace).state_rows is None
    _deploy(documents, spark=UNTRACKED, state={"backend": "memory"})
    assert _take(workspace).state_rows == 7, "the memory backend always counts"


def test_rows_of_another_batch_are_not_said(workspace: Workspace, documents: JobDocuments, made: Made) -> None:
    made.batch(3, [json.dumps({"logOffset": 2})])
    for partition in range(2):
        made.changes(f"state/0/{partition}", [4])
    taken = _take(workspace)
    assert (taken.batch, taken.state_rows) == (3, None)


def test_of_a_checkpoint_that_lacks_a_file_nothing_is_left(
    workspace: Workspace, documents: JobDocuments, made: Made
) -> None:
    made.remove("state/0/1/2.changelog")
    with pytest.raises(StreamwardenError, match=r"CHECKPOINT_DAMAGED.*state/0/1/2\.changelog"):
        _take(workspace)
    assert list(workspace.files.walk("savepoints")) == []
    assert workspace.storage.list("control/job/savepoints") == []


def test_a_take_that_is_outrun_begins_again_at_the_newer_batch(
    workspace: Workspace, documents: JobDocuments, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = workspace.files.copy_many
    tries: list[int] = []

    def copy_many(pairs: Any, *, done: Any = None) -> None:
        tries.append(len(tries))
        if len(tries) == 1:
            # As Spark does it: a newer batch with a snapshot, and the maintenance removes what was before.
            made.batch(3, [json.dumps({"logOffset": 2})])
            for partition in range(2):
                made.snapshot(f"state/0/{partition}", 4, ["t"])
                made.remove(*(f"state/0/{partition}/{version}.changelog" for version in (1, 2, 3)))
            made.remove("offsets/0", "commits/0")
        real(pairs, done=done)

    monkeypatch.setattr(workspace.files, "copy_many", copy_many)
    taken = _take(workspace)
    assert taken.batch == 3 and len(tries) == 2
    assert check_files(workspace, taken, savepoint_checkpoint_key("job", taken.id)) == [], (
        "nothing of the first try is left"
    )


def test_what_a_broken_off_try_copied_is_not_left_in_the_next_ones_savepoint(
    workspace: Workspace, documents: JobDocuments, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = workspace.files.copy_many
    tries: list[int] = []

    def copy_many(pairs: Any, *, done: Any = None) -> None:
        tries.append(len(tries))
        if len(tries) > 1:
            real(pairs, done=done)
            return
        real([pair for pair in pairs if not pair[0].endswith("state/0/1/3.changelog")], done=done)
        made.batch(3, [json.dumps({"logOffset": 2})])
        for partition in range(2):
            made.snapshot(f"state/0/{partition}", 4, ["t"])
            made.remove(*(f"state/0/{partition}/{version}.changelog" for version in (1, 2, 3)))
        raise FileNotFoundError(2, "No such file", "state/0/1/3.changelog")

    monkeypatch.setattr(workspace.files, "copy_many", copy_many)
    taken = _take(workspace)
    assert taken.batch == 3 and len(tries) == 2
    assert check_files(workspace, taken, savepoint_checkpoint_key("job", taken.id)) == []


def test_rows_of_another_generation_are_not_said(workspace: Workspace, documents: JobDocuments) -> None:
    at = utc_now()
    heartbeat = Heartbeat(
        incarnation="a1", at=at, started_at=at, state=DriverState.RUNNING, process=current_process(), generation=9
    )
    documents.heartbeat("a1").write(heartbeat)
    assert _take(workspace).state_rows is None


def test_the_writer_is_the_newest_driver_that_committed_a_batch(workspace: Workspace, documents: JobDocuments) -> None:
    at = utc_now()

    def reported(incarnation: str, spark: str, generation: int = 1, batch: int | None = None) -> None:
        beat = Heartbeat(
            incarnation=incarnation,
            at=at,
            started_at=at,
            state=DriverState.STARTING,
            process=current_process(),
            generation=generation,
            versions={"spark": spark},
        )
        documents.launch(incarnation).write(Launch(incarnation=incarnation, at=at, by="test", reason="", digest=""))
        documents.heartbeat(incarnation).write(beat)
        last = None if batch is None else BatchProgress(batch=batch, at=at, duration_ms=1, rows_in=1)
        documents.progress(incarnation).write(Progress(incarnation=incarnation, at=at, last=last))

    def writer() -> str | None:
        return writer_versions(workspace, "job").get("spark")

    assert writer() is None
    reported("a0", "4.1.0")
    assert writer() == "4.1.0", "all that is known"
    reported("a1", "4.2.0", batch=2)
    # It refuses the checkpoint, and its savepoint must not seem one that it can read.
    reported("a2", "4.1.0")
    assert writer() == "4.2.0"
    taken = _take(workspace)
    assert taken.versions == {"spark": "4.2.0"}

    documents.checkpoint.write(current().model_copy(update={"generation": 2, "savepoint": taken.id}))
    reported("a3", "4.3.0", batch=9)
    assert writer() == "4.2.0", "before the first batch, the savepoint's"
    reported("a4", "4.1.0", generation=2)
    assert writer() == "4.2.0"
    reported("a5", "4.3.0", generation=2, batch=3)
    assert writer() == "4.3.0"


def test_a_job_without_a_batch_has_nothing_to_take(workspace: Workspace, documents: JobDocuments, made: Made) -> None:
    made.remove(*(f"commits/{batch}" for batch in range(3)))
    with pytest.raises(StreamwardenError, match="SAVEPOINT_NOTHING"):
        _take(workspace)
    with pytest.raises(StreamwardenError, match="NOT_DEPLOYED"):
        take(workspace, "another", origin=Origin.MANUAL, by="test")


def write(workspace: Workspace, generation: int, batch: int) -> None:
    uri, options = workspace.delta_rs("job")
    done = CommitProperties(app_transactions=[Transaction(application_id("job", generation), batch)])
    rows = pa.table({"batch": [batch]})
    write_deltalake(uri, rows, mode="append", storage_options=options, commit_properties=done)


@pytest.mark.parametrize("put_back_to, version", [(2, 2), (3, 2), (None, None)])
def test_a_table_that_is_still_to_be_put_back_counts_as_it_will_be(
    workspace: Workspace, documents: JobDocuments, put_back_to: int | None, version: int | None
) -> None:
    # Of the job's own generation one batch more than it has committed, and of one that was undone two.
    for generation, batch in ((1, 0), (1, 1), (1, 2), (1, 3), (2, 3), (2, 4)):
        write(workspace, generation, batch)
    documents.checkpoint.write(current(highest=2, outputs=[OutputStart(table="job", version=put_back_to)]))
    (sink,) = _take(workspace).sinks
    assert (sink.version, sink.transaction) == (version, None if version is None else 2)


def test_a_table_that_is_put_back_while_a_savepoint_is_taken_counts_as_it_is(
    workspace: Workspace, documents: JobDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    for generation, batch in ((1, 1), (2, 3)):
        write(workspace, generation, batch)
    documents.checkpoint.write(current(highest=2, outputs=[OutputStart(table="job", version=0)]))
    real = workspace.files.hash_many

    def hash_many(*arguments: Any, **rest: Any) -> Any:
        write(workspace, 1, 2)
        documents.checkpoint.write(current(highest=2, fenced=True))
        return real(*arguments, **rest)

    monkeypatch.setattr(workspace.files, "hash_many", hash_many)
    assert [sink.version for sink in _take(workspace).sinks] == [2]


def test_a_clone_whose_tables_are_not_in_place_has_nothing_to_take(
    workspace: Workspace, documents: JobDocuments
) -> None:
    documents.checkpoint.write(current(outputs=[OutputStart(table="job", version=3, source="another")]))
    with pytest.raises(StreamwardenError, match=r"SAVEPOINT_NOTHING.*not in place"):
        _take(workspace)
    assert savepoints(workspace, "job") == []


def test_a_take_that_finds_no_room_leaves_nothing(
    workspace: Workspace, documents: JobDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workspace.files, "hash_many", fail)
    with pytest.raises(StreamwardenError, match=r"SAVEPOINT_FAILED.*No space left"):
        _take(workspace)
    assert list(workspace.files.walk("savepoints")) == [] and savepoints(workspace, "job") == []
