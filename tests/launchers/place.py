"""What the contract needs of a kind of place where drivers run. One module of this folder for each launcher has one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil

from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.launchers.interface import FoundDriver, StartState
from streamwarden.runtime.launchers.launch import launcher_of
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.act import restart
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.integration.conftest import BY, REPOSITORY, Place
from tests.integration.test_rescale import Counts

__all__ = ["JOB", "LauncherPlace", "until"]

JOB = "counts"

_SPARK = re.compile(r"ExecutorBackend|ApplicationMaster|deploy\.SparkSubmit")
_ARCHIVE = re.compile(r"jars/classes\S*\.jsa")


def until(condition: Callable[[], Any], what: str, *, timeout: float = 120) -> float:
    """Wait until a condition holds; return how many seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout, f"waited {timeout:.0f} s for {what}"
        time.sleep(0.1)
    return time.monotonic() - began


class LauncherPlace(Place, ABC):
    """A workspace whose drivers one launcher starts.

    Its job is `counts`: rows of a Delta table, counted by key. A batch stays open while the file :attr:`hold` is there.
    Rows come in through the storage, so the place needs no folder that drivers share with the tests.
    """

    ROW_MS: ClassVar[int] = 0
    """How long a task needs for a row, at least."""

    NO_ROOM: ClassVar[str] = ""
    """Why a driver of this place never waits for room; empty if it does."""

    def __init__(self, folder: Path, store: dict[str, Any]) -> None:
        self._store = store
        self.hold = folder / "hold"
        super().__init__(folder)
        options = {"marker": str(self.hold), "row_ms": self.ROW_MS}
        self.counts = Counts(self, "tests.integration.jobs.holding", options=options)
        self.job(JOB, restarts={"max": 5, "backoff": "100ms", "backoff_max": "1s"})

    def profile(self, **fields: Any) -> Workspace:
        jobs = {"interval": "500ms", "partitions": 2, "resources": {"cores": 1, "memory": "600m"}}
        return super().profile(**{"lease": "10s", "jobs": jobs, **self._store, **fields})

    # -- what each launcher has of its own -----------------------------------------------------------------------------

    def open(self) -> None:
        """Start what the place needs before a driver can be started."""

    def close(self) -> None:
        """End all that runs here, drivers included."""
        self.kill_all()

    @abstractmethod
    def restart_all_else(self) -> None:
        """Kill and restart all that has started a driver or manages it, but for the driver itself."""

    def take_room(self) -> AbstractContextManager[None]:
        """Leave no room for a driver within the context."""
        raise NotImplementedError(self.NO_ROOM)

    def kill_hard(self, incarnation: str) -> None:
        """Kill a driver's process with SIGKILL, without a word to the launcher."""
        os.kill(self.processes(incarnation)[0].pid, signal.SIGKILL)

    def runs(self, incarnation: str) -> bool:
        """Return whether a driver's process is there, by other means than the launcher's."""
        return bool(self.processes(incarnation))

    def log(self, incarnation: str) -> str:
        """Return the end of a driver's log, from the launcher or else from its file."""
        kept = launcher_of(self.workspace).logs(JOB, incarnation, 100)
        return kept or (self.workspace.log_dir(JOB, incarnation) / "driver.log").read_text()

    # -- what is the same everywhere -----------------------------------------------------------------------------------

    def processes(self, incarnation: str) -> list[psutil.Process]:
        """Return the Python processes of a driver on this machine, in whichever PID namespace they think they are."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = process.info["cmdline"] or []
            if "--incarnation" in line and incarnation in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def archived(self) -> list[bool]:
        """Return for each JVM of drivers and executors here whether it maps the archive of Spark's classes."""
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            # A submission loads few of them.
            if process.info["name"] == "java" and _SPARK.search(line) and "--deploy-mode cluster" not in line:
                with suppress(OSError):
                    found.append(bool(_ARCHIVE.search(Path(f"/proc/{process.pid}/maps").read_text())))
        return found

    def seen(self, job: str = JOB) -> Observation:
        return observe(self.workspace, job)

    def incarnation(self) -> str:
        found = self.seen().incarnation
        assert found is not None
        return found

    def found(self, incarnation: str) -> FoundDriver:
        """Ask a launcher that was made just now, and has started nothing."""
        return launcher_of(self.workspace).find(JOB, incarnation)

    def deploy(self) -> str:
        """Deploy the job over some rows, wait until they are counted, and return the driver's incarnation."""
        self.counts.add([*range(20), 1, 1])
        driver = self.launch()
        self.check()
        return driver

    def check(self) -> None:
        """Wait until the output equals a count of all rows that have come in."""
        until(lambda: DeltaLog(self.workspace.files, JOB).latest is not None, "the first batch")
        self.counts.check()

    def launch(self) -> str:
        """Deploy the job, and return the driver's incarnation; don't wait for it."""
        deploy_job(self.workspace, JOB, by=BY)
        return self.incarnation()

    def batches(self) -> CheckpointReader:
        return CheckpointReader(self.workspace.storage, self.counts.reference().path)

    def waits(self, seen: Observation) -> bool:
        """Return whether a driver was found to wait for room."""
        return seen.phase is Phase.WAITING or self.found(str(seen.incarnation)).state is StartState.WAITING

    def in_batch(self) -> None:
        """Keep the driver within a batch that it has begun: two rows more."""
        self.hold.touch()
        self.counts.add([1, 2])
        batches = self.batches()
        until(lambda: batches.last_offset() != batches.last_commit(), "a batch that is begun")

    def fresh_status(self) -> dict[str, Any]:
        """Return what a new process finds that knows only the place."""
        command = [sys.executable, "-m", "streamwarden.cli", "status", JOB, "--json", "--profile", "test"]
        # Its exit code is the job's health.
        done = subprocess.run(
            [*command, "--root", str(self.workspace.root)],
            env={**os.environ, "STREAMWARDEN_CONFIG": str(self.config)},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def verdict(self) -> Action:
        return decide(self.seen(), self.memory()).action

    def memory(self, job: str = JOB) -> Supervision:
        return self.documents(job).supervision.read() or Supervision()

    def restarted(self, job: str = JOB) -> bool:
        """Do what a supervisor does, once; return whether it has restarted the job."""
        seen = self.seen(job)
        verdict = decide(seen, self.memory(job))
        assert verdict.action is not Action.FAIL, verdict
        return verdict.action is Action.RESTART and restart(self.workspace, seen, by=BY) is not None

    def supervise(self, job: str = JOB) -> None:
        """Do what a supervisor does until it has restarted the job."""
        until(lambda: self.restarted(job), "the supervisor's restart")

    def running(self) -> Observation:
        return self.wait(JOB, lambda seen: seen.phase is Phase.RUNNING, "a driver that runs")
