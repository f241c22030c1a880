from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, OperatorState
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.savepoints.compatibility import (
    incompatibilities,
    job_version,
    migrates,
    missing_outputs,
    readers_of,
    spark_version,
)
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.batches import made_desired
from tests.unit.formats.test_checkpoint_files import CHECKPOINT, Made
from tests.unit.savepoints.test_catalog import manifest

pytestmark = pytest.mark.unit

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
MAJOR, MINOR = (int(part) for part in version("pyspark").split(".")[:2])

KAFKA = {"kind": "kafka", "topic": "trips", "bootstrap_servers": "one:9092"}
TOPICS = {"kind": "kafka", "bootstrap_servers": "one:9092"}

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


def spec(**values: Any) -> JobSpec:
    fields: dict[str, Any] = {
        "name": "job",
        "module": "tests_compat_job",
        "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": "job", "mode": "append"}],
        "state": {"partitions": 2},
    }
    return JobSpec.model_validate({**fields, **values})


@pytest.fixture(autouse=True)
def job_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's module that must not be imported."""
    path = tmp_path / "modules" / "tests_compat_job.py"
    path.parent.mkdir()
    path.write_text("VERSION = 2\nraise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(path.parent))
    return path


@pytest.fixture
def made(workspace: Workspace) -> Made:
    """The checkpoint that the job runs on: batches 0 to 2 of a file source, one operator of two partitions."""
    found = Made(workspace.root)
    for batch in range(3):
        found.batch(batch, [json.dumps({"logOffset": batch})])
        path = landed(workspace, f"{batch}.txt")
        found.write(f"sources/0/{batch}", f"v1\n{json.dumps({'path': f'file://{path}', 'batchId': batch})}")
    found.operator(partitions=2, version=2)
    for partition in range(2):
        found.changes(f"state/0/{partition}", range(1, 4))
    return found


def landed(workspace: Workspace, name: str) -> Path:
    path = workspace.root / "landing" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    return path


def current(**values: Any) -> CheckpointRef:
    fields: dict[str, Any] = {"job": "job", "generation": 1, "path": CHECKPOINT, "since": utc_now(), "reason": ""}
    return CheckpointRef(**{**fields, **values})


def of(made: Made, batch: int = 1, **values: Any) -> Manifest:
    """Return the manifest of a savepoint of that checkpoint, changed in some fields."""
    operators = [
        OperatorState(
            id=one.id,
            name=one.name,
            partitions=one.partitions,
            stores=one.stores,
            rows=1,
            bytes=one.bytes,
            schema_sha256=one.schema_sha256,
        )
        for one in made.closure(batch).operators
    ]
    fields: dict[str, Any] = {
        "job": "job",
        "batch": batch,
        "sources": [json.dumps({"logOffset": batch})],
        "settings": {PROVIDER: ROCKSDB},
        "operators": operators,
        "versions": {"spark": version("pyspark"), "job": "2"},
        "spec": spec(),
    }
    return manifest("1", **{**fields, **values})


def codes(
    workspace: Workspace, found: Manifest, now: JobSpec | None = None, ref: CheckpointRef | None = None
) -> list[str]:
    return [one.code for one in incompatibilities(workspace, found, now or spec(), ref or current())]


def test_a_savepoint_of_the_job_as_it_is_fits(workspace: Workspace, made: Made) -> None:
    assert codes(workspace, of(made)) == []
    assert incompatibilities(workspace, of(made), spec(), None) == []


def test_another_version_of_the_job_does_not_fit(workspace: Workspace, made: Made) -> None:
    found = of(made, versions={"spark": version("pyspark"), "job": "1"})
    (reason,) = incompatibilities(workspace, found, spec(), current())
    assert reason.code == "RESTORE_JOB_VERSION" and "is version 2, the savepoint has version 1" in reason.what


def test_a_version_that_the_module_migrates_may_have_other_state(
    workspace: Workspace, made: Made, job_module: Path
) -> None:
    job_module.write_text("VERSION = 2\nMIGRATES_FROM = (1,)\nraise AssertionError('imported')\n")
    versions = {"spark": version("pyspark"), "job": "1"}
    others = [one.model_copy(update={"name": "other"}) for one in of(made).operators]
    found = of(made, versions=versions, operators=others, settings={PROVIDER: MEMORY})
    assert migrates(found, spec()) and codes(workspace, found, spec(state={"partitions": 4, "buckets": 64})) == []
    elsewhere = of(made, versions=versions, spec=spec(source=DELTA))
    assert codes(workspace, elsewhere) == ["RESTORE_SOURCE_CHANGED"], "the source goes on"
    for other in ({"job": "3"}, {"job": "2"}, {}):
        assert not migrates(of(made, versions=other), spec())
    assert not migrates(of(made, versions=versions, operators=[]), spec()), "there is no state"
    job_module.write_text("VERSION = 2\nMIGRATES_FROM = [1, 2]\n")
    assert migrates(found, spec()) and not migrates(of(made, versions={"job": "2"}), spec())
    job_module.write_text("VERSION = 2\nMIGRATES_FROM = (1)\n")
    with pytest.raises(StreamwardenError, match=r"JOB_MODULE_INVALID.*such as \(1,\)"):
        migrates(found, spec())


@pytest.mark.parametrize(
    ("writer", "fits"),
    [
        (f"{MAJOR}.{MINOR}.9", True),
        (f"{MAJOR}.{MINOR - 1}.0", True),
        (f"{MAJOR}.{MINOR}.0.dev1", True),
        (f"{MAJOR}.{MINOR + 1}.0", False),
        (f"{MAJOR - 1}.9.0", False),
        (f"{MAJOR + 1}.0.0", False),
    ],
)
def test_a_newer_spark_or_another_major_version_does_not_fit(
    workspace: Workspace, made: Made, writer: str, fits: bool
) -> None:
    found = of(made, versions={"spark": writer, "job": "2"})
    assert codes(workspace, found) == ([] if fits else ["RESTORE_SPARK_VERSION"])


def test_versions_that_nobody_noted_hinder_nothing(workspace: Workspace, made: Made) -> None:
    assert codes(workspace, of(made, versions={})) == []


def test_other_operators_do_not_fit(workspace: Workspace, made: Made) -> None:
    (one,) = of(made).operators
    for operators in (
        [],
        [one.model_copy(update={"name": "dedupe"})],
        [one.model_copy(update={"id": 1})],
        [one, one.model_copy(update={"id": 1})],
    ):
        assert codes(workspace, of(made, operators=operators)) == ["RESTORE_OPERATORS"]


def test_another_state_schema_does_not_fit(workspace: Workspace, made: Made) -> None:
    (one,) = of(made).operators
    found = of(made, operators=[one.model_copy(update={"schema_sha256": "another"})])
    (reason,) = incompatibilities(workspace, found, spec(), current())
    assert reason.code == "RESTORE_STATE_SCHEMA" and "operator 0 (stateStoreSave)" in reason.what


def test_another_number_of_partitions_does_not_fit(workspace: Workspace, made: Made) -> None:
    assert codes(workspace, of(made), spec(state={"partitions": 4})) == ["RESTORE_PARTITIONS"]


def test_another_number_of_buckets_does_not_fit(workspace: Workspace, made: Made) -> None:
    kept = of(made, spec=spec(state={"partitions": 2, "buckets": 16}))
    assert codes(workspace, kept, spec(state={"partitions": 2, "buckets": 16})) == []
    assert codes(workspace, kept, spec(state={"partitions": 2, "buckets": 32})) == ["RESTORE_BUCKETS"]
    assert codes(workspace, kept, spec(state={"partitions": 2})) == ["RESTORE_BUCKETS"]


@pytest.mark.parametrize(("provider", "backend"), [(MEMORY, "rocksdb"), (ROCKSDB, "memory")])
def test_another_backend_does_not_fit(workspace: Workspace, made: Made, provider: str, backend: str) -> None:
    now = spec(state={"partitions": 2, "backend": backend})
    assert codes(workspace, of(made, settings={PROVIDER: provider}), now) == ["RESTORE_BACKEND"]


def test_a_stateless_job_may_change_partitions_and_backend(workspace: Workspace) -> None:
    made = Made(workspace.root)
    made.batch(0, ["-"])
    found = of(made, 0, sources=[None], settings={PROVIDER: MEMORY})
    assert codes(workspace, found, spec(state={"partitions": 9})) == []


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({"kind": "files", "path": "landing"}, {"kind": "files", "path": "elsewhere"}),
        ({"kind": "files", "path": "landing"}, {"kind": "delta", "table": "trips"}),
        ({"kind": "delta", "table": "trips"}, {"kind": "files", "path": "landing"}),
        ({"kind": "delta", "table": "trips"}, {"kind": "delta", "table": "rides"}),
        ({"kind": "delta", "table": "trips"}, KAFKA),
        (KAFKA, {**KAFKA, "topic": "rides"}),
        ({**TOPICS, "topics": ["trips", "rides"]}, KAFKA),
        (KAFKA, {**TOPICS, "topic_pattern": "trips"}),
        ({**TOPICS, "topic_pattern": "trips"}, {**TOPICS, "topic_pattern": "trips|rides"}),
    ],
)
def test_another_source_does_not_fit(
    workspace: Workspace, made: Made, then: dict[str, Any], now: dict[str, Any]
) -> None:
    assert codes(workspace, of(made, spec=spec(source=then)), spec(source=now)) == ["RESTORE_SOURCE_CHANGED"]


def test_a_topic_by_another_address_fits(workspace: Workspace, made: Made) -> None:
    found = of(made, spec=spec(source=KAFKA), sources=['{"trips":{"0":12}}'])
    assert codes(workspace, found, spec(source={**KAFKA, "bootstrap_servers": "two:9092"})) == []


def test_a_topic_more_fits(workspace: Workspace, made: Made) -> None:
    found = of(made, spec=spec(source=KAFKA), sources=['{"trips":{"0":12}}'])
    assert codes(workspace, found, spec(source={**TOPICS, "topics": ["rides", "trips"]})) == []


def test_another_pace_of_the_same_source_fits(workspace: Workspace, made: Made) -> None:
    assert codes(workspace, of(made), spec(source={"kind": "files", "path": "landing", "max_files_per_batch": 1})) == []


def test_files_that_came_later_and_are_gone_are_named(workspace: Workspace, made: Made) -> None:
    landed(workspace, "0.txt").unlink()
    assert codes(workspace, of(made, 0)) == [], "what the savepoint has read itself is not read again"
    landed(workspace, "2.txt").unlink()
    (reason,) = incompatibilities(workspace, of(made, 0), spec(), current())
    assert reason.code == "RESTORE_SOURCE_GONE" and "1 later files" in reason.what and "2.txt" in reason.what
    assert codes(workspace, of(made, 2)) == []


def test_files_of_a_compacted_log_are_looked_for_too(workspace: Workspace, made: Made) -> None:
    entries = [{"path": f"file://{workspace.root}/landing/with%20space.txt", "batchId": 3}]
    entries += [{"path": f"s3a://bucket/{number}", "batchId": number} for number in range(9)]
    made.write("sources/0/9.compact", "\n".join(["v1", *map(json.dumps, entries)]))
    assert codes(workspace, of(made, 1)) == ["RESTORE_SOURCE_GONE"]
    landed(workspace, "with space.txt")
    assert codes(workspace, of(made, 1)) == []


def test_many_missing_files_are_counted_and_some_are_named(workspace: Workspace, made: Made) -> None:
    lines = [json.dumps({"path": f"file:///nowhere/{number}.txt", "batchId": 2}) for number in range(9)]
    made.write("sources/0/2", "\n".join(["v1", *lines]))
    (reason,) = incompatibilities(workspace, of(made, 1), spec(), current())
    assert "9 later files" in reason.what and "and 4 more" in reason.what and "5.txt" not in reason.what


# -- a Delta table as the source ---------------------------------------------------------------------------------------

DELTA = {"kind": "delta", "table": "trips"}


def _table(workspace: Workspace, versions: range, name: str = "the-table") -> None:
    for number in versions:
        text = json.dumps({"metaData": {"id": name}} if number == 0 else {"commitInfo": {}})
        workspace.files.write(f"tables/trips/_delta_log/{number:020d}.json", text.encode())


def _reading(made: Made, version: int) -> Manifest:
    return of(
        made, sources=[json.dumps({"reservoirId": "the-table", "reservoirVersion": version})], spec=spec(source=DELTA)
    )


def test_a_savepoint_of_the_history_needs_that_history(workspace: Workspace, made: Made) -> None:
    write_deltalake(workspace.table("before"), pa.table({"key": [1]}))
    uri, _ = workspace.delta_rs("before")
    live = {**KAFKA, "history": {"table": "before", "live_from": "2026-01-01T00:00:00Z"}}

    def reasons(table_id: str, history: dict[str, str] | None, *, version: int = 1) -> list[str]:
        position = {"reservoirId": table_id, "reservoirVersion": version}
        taken = of(made, sources=[json.dumps(position)], spec=spec(source=live))
        now = spec(source={**live, "history": history})
        return [f"{one.code} {one.what}" for one in incompatibilities(workspace, taken, now, None)]

    known = str(DeltaTable(uri).metadata().id)
    assert reasons(known, live["history"]) == []
    (changed,) = reasons(known, {**live["history"], "where": "key > 1"})
    (removed,) = reasons(known, None)
    assert changed == removed and changed.startswith(
        "RESTORE_SOURCE_CHANGED the savepoint was taken while the job read"
    )
    (replaced,) = reasons("another", live["history"])
    assert "created anew" in replaced
    (short,) = reasons(known, live["history"], version=7)
    assert short.startswith("RESTORE_SOURCE_GONE")


@pytest.mark.parametrize(
    ("versions", "name", "words"),
    [
        (range(6), "the-table", None),
        (range(5, 9), "the-table", None),
        # Spark goes on from the version after the last one that it read to the end.
        (range(5), "the-table", None),
        (range(4), "the-table", "at version 3, the savepoint continues from 5"),
        (range(6), "another", "created anew"),
        (range(6, 9), "the-table", "begins with version 6"),
        (range(0), "the-table", "does not exist"),
    ],
)
def test_a_delta_source_must_have_all_versions_that_came_after(
    workspace: Workspace, made: Made, versions: range, name: str, words: str | None
) -> None:
    if name == "another":
        # A real one, since Delta's own reader is asked for the id.
        for number in versions:
            write_deltalake(workspace.delta_rs("trips")[0], pa.table({"a": [number]}), mode="append")
    else:
        _table(workspace, versions, name)
    found = incompatibilities(workspace, _reading(made, 5), spec(source=DELTA), current())
    assert [one.code for one in found] == ([] if words is None else ["RESTORE_SOURCE_GONE"])
    assert words is None or words in found[0].what


# -- without a whole checkpoint to compare with ------------------------------------------------------------------------


def test_a_damaged_checkpoint_can_be_restored_over(workspace: Workspace, made: Made) -> None:
    found = of(made, 1)
    made.remove("state/0/1/3.changelog")
    assert codes(workspace, found) == []
    made.remove("offsets/2")
    assert codes(workspace, found) == []


def test_a_checkpoint_that_is_gone_hinders_nothing(workspace: Workspace, made: Made) -> None:
    assert codes(workspace, of(made), ref=current(path="checkpoints/job/g000009")) == []


def test_a_checkpoint_without_a_commit_hinders_nothing(workspace: Workspace, made: Made) -> None:
    found = of(made)
    made.remove(*(f"commits/{batch}" for batch in range(3)))
    assert codes(workspace, found) == []


def test_every_reason_is_given(workspace: Workspace, made: Made) -> None:
    found = of(made, operators=[], versions={"spark": f"{MAJOR + 1}.0", "job": "1"}, spec=spec(source=DELTA))
    assert codes(workspace, found) == [
        "RESTORE_JOB_VERSION",
        "RESTORE_SPARK_VERSION",
        "RESTORE_OPERATORS",
        "RESTORE_SOURCE_CHANGED",
    ]


# -- a module's version ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("VERSION = 2\nraise AssertionError('imported')", 2),
        ("VERSION: int = 3", 3),
        ("VERSION: Final = 3", 3),
        ("from x import y\nif True:\n    pass\nA = VERSION = 4", 4),
        ("VERSION = 1 + 1", None),
        ("VERSION = '2'", None),
        ("OTHER = 2", None),
        ("def f():\n    VERSION = 2", None),
        ("VERSION = 1\nVERSION = 2", 2),
    ],
)
def test_a_version_is_read_without_importing_the_module(job_module: Path, text: str, found: int | None) -> None:
    job_module.write_text(text)
    assert job_version("tests_compat_job") == found
    assert "tests_compat_job" not in sys.modules


def test_a_module_that_is_no_python_is_told_before_anything_stops(workspace: Workspace, job_module: Path) -> None:
    job_module.write_text("VERSION = 2\ndef transform(:\n")
    with pytest.raises(StreamwardenError, match=r"JOB_MODULE_INVALID.*tests_compat_job"):
        incompatibilities(workspace, manifest("1", versions={"job": "2"}), spec(), None)


def test_the_projects_own_jobs_have_a_version() -> None:
    for name in ("card_sessions", "ingest_trips", "zone_windows"):
        assert isinstance(job_version(f"spark_jobs.{name}"), int)


@pytest.mark.parametrize("name", ["no_such_module_anywhere", "no_such_package.module", "sys"])
def test_a_module_that_has_no_file_has_no_version(name: str) -> None:
    assert job_version(name) is None


# -- readers -----------------------------------------------------------------------------------------------------------


def test_jobs_that_stream_from_a_table_are_found(workspace: Workspace) -> None:
    for name, source in (
        ("job", DELTA),
        ("one", DELTA),
        ("two", DELTA),
        ("three", {"kind": "delta", "table": "rides"}),
        ("four", {"kind": "files", "path": "landing"}),
    ):
        now = spec(name=name, source=source, sinks=[{"table": name, "mode": "append"}])
        JobDocuments(workspace.storage, name).desired.write(made_desired(now))
    workspace.files.write("control/never_deployed/operation.json", b"{}")
    assert readers_of(workspace, ["trips", "nothing"], but="job") == {"trips": ["one", "two"]}
    assert readers_of(workspace, [], but="job") == {}


def test_an_output_version_that_was_vacuumed_or_never_was_is_found(workspace: Workspace) -> None:
    uri = workspace.table("rows")
    for number in range(3):
        write_deltalake(uri, pa.table({"a": [number]}), mode="append")
    starts = [OutputStart(table="rows", version=1)]
    assert missing_outputs(workspace, starts) == []
    assert missing_outputs(workspace, [OutputStart(table="copy", version=1, source="rows")]) == []
    assert missing_outputs(workspace, [OutputStart(table="rows", version=None)]) == []
    (unknown,) = missing_outputs(workspace, [OutputStart(table="rows", version=9)])
    assert unknown.code == "RESTORE_OUTPUT_GONE" and "version 9" in unknown.what
    data = DeltaTable(uri, version=0).file_uris()[0]
    Path(data).unlink()
    (gone,) = missing_outputs(workspace, starts)
    assert gone.code == "RESTORE_OUTPUT_GONE" and Path(data).name in gone.what


def test_without_pyspark_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("streamwarden.savepoints.compatibility.version", missing)
    with pytest.raises(StreamwardenError, match=r"SPARK_MISSING.*pyspark"):
        spark_version()
