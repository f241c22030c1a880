"""Read the state of checkpoints with Spark, in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.runtime import work_dirs
from streamwarden.runtime.processes import kill, process_of
from streamwarden.store.workspace import Workspace

__all__ = ["SCRATCH", "StateAt", "read_state", "spark_answers"]

SCRATCH = "_state_reader"
"""In place of a job's name in the paths of its scratch folders; no job can have this name."""

_TIMEOUT_S = 3600.0
"""After this time the read fails. An hour: 1 M keys take seconds."""

_HEED_S = 1.0


@dataclass(frozen=True)
class StateAt:
    """The state of a checkpoint after a batch.

    Parameters
    ----------
    checkpoint
        The checkpoint's folder, relative to the storage's root.
    batch
        The batch.
    partitions
        The number of the state's partitions, to compute digests; None to count rows.
    """

    checkpoint: str
    batch: int
    partitions: int | None = None

    def __str__(self) -> str:
        digested = "" if self.partitions is None else f"/{self.partitions}"
        return f"{self.checkpoint}@{self.batch}{digested}"


def read_state(
    workspace: Workspace, asked: Mapping[str, StateAt], *, code: ErrorCode, heed: Callable[[], object] = lambda: None
) -> dict[str, dict[str, Any]]:
    """Read several states, all in the same JVM.

    Parameters
    ----------
    asked
        The states to read, by any name.
    code
        The code of the error to raise.
    heed
        Called about every second while Spark reads; may raise, which ends the read.

    Returns
    -------
    dict
        By name, a dict with ``rows`` by operator id, and ``keys`` of those with keyed state. Or it has ``digests`` by
        store (:func:`streamwarden.driver.state_digest.state_digests`). If the read failed, it has the reason as
        ``error``, and the ``code`` of a known failure or None.

    Raises
    ------
    StreamwardenError
        `code`, if an answer is missing.
    """
    arguments = [f"{name}={state}" for name, state in asked.items()]
    found = spark_answers(
        workspace, "streamwarden.driver.state_reader", arguments, number=len(asked), code=code, heed=heed
    )
    return {answer.pop("name"): answer for answer in found}


def spark_answers(
    workspace: Workspace,
    module: str,
    arguments: Sequence[str],
    *,
    number: int,
    code: ErrorCode,
    heed: Callable[[], object],
) -> list[dict[str, Any]]:
    """Run a module of the driver that works on state, and return the JSON lines that it prints.

    Parameters
    ----------
    module, arguments
        What to run. It also gets the place: profile, config and root.
    number
        How many lines it has to print.
    code, heed
        As for :func:`read_state`.

    Raises
    ------
    StreamwardenError
        `code`, if it fails or prints another number of lines.
    """
    command = [sys.executable, "-m", module, "--profile", workspace.profile.name]
    command += ["--config", str(workspace.config), "--root", str(workspace.root), *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=workspace.config.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        output, errors = _communicate(process, code, heed)
    finally:
        # The JVM ends in every case.
        if process.poll() is None:
            kill(process_of(process.pid))
            # Its unpacked files may be as large as the state.
            work_dirs.sweep(workspace, SCRATCH)
    answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if process.returncode != 0 or len(answers) != number:
        tail = "\n".join(errors.strip().splitlines()[-8:])
        raise StreamwardenError(code, f"reading state ended with {process.returncode}: {tail}")
    return answers


def _communicate(process: subprocess.Popen[str], code: ErrorCode, heed: Callable[[], object]) -> tuple[str, str]:
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return process.communicate(timeout=_HEED_S)
        except subprocess.TimeoutExpired as error:
            heed()
            if time.monotonic() >= deadline:
                raise StreamwardenError(code, f"reading state: not finished after {_TIMEOUT_S:.0f} s") from error
