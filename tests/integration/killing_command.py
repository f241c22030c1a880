"""The command line that kills its job's driver, or itself, at a step of its operation.

``python -m tests.integration.killing_command STEP WHOM AFTER WORDS…``: so many seconds after the step of that name has
begun; 0 is the boundary before it, when it is not on record yet.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streamwarden.cli import app
from streamwarden.control.operation import OperationHandle
from streamwarden.control.processes import kill
from streamwarden.control.supervision import observe
from streamwarden.control.workspace import open_workspace

THE_DRIVER, THE_RESCALE, BOTH = "the driver", "the rescale", "both"


def _kill(job: str, whom: str) -> None:
    sys.stdout.write("killed\n")
    sys.stdout.flush()
    if whom != THE_RESCALE:
        seen = observe(open_workspace(), job)
        process = seen.heartbeat.process if seen.heartbeat else None
        if process is not None:
            kill(process)
    if whom != THE_DRIVER:
        os.kill(os.getpid(), signal.SIGKILL)


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
