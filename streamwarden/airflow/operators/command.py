"""The base of operators that run a command of Streamwarden in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO

from streamwarden.airflow.operators.base import PlaceOperator
from streamwarden.runtime.processes import kill, process_of

__all__ = ["CommandOperator"]


class CommandOperator(PlaceOperator):
    """An operator that runs a command outside Airflow's processes, which must load neither Spark nor pandas.

    The process's log is streamed into the task's log.
    """

    _process: subprocess.Popen[str] | None = None

    def on_kill(self) -> None:
        """Stop the command and all that it started."""
        if self._process is not None and self._process.poll() is None:
            kill(process_of(self._process.pid))

    def run_command(self, arguments: list[str], environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run a command of Streamwarden; return its exit code, its output, and the end of its log.

        Parameters
        ----------
        arguments
            The command's.
        environment
            Variables of the process beside the worker's.
        """
        workspace = self.open()
        command = [sys.executable, "-m", "streamwarden.cli", *arguments]
        place = {
            "STREAMWARDEN_PROFILE": workspace.profile.name,
            "STREAMWARDEN_CONFIG": str(workspace.config),
            "STREAMWARDEN_ROOT": str(workspace.root),
        }
        self.log.info("%s", " ".join(command[1:]))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=workspace.config.parent,
            env={**os.environ, **(environment or {}), **place, "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert self._process.stdout is not None and self._process.stderr is not None
            last: list[str] = []
            reader = threading.Thread(target=self._relay, args=(self._process.stderr, last), daemon=True)
            reader.start()
            output = self._process.stdout.read()
            code = self._process.wait()
            reader.join(timeout=5)
            return code, output, "\n".join(last[-20:])
        finally:
            # Also on the task's timeout.
            self.on_kill()

    def _relay(self, stream: IO[str], last: list[str]) -> None:
        for line in stream:
            self.log.info(line.rstrip())
            last.append(line.rstrip())
            del last[:-20]
