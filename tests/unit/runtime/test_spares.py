"""Spares, with a process that answers as a spare does, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.spec import JobSpec
from streamwarden.runtime import spares, work_dirs
from streamwarden.runtime.launchers import local
from streamwarden.runtime.processes import is_alive, process_of
from streamwarden.runtime.spares import Assignment, Spare
from streamwarden.runtime.standby import standby
from streamwarden.store.layout import SPARES
from streamwarden.store.workspace import Workspace, open_workspace
from tests.unit.operations.test_spec_diff import spec

pytestmark = pytest.mark.unit

# Answers once it is told to run; without an answer it waits on.
SPARE = """
import json, os, sys, time
folder, answer = sys.argv[1], sys.argv[2]
while not os.path.exists(folder + "/run.json"):
    time.sleep(0.01)
stands_by = os.path.exists(folder + "/commands")
if stands_by:
    commands, answers = open(folder + "/commands"), open(folder + "/answers", "w", 1)
if answer:
    with open(folder + "/answer.part", "w") as file:
        file.write(answer)
    os.rename(folder + "/answer.part", folder + "/answer.json")
if stands_by:
    for line in commands:
        answers.write(json.dumps({"ready": True, "digests": {"heard": json.loads(line)["do"]}}) + "\\n")
    open(folder + "/in_order", "w").close()
    sys.exit()
time.sleep(60)
"""
RUN = json.dumps({"do": "run"})

Ready = Callable[..., ProcessRef]


@pytest.fixture(autouse=True)
def one_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(spares.SPARES_ENV, "1")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


@pytest.fixture
def ready(workspace: Workspace) -> Iterator[Ready]:
    """Return a function that starts a ready spare."""
    started: list[subprocess.Popen[bytes]] = []

    def start(answer: str = RUN, *, job: JobSpec | None = None) -> ProcessRef:
        name = f"s{len(started)}"
        folder, logs = workspace.scratch_dir(SPARES, name), workspace.log_dir(SPARES, name)
        folder.mkdir(parents=True)
        logs.mkdir(parents=True)
        (logs / "console.log").write_text("warm\n")
        started.append(subprocess.Popen([sys.executable, "-c", SPARE, str(folder), answer]))
        process = process_of(started[-1].pid)
        fit = spares.fit_of(workspace, job or spec(), os.environ)
        spares.write(folder / spares.READY, Spare(id=name, process=process, fit=fit, memory="1g"))
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def take(workspace: Workspace, incarnation: str = "i1") -> ProcessRef | None:
    taken = spares.take(workspace, spec(), Assignment(job="job", incarnation=incarnation))
    return taken.process if taken else None


def test_a_ready_spare_is_taken_once_with_its_logs(workspace: Workspace, ready: Ready) -> None:
    process = ready()
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda number: take(workspace, f"i{number}"), range(8)))
    assert [one for one in taken if one is not None] == [process]
    (incarnation,) = (f"i{number}" for number, one in enumerate(taken) if one is not None)
    logs = workspace.log_dir("job", incarnation)
    assert (logs / "console.log").read_text() == "warm\n"
    # A file that its JVM opens later, by the old name.
    (workspace.log_dir(SPARES, "s0") / "spark.log").write_text("later\n")
    assert (logs / "spark.log").read_text() == "later\n"
    assert spares.living(workspace) == {}


@pytest.mark.parametrize("change", [{"resources": {"cores": 3}}, {"spark": {"spark.x": "1"}}])
def test_one_of_another_size_or_with_other_settings_is_left(
    workspace: Workspace, ready: Ready, change: dict[str, Any]
) -> None:
    other = ready(job=spec(**change))
    assert take(workspace) is None
    assert [spare.process for spare in spares.living(workspace)] == [other]


@pytest.mark.parametrize("variable", ["AWS_SECRET_ACCESS_KEY", "STREAMWARDEN_KAFKA_SASL_JAAS_CONFIG", "MY_PASSWORD"])
def test_one_with_other_credentials_is_left(
    workspace: Workspace, ready: Ready, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    ready()
    monkeypatch.setenv(variable, "another")
    assert take(workspace) is None
    monkeypatch.delenv(variable)
    # What differs between two tasks of Airflow does not count.
    monkeypatch.setenv("AIRFLOW_CTX_TRY_NUMBER", "2")
    assert take(workspace) is not None


def test_one_stands_by_and_ends_with_its_taker(workspace: Workspace, ready: Ready) -> None:
    process = ready()
    with standby(workspace, spec(), state=False) as standing:
        standing.await_ready()
        assert standing.digests("checkpoint", 1, 2, timeout=10, say=lambda: None) == {"heard": "digest"}
        assert is_alive(process)
    assert is_alive(process) is False
    assert (workspace.scratch_dir(SPARES, "s0") / "in_order").exists()


@pytest.mark.parametrize("answer", ["", json.dumps({"do": "refuse", "why": "its code has changed"})])
@pytest.mark.parametrize("stands_by", [False, True])
def test_one_that_does_not_run_is_ended_and_the_next_is_taken(
    workspace: Workspace, ready: Ready, answer: str, monkeypatch: pytest.MonkeyPatch, stands_by: bool
) -> None:
    monkeypatch.setattr(spares, "_ANSWER_S", 0.5)
    first, second = ready(answer), ready()
    taken = spares.take(workspace, spec(), Assignment(job="job", incarnation="i1", standby=stands_by))
    assert taken is not None and taken.process == second
    assert is_alive(first) is False


def test_a_dead_one_is_passed_over_and_swept(workspace: Workspace, ready: Ready) -> None:
    process = ready()
    os.kill(process.pid, 9)
    os.waitpid(process.pid, 0)
    assert take(workspace) is None
    assert spares.living(workspace) == {}
    spares.sweep(workspace)
    assert not workspace.scratch_dir(SPARES, "s0").exists()
    assert (workspace.log_dir(SPARES, "last") / "console.log").read_text() == "warm\n"


def test_one_that_has_not_locked_its_folder_yet_is_not_swept(workspace: Workspace, ready: Ready) -> None:
    ready()
    spares.sweep(workspace)
    assert take(workspace) is not None


@pytest.mark.parametrize(("given", "number"), [("0", 0), ("3", 3)])
def test_the_variable_replaces_the_profiles_number(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, given: str, number: int
) -> None:
    monkeypatch.setenv(spares.SPARES_ENV, given)
    assert spares.wanted(workspace, spec()) == number


def test_with_none_wanted_none_is_taken(workspace: Workspace, ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    ready()
    monkeypatch.setenv(spares.SPARES_ENV, "0")
    assert take(workspace) is None


def test_by_default_there_is_one_if_the_machine_has_memory_for_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(spares.SPARES_ENV, raising=False)
    assert spares.wanted(workspace, spec(resources={"memory": "512m"})) == 1
    assert spares.wanted(workspace, spec(resources={"memory": "4000g"})) == 0


def test_a_spare_that_waits_is_no_running_driver(workspace: Workspace) -> None:
    assert not work_dirs.any_running(workspace)
    work_dirs.claim(workspace, SPARES, "s1")
    assert not work_dirs.any_running(workspace)
    (workspace.scratch_dir(SPARES, "s1") / spares.RUN).write_text("{}")
    assert work_dirs.any_running(workspace)


def test_an_ordered_spare_is_nobodys_child(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its job has no module: it starts and ends, and that is seen in its log.
    local.order_spare(workspace, spec(module="none.such"), "fit", dict(os.environ))
    (spare,) = spares.living(workspace)
    assert spare.process.pid not in {child.pid for child in __import__("psutil").Process().children(recursive=True)}
    os.kill(spare.process.pid, 9)
