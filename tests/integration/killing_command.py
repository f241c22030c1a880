"""The command line, which kills or freezes its driver, its standby or itself at a step of its operation.

``python -m tests.integration.killing_command STEP WHOM AFTER WORDS…``: AFTER seconds after the start of STEP. 0 means
before the step is recorded. Prints the line ``killed`` if there was something to kill.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from streamwarden.cli.app import app
from streamwarden.runtime.operation_lock import OperationHandle
from streamwarden.runtime.processes import kill, process_of
from streamwarden.store.workspace import open_workspace
from streamwarden.supervision.observe import observe

THE_DRIVER, THE_RESCALE, BOTH, THE_STANDBY = "the driver", "the rescale", "both", "the standby"
FROZEN = "the driver, frozen"
"""With its JVM, for :data:`FROZEN_S`; afterwards it continues."""

FROZEN_S = 40
"""Longer than the lease of the tests' profile, 30 s, plus the debounce of observers: either it is killed first, or it
continues first."""


def _kill(job: str, whom: str) -> None:
    killed = whom in (THE_RESCALE, BOTH)
    if whom in (THE_DRIVER, BOTH):
        killed |= _kill_driver(job)
    if whom == THE_STANDBY:
        killed |= _kill_standby()
    if whom == FROZEN:
        killed |= _freeze(job)
    if killed:
        # On its own line, even if another line is unfinished.
        sys.stdout.write("\nkilled\n")
        sys.stdout.flush()
    if whom in (THE_RESCALE, BOTH):
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_driver(job: str) -> bool:
    seen = observe(open_workspace(), job)
    process = seen.heartbeat.process if seen.heartbeat else None
    if process is None and seen.launch is not None:
        # It has just been launched, and has no heartbeat yet.
        process = seen.launch.process
    return process is not None and kill(process)


def _freeze(job: str) -> bool:
    seen = observe(open_workspace(), job)
    if seen.heartbeat is None or not seen.phase.alive:
        return False
    driver = psutil.Process(seen.heartbeat.process.pid)
    members = [str(one.pid) for one in (driver, *driver.children(recursive=True))]
    # By another process: this command may end earlier.
    words = f"kill -STOP {' '.join(members)}; sleep {FROZEN_S}; kill -CONT {' '.join(members)}"
    subprocess.Popen(
        ["bash", "-c", words], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return True


def _kill_standby() -> bool:
    """Kill the standby driver and its JVM: a child of this command, in whatever session."""
    found = [child for child in psutil.Process().children() if _stands_by(child)]
    return sum(kill(process_of(child.pid)) for child in found) > 0


def _stands_by(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "--standby" in process.cmdline()
    return False


def _armed(wanted: str, whom: str, after: float) -> None:
    quick: Any = OperationHandle.step

    @contextmanager
    def step(self: OperationHandle, name: str) -> Iterator[Any]:
        if name == wanted:
            if after:
                threading.Timer(after, _kill, (self.operation.job, whom)).start()
            else:
                _kill(self.operation.job, whom)
        with quick(self, name) as made:
            yield made

    OperationHandle.step = step  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    _armed(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    app(sys.argv[4:])
