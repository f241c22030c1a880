"""Failures provoked in real drivers: each is named, says what to do, and takes no more tries than can help."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from streamwarden.airflow.logtail import describe_error
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.record import ErrorInfo
from streamwarden.model.savepoint import Origin
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.diagnosis import Diagnosis, diagnose
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.restore import restore
from streamwarden.operations.spec_diff import plan
from streamwarden.operations.status import job_status
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.supervision import driver_control
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.integration.conftest import BY, REPOSITORY, ROOT, Place, log_of

pytestmark = pytest.mark.integration

JOB = "failing"


def _configure(place: Place, how: str = "", *, job: str = JOB, **fields: Any) -> None:
    place.job(
        job,
        **{
            "module": "tests.integration.jobs.failing",
            "source": {"kind": "delta", "table": "facts", "max_files_per_batch": 1},
            "sinks": [{"table": "counted", "mode": "upsert", "keys": ["key"]}],
            "options": {"how": how},
            "resources": {"cores": 1, "memory": "512m"},
            # What is hopeless must not wait for these.
            "failures": {"tolerable_consecutive": 5, "backoff": "60s"},
            **fields,
        },
    )


def _append(place: Place, **columns: Any) -> None:
    rows = columns or {"key": [1, 2, 3], "x": [0.5, 1.5, 2.5]}
    write_deltalake(place.workspace.table("facts"), pa.table(rows), mode="append", schema_mode="merge")


def _committed(place: Place, batch: int) -> None:
    def reached(seen: Observation) -> bool:
        assert seen.phase.alive, seen.error
        return bool(seen.heartbeat and (seen.heartbeat.batch or -1) >= batch)

    place.wait(JOB, reached, f"batch {batch}", timeout=400)


def _counted(place: Place, expected: dict[int, int], *, job: str = JOB, table: str = "counted") -> None:
    """Wait until the rows that the job has counted by key are these."""

    def reached(seen: Observation) -> bool:
        assert seen.phase.alive, seen.error
        begun = DeltaLog(place.workspace.files, table).latest is not None
        return begun and {row["key"]: row["rows"] for row in place.rows(table)} == expected

    place.wait(job, reached, f"{expected} counted", timeout=400)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A job that ran for three batches, with a verified savepoint of them; each test gets a copy."""
    folder = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        place = Place(folder)
        _configure(place)
        for _ in range(3):
            _append(place)
        deploy_job(place.workspace, JOB, by=BY)
        try:
            _committed(place, 2)
            assert driver_control.stop(place.workspace, JOB, by=BY).phase is Phase.STOPPED
        finally:
            place.kill_all()
        made = take(place.workspace, JOB, origin=Origin.MANUAL, by=BY)
        found = catalog.find(place.workspace, JOB, made.id)
        assert verify(place.workspace, [found], by=BY, state=False)[made.id].verdict == "verified"
        yield folder


@pytest.fixture
def again(ran: Path, place: Place) -> Place:
    """The same job in a place of its own, with a fourth file to be read."""
    # By bytes: the savepoint's files are hard links of the checkpoint's, and must not be damaged with it.
    shutil.copytree(ran / ROOT, place.workspace.root)
    _configure(place)
    _append(place)
    return place


def _fails(place: Place, code: str, *, retryable: bool, tries: int | None = 1) -> tuple[Observation, Diagnosis]:
    deploy_job(place.workspace, JOB, by=BY)
    ended = place.wait(JOB, lambda seen: not seen.phase.alive, "the failure", timeout=400)
    assert ended.phase is Phase.FAILED and ended.error is not None, log_of(place, JOB)
    assert (ended.error.code, ended.error.retryable) == (code, retryable), ended.error
    assert ended.heartbeat is not None and ended.exit is not None
    log = log_of(place, JOB)
    tried = log.count(" of the batch after ")
    # None: the JVM was gone before the batch's end could be told, or just then; there is no second try in either case.
    assert tried <= 1 if tries is None else tried == tries, "it was tried more or less often than can help"
    verdict = decide(ended, place.documents(JOB).supervision.read() or Supervision())
    assert verdict.action is (Action.RESTART if retryable else Action.FAIL)
    found = diagnose(place.workspace, ended)
    assert found is not None and found.code == code and found.evidence
    status = job_status(place.workspace, JOB)
    assert status["diagnosis"]["code"] == code and status["diagnosis"]["act"] == found.act
    return ended, found


def _state_files(place: Place) -> list[Path]:
    reference = place.documents(JOB).checkpoint.read()
    assert reference is not None
    return sorted((place.workspace.root / reference.path / "state" / "0").glob("[0-9]*/*.changelog"))


def _remove(path: Path) -> None:
    path.unlink()


def _garble(path: Path) -> None:
    path.write_bytes(b"no changelog at all " * 5)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.parametrize("damage", [_cut, _remove, _garble])
def test_damaged_state_is_named_with_the_savepoint_to_go_back_to(again: Place, damage: Callable[[Path], None]) -> None:
    for path in _state_files(again):
        damage(path)
    _, found = _fails(again, "CHECKPOINT_DAMAGED", retryable=False)
    (savepoint,) = catalog.savepoints(again.workspace, JOB)
    assert found.command == f"streamwarden restore {JOB} --savepoint {savepoint.manifest.id}"
    assert "batch 2" in found.act
    if damage is _remove:
        assert "does not exist" in found.evidence and ".changelog" in found.evidence
        # What it advises is what helps.
        done = restore(again.workspace, JOB, savepoint=savepoint.manifest.id, by=BY)
        assert done.state == "done", done.error
        _committed(again, 3)
        assert {row["key"]: row["rows"] for row in again.rows("counted")} == {1: 4, 2: 4, 3: 4}


@pytest.mark.long
def test_another_aggregation_over_the_same_checkpoint(again: Place) -> None:
    _configure(again, "state")
    _, found = _fails(again, "STATE_SCHEMA_CHANGED", retryable=False)
    assert "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE" in found.evidence
    assert found.command.startswith(f"streamwarden deploy {JOB}")


@pytest.mark.long
def test_a_column_that_is_added_is_followed_and_one_of_another_type_is_not(again: Place) -> None:
    # Once more than other hopeless ones: the first try found the columns as they had been when it began.
    _configure(again, failures={"tolerable_consecutive": 5, "backoff": "1s"})
    deploy_job(again.workspace, JOB, by=BY)
    _committed(again, 3)
    _append(again, key=[1], x=[1.0], note=["new"])
    _committed(again, 4)
    assert observe(again.workspace, JOB).incarnation is not None
    driver_control.stop(again.workspace, JOB, by=BY)
    _append(again)
    other = pa.table({"key": ["1"], "x": [1.0]})
    write_deltalake(again.workspace.table("facts"), other, mode="overwrite", schema_mode="overwrite")
    _, found = _fails(again, "SOURCE_SCHEMA_CHANGED", retryable=False, tries=2)
    assert "DELTA_SCHEMA_CHANGED" in found.evidence


@pytest.mark.long
@pytest.mark.parametrize("what", ["data", "log"])
def test_source_data_that_is_gone(again: Place, what: str) -> None:
    table = Path(again.workspace.table("facts"))
    newest = max(table.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    if what == "data":
        newest.rename(newest.with_suffix(".aside"))
    else:
        _append(again)
        DeltaTable(table).create_checkpoint()
        # As log retention does it to a job that lags too far behind.
        for version in range(4):
            (table / "_delta_log" / f"{version:020}.json").unlink()
    _, found = _fails(again, "SOURCE_DATA_GONE", retryable=False)
    assert "table facts" in found.act
    assert (".parquet" if what == "data" else "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE") in found.evidence
    # What it says, one of each: the file is brought back, or another job begins with what the table has.
    if what == "data":
        newest.with_suffix(".aside").rename(newest)
        deploy_job(again.workspace, JOB, by=BY)
        _counted(again, {1: 4, 2: 4, 3: 4})
    else:
        assert "a job of another name, with tables of its own, starts with the whole table" in found.act
        _configure(again, job="anew", sinks=[{"table": "anew", "mode": "upsert", "keys": ["key"]}])
        deploy_job(again.workspace, "anew", by=BY)
        _counted(again, {1: 5, 2: 5, 3: 5}, job="anew", table="anew")


@pytest.mark.long
def test_output_data_that_is_gone(again: Place) -> None:
    for path in Path(again.workspace.table("counted")).glob("*.parquet"):
        path.unlink()
    _, found = _fails(again, "OUTPUT_DATA_GONE", retryable=False)
    assert "counted" in found.evidence and ".parquet" in found.evidence


@pytest.mark.long
def test_rows_of_the_source_that_were_changed(again: Place) -> None:
    facts = DeltaTable(again.workspace.table("facts"))
    facts.delete("key = 1")
    _append(again)
    _, found = _fails(again, "SOURCE_ROWS_CHANGED", retryable=False)
    assert "DELTA_SOURCE_TABLE_IGNORE_CHANGES" in found.evidence and "skipChangeCommits" not in found.evidence
    assert "the commit of version 4, DELETE, set source.on_change: skip in config/jobs/failing.yaml" in found.act
    # What it says: the job goes on behind that commit, and reads all others once.
    skipping = {"kind": "delta", "table": "facts", "max_files_per_batch": 1, "on_change": "skip"}
    _configure(again, source=skipping)
    planned = plan(again.workspace, JOB)
    assert [(one.field, one.effect) for one in planned.changes] == [("source.on_change", Effect.RESTART)]
    deploy_job(again.workspace, JOB, by=BY)
    _counted(again, {1: 5, 2: 5, 3: 5})
    status = job_status(again.workspace, JOB)
    words = "version 4 of facts deleted or updated rows (DELETE); the job skipped it"
    assert [(one["rule"], one["level"], one["what"]) for one in status["findings"]] == [("passed_over", "warn", words)]
    # Of a commit that does both, the new rows aren't read either; of one that rearranges files nothing is said.
    facts.update_incremental()
    merge = facts.merge(pa.table({"key": [2, 9], "x": [0.0, 0.0]}), "s.key = t.key", "s", "t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    facts.optimize.compact()
    _append(again, key=[7], x=[0.5])
    _counted(again, {1: 5, 2: 5, 3: 5, 7: 1})
    again.wait(JOB, lambda seen: bool(seen.heartbeat and seen.heartbeat.idle), "an idle query")
    (finding,) = job_status(again.workspace, JOB)["findings"]
    assert finding["what"].startswith("2 commits of its source, the last: version 6 of facts")
    assert finding["what"].endswith("(MERGE); the job skipped it, and did not read the rows that it added")
    totals = again.documents(JOB).current_totals()
    assert totals is not None and totals.commits_skipped == 2
    # Nor does a savepoint of before, or the change back, stand in the way of a job that is to pass over it.
    made = catalog.savepoints(again.workspace, JOB)[0]
    restore(again.workspace, JOB, savepoint=made.manifest.id, by=BY)
    _counted(again, {1: 5, 2: 5, 3: 5, 7: 1})
    _configure(again)
    assert deploy_job(again.workspace, JOB, by=BY).effect is Effect.RESTART
    _append(again, key=[7], x=[0.5])
    _counted(again, {1: 5, 2: 5, 3: 5, 7: 2})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param("outputs", "KeyError: 'night'", marks=pytest.mark.long),
        pytest.param("worker", "KeyError: 'weekend'", marks=[pytest.mark.long, pytest.mark.ci]),
    ],
)
def test_an_exception_of_the_jobs_own_code_shows_its_traceback_first(again: Place, how: str, said: str) -> None:
    _configure(again, how, failures={"tolerable_consecutive": 1, "backoff": "100ms"})
    ended, found = _fails(again, "JOB_CODE_FAILED", retryable=True, tries=2)
    assert ended.error is not None and "2 failed tries in a row" in ended.error.what
    assert found.evidence.endswith(said)
    own = ended.error.traceback.split("\n\n")[0].splitlines()
    assert own[0] == "Traceback (most recent call last):" and own[-1] == said
    assert any("jobs/failing.py" in line and "_tariff" in line for line in own)
    assert not any("site-packages/py4j" in line for line in own)
    # When its restarts are spent, that is what the task's log and the error show.
    spec = ended.desired.spec if ended.desired else None
    assert spec is not None and ended.desired is not None
    hopeless = spec.model_copy(update={"restarts": spec.restarts.model_copy(update={"max": 0})})
    seen = Observation(**{**vars(ended), "desired": ended.desired.model_copy(update={"spec": hopeless})})
    verdict = decide(seen, Supervision())
    assert verdict.action is Action.FAIL and verdict.error is not None
    assert verdict.error.code == "RESTART_BUDGET_SPENT" and said in verdict.error.what
    text = describe_error(again.workspace, ended, ErrorInfo.model_validate(verdict.error.model_dump()))
    assert text.index("Diagnosis: ") < text.index("Traceback (most recent") < text.index("--- the end of")


@pytest.mark.long
def test_a_worker_of_the_jobs_python_that_dies(again: Place) -> None:
    _configure(again, "gone worker", failures={"tolerable_consecutive": 0})
    _, found = _fails(again, "PYTHON_WORKER_DIED", retryable=True)
    assert "Python worker exited unexpectedly" in found.evidence


def _jvm_after_batches(place: Place) -> int:
    """Start the job, and return its JVM's process id once it has committed some batches."""
    deploy_job(place.workspace, JOB, by=BY)
    _committed(place, 3)
    lease = place.documents(JOB).lease.read()
    assert lease is not None and lease.jvm is not None
    return lease.jvm.pid


@pytest.mark.long
def test_a_jvm_that_crashes(again: Place) -> None:
    jvm = _jvm_after_batches(again)
    os.kill(jvm, signal.SIGSEGV)
    ended = again.wait(JOB, lambda seen: not seen.phase.alive, "the failure")
    assert ended.error is not None and ended.error.code == "JVM_CRASHED", (ended.error, log_of(again, JOB))
    found = diagnose(again.workspace, ended)
    assert found is not None and found.code == "JVM_CRASHED" and "fatal error" in found.evidence
    assert ended.incarnation is not None
    assert list(again.workspace.log_dir(JOB, ended.incarnation).glob("hs_err*")), "where the remedy says that it is"


@pytest.mark.long
def test_a_jvm_that_is_killed_in_a_call(again: Place) -> None:
    jvm = _jvm_after_batches(again)
    os.kill(jvm, signal.SIGSTOP)
    # The driver asks ten times a second whether its query lives: by now it waits for an answer.
    time.sleep(1)
    os.kill(jvm, signal.SIGKILL)
    ended = again.wait(JOB, lambda seen: not seen.phase.alive, "the failure")
    assert ended.error is not None and ended.error.code == "JVM_DIED", (ended.error, log_of(again, JOB))
    assert "signal 9" in ended.error.what


@pytest.mark.long
def test_a_spark_context_that_is_stopped(again: Place) -> None:
    _configure(again, "context")
    _, found = _fails(again, "SPARK_CONTEXT_LOST", retryable=True)
    assert "the SparkContext is stopped" in found.evidence


@pytest.mark.long
def test_a_heap_that_is_too_small(again: Place) -> None:
    _configure(again, "heap", sinks=[{"table": "counted2", "mode": "upsert", "keys": ["key"]}])
    # From its own beginning: the aggregation is another one.
    shutil.rmtree(again.workspace.root / "checkpoints" / JOB)
    _, found = _fails(again, "OUT_OF_MEMORY", retryable=True, tries=None)
    assert "OutOfMemoryError" in found.evidence
    assert f"from 512m to 1024m in config/jobs/{JOB}.yaml" in found.act


@pytest.mark.long
def test_somebody_else_who_writes_to_the_output(again: Place) -> None:
    _configure(again, failures={"tolerable_consecutive": 0})
    # Batch after batch: one of them is met.
    for _ in range(19):
        _append(again)
    done = threading.Event()

    def meddle() -> None:
        number = 0
        # Several times in the course of one MERGE, and not so often that it gets no time to run.
        while not done.wait(0.2):
            number += 1
            with suppress(DeltaError):
                DeltaTable(again.workspace.table("counted")).update(updates={"rows": str(number)})

    meddler = threading.Thread(target=meddle, daemon=True)
    meddler.start()
    try:
        _, found = _fails(again, "CONCURRENT_WRITER", retryable=True)
    finally:
        done.set()
        meddler.join()
    assert "DELTA_CONCURRENT" in found.evidence and "counted" in found.act
