from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamwarden.errors import CATALOGUE, StreamwardenError
from streamwarden.model.record import ErrorInfo
from streamwarden.operations.diagnosis import describe, diagnose
from streamwarden.operations.status import job_status
from streamwarden.runtime.failure_signatures import Places, recognise
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Phase
from tests.unit.savepoints import test_catalog
from tests.unit.supervision.test_supervision import GONE, JOB, desired, launched, seen

pytestmark = pytest.mark.unit


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return test_catalog.opened(tmp_path)


def failed(code: str, what: str = "lamp: the line that says it\nand more", **spec: Any) -> Any:
    found = seen(Phase.FAILED, code=code)
    wanted = desired()
    wanted = wanted.model_copy(update={"spec": wanted.spec.model_copy(update=spec)})
    return replace(found, desired=wanted, error=ErrorInfo.of(StreamwardenError(code, what)))


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.FAILED, Phase.DEAD, Phase.SILENT)])
def test_a_job_that_is_not_down_has_none(workspace: Workspace, phase: Phase) -> None:
    assert diagnose(workspace, seen(phase)) is None


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_error_says_what_is_next(workspace: Workspace, code: str) -> None:
    found = diagnose(workspace, failed(code))
    assert found is not None and found.code == code
    assert found.evidence == "lamp: the line that says it"
    assert len(found.act) > 15 and found.name
    text = describe(found)
    assert code in text and found.act in text and (not found.command or found.command in text)


def test_damaged_state_leads_to_the_newest_verified_savepoint(workspace: Workspace) -> None:
    found = diagnose(workspace, failed("CHECKPOINT_DAMAGED"))
    assert found is not None and "no savepoint" in found.act and found.command == ""

    test_catalog.made(workspace, "s3", verdict="unverified")
    found = diagnose(workspace, failed("CHECKPOINT_DAMAGED"))
    assert found is not None and found.command == f"streamwarden savepoints verify {JOB} all"

    test_catalog.made(workspace, "s1", verdict="verified")
    test_catalog.made(workspace, "s2", verdict="verified")
    found = diagnose(workspace, failed("CHECKPOINT_DAMAGED"))
    assert found is not None and found.command == f"streamwarden restore {JOB} --savepoint s2"


@pytest.mark.parametrize(("now", "then"), [("512m", "1024m"), ("2g", "4g")])
def test_out_of_memory_asks_for_twice_as_much(workspace: Workspace, now: str, then: str) -> None:
    resources = desired().spec.resources.model_copy(update={"memory": now})
    found = diagnose(workspace, failed("OUT_OF_MEMORY", resources=resources))
    assert found is not None and f"from {now} to {then} in config/jobs/{JOB}.yaml" in found.act


def test_a_second_query_on_the_checkpoint_is_not_looked_for_in_a_tables_history(workspace: Workspace) -> None:
    found = diagnose(workspace, failed("CONCURRENT_WRITER"))
    assert found is not None and "DESCRIBE HISTORY" in found.act
    what = "lamp: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."
    found = diagnose(workspace, failed("CONCURRENT_WRITER", what))
    assert found is not None and "checkpoint" in found.act and "HISTORY" not in found.act


def test_the_job_s_own_exception_points_to_what_was_put_aside(workspace: Workspace) -> None:
    main = desired().spec.sinks[0]
    sinks = (main, main.model_copy(update={"table": "lamp_quarantine", "output": "quarantine"}))
    found = diagnose(workspace, failed("JOB_CODE_FAILED", sinks=sinks))
    assert found is not None and "spark_jobs.none" in found.act and "lamp_quarantine" in found.act


@pytest.mark.parametrize(
    ("last", "code", "words"),
    [
        ("Terminating due to java.lang.OutOfMemoryError: Java heap space", "OUT_OF_MEMORY", "resources.memory"),
        ("# A fatal error has been detected by the Java Runtime Environment:", "JVM_CRASHED", "hs_err"),
        ("just running", "DRIVER_DIED", "killed from outside or out of memory"),
    ],
)
def test_of_a_driver_that_died_without_a_word_the_logs_are_asked(
    workspace: Workspace, last: str, code: str, words: str
) -> None:
    JobDocuments(workspace.storage, JOB).desired.write(desired())
    launched(workspace, "i1", process=GONE)
    folder = workspace.log_dir(JOB, "i1")
    folder.mkdir(parents=True)
    (folder / "console.log").write_text(f"before\n{last}\n")
    dead = replace(seen(Phase.DEAD, code="DRIVER_DIED"), incarnation="i1")
    found = diagnose(workspace, dead)
    assert found is not None and found.code == code and words in describe(found)
    # The same through the documents, as `status --json` shows it.
    shown = job_status(workspace, JOB)
    assert shown["phase"] == "dead"
    assert set(shown["diagnosis"]) == {"code", "name", "evidence", "act", "command"}


def test_a_running_job_s_status_has_no_diagnosis(workspace: Workspace) -> None:
    assert job_status(workspace, JOB)["diagnosis"] is None


def test_every_signature_is_in_the_catalogue() -> None:
    from streamwarden.runtime import failure_signatures

    codes = {one.code for one in (*failure_signatures._SIGNATURES, *failure_signatures._FATAL)}
    assert codes <= set(CATALOGUE)
    assert recognise("nothing", Places()) is None
