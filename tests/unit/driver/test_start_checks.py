"""What ends a driver before its first batch: a checkpoint that nothing names, or that is behind its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from streamwarden.driver.job_session import PROVIDERS
from streamwarden.driver.start_checks import check_first_start, check_fixed, check_spark, check_version
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_fence import fence
from streamwarden.formats.delta_log import application_id
from streamwarden.model.progress import BatchProgress, Progress
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, DriverState, Heartbeat, Launch
from streamwarden.operations.repair_documents import used_generations
from streamwarden.savepoints.older_copies import check_read, check_written
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.unit.savepoints import test_catalog
from tests.unit.supervision.test_supervision import GONE, JOB, desired

pytestmark = pytest.mark.unit

PATH = f"checkpoints/{JOB}/g000001"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return test_catalog.opened(tmp_path)


def table() -> str:
    return desired().spec.sinks[0].table


def wrote(workspace: Workspace, batch: int, generation: int = 1) -> None:
    write_deltalake(
        workspace.table(table()),
        pa.table({"batch": [batch]}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(application_id(JOB, generation), batch)]),
    )


def begun(workspace: Workspace, batch: int) -> None:
    workspace.files.write(f"{PATH}/offsets/{batch}", b"v1\n{}\n-")


def of(generation: int, highest: int = 0) -> CheckpointRef:
    return CheckpointRef(job=JOB, generation=generation, path=PATH, since=utc_now(), reason="test", highest=highest)


def check(workspace: Workspace, generation: int = 1) -> None:
    check_written(workspace, desired().spec, of(generation), CheckpointReader(workspace.storage, PATH))


def test_a_batch_in_flight_may_be_in_the_table_and_no_later_one(workspace: Workspace) -> None:
    check(workspace)
    wrote(workspace, 0)
    with pytest.raises(StreamwardenError, match=f"begins with batch 0, and table {table()} has its batch 0") as raised:
        check(workspace)
    assert raised.value.code == "CHECKPOINT_BEHIND" and not raised.value.retryable
    begun(workspace, 0)
    check(workspace)
    wrote(workspace, 1)
    with pytest.raises(StreamwardenError, match="CHECKPOINT_BEHIND"):
        check(workspace)
    begun(workspace, 1)
    check(workspace)
    check(workspace, generation=2)


def test_a_job_that_goes_on_while_it_is_looked_at_is_of_one_moment(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(workspace, 0)
    wrote(workspace, 0)
    last_offset = CheckpointReader.last_offset

    def goes_on(reader: CheckpointReader) -> int | None:
        found = last_offset(reader)
        committed(workspace, 1)
        wrote(workspace, 1)
        return found

    monkeypatch.setattr(CheckpointReader, "last_offset", goes_on)
    check(workspace)


def test_a_generation_that_was_fenced_off_does_not_begin_again(workspace: Workspace) -> None:
    wrote(workspace, 0)
    begun(workspace, 0)
    begun(workspace, 1)
    fence(workspace, table(), of(2, highest=2))
    with pytest.raises(StreamwardenError, match="is closed to it, since a later generation ran"):
        check(workspace)
    check(workspace, generation=2)


def report(workspace: Workspace, batch: int, rows: int) -> None:
    """Let a driver have reported a batch."""
    documents, name = JobDocuments(workspace.storage, JOB), f"2026010{batch + 1}T000000000z0001"
    now = utc_now()
    launch = Launch(incarnation=name, at=now, by="test", reason="", digest="", spec=desired().spec)
    documents.launch(name).write(launch)
    beat = Heartbeat(incarnation=name, at=now, started_at=now, state=DriverState.RUNNING, process=GONE, generation=1)
    documents.heartbeat(name).write(beat)
    done = BatchProgress(batch=batch, at=now, duration_ms=1, rows_in=1, rows_out=rows)
    documents.progress(name).write(Progress(incarnation=name, at=now, last=done, recent=[done]))


def committed(workspace: Workspace, batch: int) -> None:
    begun(workspace, batch)
    workspace.files.write(f"{PATH}/commits/{batch}", b"v1\n{}")


def test_a_table_without_a_batch_that_wrote_rows_is_an_older_copy(workspace: Workspace) -> None:
    for batch in range(4):
        committed(workspace, batch)
    wrote(workspace, 0)
    wrote(workspace, 1)
    report(workspace, 1, rows=1)
    # Without rows, a batch leaves no commit.
    report(workspace, 2, rows=0)
    check(workspace)
    report(workspace, 3, rows=1)
    with pytest.raises(
        StreamwardenError, match=f"batch 3 of generation 1 .* {table()} has its batches up to 1"
    ) as raised:
        check(workspace)
    assert raised.value.code == "OUTPUT_BEHIND" and not raised.value.retryable
    # The batches of another generation say nothing.
    check(workspace, generation=2)
    (workspace.root / PATH / "commits" / "3").unlink()
    # Nor does a report of a batch that this copy of the checkpoint has not committed: it will be written.
    check(workspace)


def test_a_table_that_has_become_the_main_one_lacks_no_batch(workspace: Workspace) -> None:
    committed(workspace, 0)
    wrote(workspace, 0)
    report(workspace, 0, rows=1)
    # Rows of the table that was the main one then.
    other = {"table": "other", "output": "other", "mode": "append"}
    before = desired().spec
    sinks = [other, *(sink.model_dump() for sink in before.sinks)]
    swapped = JobSpec.model_validate({**before.model_dump(exclude_defaults=True), "sinks": sinks})
    write_deltalake(workspace.table("other"), pa.table({"batch": [0]}))
    check_written(workspace, swapped, of(1), CheckpointReader(workspace.storage, PATH))


def test_a_source_table_without_versions_that_were_read_is_an_older_copy(workspace: Workspace) -> None:
    spec = JobSpec.model_validate(
        {**desired().spec.model_dump(exclude_defaults=True), "source": {"kind": "delta", "table": "arrived"}}
    )

    def check_at(version: int, index: int) -> None:
        position = json.dumps({"reservoirVersion": version, "index": index})
        workspace.files.write(f"{PATH}/offsets/0", f"v1\n{{}}\n{position}".encode())
        check_read(workspace, spec, of(1), CheckpointReader(workspace.storage, PATH))

    # Without a table, the driver waits for it.
    check_at(5, -1)
    for _ in range(3):
        write_deltalake(workspace.table("arrived"), pa.table({"x": [1]}), mode="append")
    check_at(0, -1)
    check_at(2, 0)
    check_at(3, -1)
    for version, index in ((3, 0), (4, -1)):
        with pytest.raises(
            StreamwardenError, match=r"version 3 of table arrived was read, and .* ends with version 2"
        ) as raised:
            check_at(version, index)
        assert raised.value.code == "SOURCE_BEHIND"


def test_a_checkpoint_of_a_later_spark_is_refused(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    check_spark(documents, of(1))
    report(workspace, 1, rows=1)
    name = documents.incarnations()[-1]

    def written_by(version: str) -> None:
        update = {"versions": {"spark": version}}
        documents.heartbeat(name).update(lambda was: was.model_copy(update=update))  # type: ignore[union-attr]

    monkeypatch.setattr("streamwarden.savepoints.compatibility.version", lambda _: "4.2.1")
    for version in ("4.1.9", "4.2.0", "4.2.9"):
        written_by(version)
        check_spark(documents, of(1))
    for version in ("4.3.0", "5.0.0", "3.5.0"):
        written_by(version)
        with pytest.raises(StreamwardenError, match=f"batch 1 was written by Spark {version}, here is 4.2.1") as raised:
            check_spark(documents, of(1))
        assert raised.value.code == "CHECKPOINT_NEWER_SPARK"
        # Another generation is another checkpoint; and a driver that ended before its first batch wrote nothing.
        check_spark(documents, of(2))
    documents.progress(name).write(Progress(incarnation=name, at=utc_now()))
    check_spark(documents, of(1))


def test_a_checkpoint_without_its_document_is_no_new_job(workspace: Workspace) -> None:
    check_first_start(workspace, JOB)
    begun(workspace, 0)
    with pytest.raises(StreamwardenError, match=f"control/{JOB}/checkpoint.json: it is missing, .* has g000001"):
        check_first_start(workspace, JOB)


def test_no_generation_that_left_a_trace_is_used_again(workspace: Workspace) -> None:
    spec = desired().spec
    (workspace.config / "jobs").mkdir(exist_ok=True)
    (workspace.config / "jobs" / f"{JOB}.yaml").write_text(spec.model_dump_json())
    assert used_generations(workspace, JOB) == set()
    wrote(workspace, 4, generation=2)
    fence(workspace, table(), of(5, highest=6))
    assert used_generations(workspace, JOB) == {1, 2, 3, 4, 6}
    begun(workspace, 0)
    workspace.files.write(f"checkpoints/{JOB}/g000009/offsets/0", b"v1")
    assert max(used_generations(workspace, JOB)) == 9


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("spark.sql.shuffle.partitions", "7", "STATE_PARTITIONS_FIXED"),
        ("spark.sql.streaming.stateStore.providerClass", PROVIDERS["memory"], "STATE_BACKEND_FIXED"),
    ],
)
def test_what_a_checkpoint_has_fixed_cannot_be_changed(
    workspace: Workspace, setting: str, value: str, code: str
) -> None:
    spec = desired().spec
    conf = {
        "spark.sql.shuffle.partitions": str(spec.state.partitions),
        "spark.sql.streaming.stateStore.providerClass": PROVIDERS[spec.state.backend],
    }

    def recorded(conf: dict[str, str]) -> None:
        workspace.files.write(f"{PATH}/offsets/0", f"v1\n{json.dumps({'conf': conf})}\n-".encode())

    recorded({**conf, setting: value})
    reader = CheckpointReader(workspace.storage, PATH)
    # Without state nothing is fixed.
    check_fixed(spec, reader)
    workspace.files.write(f"{PATH}/state/0/_metadata/metadata", b"v1")
    with pytest.raises(StreamwardenError) as raised:
        check_fixed(spec, reader)
    assert raised.value.code == code and value.rpartition(".")[2] in raised.value.what
    recorded(conf)
    check_fixed(spec, reader)


def test_state_of_another_version_is_refused_by_its_name(workspace: Workspace) -> None:
    spec, reader = desired().spec, CheckpointReader(workspace.storage, PATH)
    # Without state a new version has nothing to read.
    check_version(spec, 2, 1, reader)
    workspace.files.write(f"{PATH}/state/0/_metadata/metadata", b"v1")
    check_version(spec, 1, 1, reader)
    check_version(spec, 2, None, reader)
    with pytest.raises(StreamwardenError, match="STATE_VERSION_FIXED") as raised:
        check_version(spec, 2, 1, reader)
    assert "version 2, and version 1 wrote the state" in raised.value.what
