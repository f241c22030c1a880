"""A standby driver whose parent process is gone: as a process, without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from streamwarden.driver import standby as module
from streamwarden.errors import StreamwardenError
from tests.unit.driver.made_executors import MadeExecutors
from tests.unit.operations.test_spec_diff import spec

pytestmark = pytest.mark.unit

STANDS_BY = """
import os, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
from streamwarden.driver import standby

class Standby:
    def __init__(self, *_):
        # Stands for the JVM.
        Path("jvm").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        self.prepared = "prepared"
    def rehearse(self, *, state, rehearsed):
        if state:
            raise RuntimeError("no Spark")
        return {"ready": True}
    def perform(self, command):
        Path("performs").touch()
        time.sleep(command["takes"])
        return {"done": True}
    def end(self):
        Path("ended").touch()

standby._Standby = Standby
found = standby.stand_by(None, "i1", os.dup(1), commands_from=sys.stdin)
if found is not None:
    time.sleep(2)
    Path("drives").write_text(found)
"""


class Standing:
    """The process, and its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", STANDS_BY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def send(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def prepare(self, *, state: bool = False) -> None:
        self.send(do="prepare", spec=spec().model_dump(mode="json"), state=state)

    def left(self) -> None:
        """Let whoever has started it be gone."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def jvm(self) -> psutil.Process:
        return psutil.Process(int((self.folder / "jvm").read_text()))


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    made = Standing(tmp_path)
    yield made
    for process in [*psutil.Process(made.process.pid).children(), made.process] if made.process.poll() is None else []:
        process.kill()
    made.process.wait()
    if (tmp_path / "jvm").exists() and psutil.pid_exists(int((tmp_path / "jvm").read_text())):
        made.jvm().kill()


def test_left_in_the_midst_of_its_work_it_ends_at_once_and_its_jvm_with_it(standing: Standing) -> None:
    standing.prepare()
    assert standing.answer() == {"ready": True}
    jvm = standing.jvm()
    standing.send(do="repartition", checkpoint="g000002", takes=60)
    deadline = time.monotonic() + 30
    while not (standing.folder / "performs").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    standing.left()
    assert standing.process.wait(timeout=60) == -signal.SIGKILL
    jvm.wait(timeout=10)
    assert not (standing.folder / "ended").exists()


def test_left_between_two_commands_it_ends_in_order(standing: Standing) -> None:
    standing.prepare()
    assert standing.answer() == {"ready": True}
    standing.send(do="repartition", checkpoint="g000002", takes=0)
    assert standing.answer() == {"done": True}
    standing.left()
    assert standing.process.wait(timeout=60) == 0
    assert (standing.folder / "ended").exists()


def test_once_it_is_to_run_it_lives_on_alone(standing: Standing) -> None:
    standing.prepare()
    assert standing.answer() == {"ready": True}
    standing.send(do="run")
    assert standing.answer() == {"running": True}
    standing.left()
    assert standing.process.wait(timeout=60) == 0
    assert (standing.folder / "drives").read_text() == "prepared"
    assert not (standing.folder / "ended").exists()


def test_what_fails_in_it_is_its_end_while_the_next_command_is_waited_for(standing: Standing) -> None:
    standing.prepare(state=True)
    # No abort of Python's, whose standard input a thread still reads.
    assert standing.process.wait(timeout=60) == 1


def test_on_a_cluster_it_waits_for_an_executor_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.01)
    monkeypatch.setattr(module, "_SLOTS_S", 0.2)
    found = MadeExecutors("spark://host:7077", come=1)
    module._await_executor(found.session)
    assert found.looks == 2
    assert module._missing_executor(MadeExecutors("spark://host:7077", come=0).session, 0.1) is not None
    with pytest.raises(StreamwardenError, match=r"RESCALE_FAILED.*spark://host:7077 has no free slots"):
        module._await_executor(MadeExecutors("spark://host:7077", come=0).session)
    local = MadeExecutors("local[2]", come=0)
    module._await_executor(local.session)
    assert local.looks == 0


def test_it_rehearses_no_job_again_that_its_spare_has_rehearsed_with_other_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(module, "load_module", lambda spec: None)
    monkeypatch.setattr(module, "rehearse", lambda *_, state, warm: calls.append(warm))
    this = spec(state={"partitions": 8})
    standing: Any = SimpleNamespace(_spec=this, _session=SimpleNamespace(version="4"), _workspace=None)
    for state, rehearsed, expected in (
        (False, [], [False]),
        (False, [spec(state={"partitions": 4})], []),
        (True, [spec(state={"partitions": 4})], []),
        (False, [spec(name="another", state={"partitions": 8})], [True]),
        (False, [spec(state={"partitions": 8, "changelog": False})], [True]),
    ):
        calls.clear()
        assert module._Standby.rehearse(standing, state=state, rehearsed=rehearsed) == {"ready": True}
        assert calls == expected, (state, rehearsed)
