"""An operator that checks tables against their expectations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
)

from streamwarden.runtime.processes import kill, process_of
from streamwarden.store.workspace import open_workspace

__all__ = ["CheckOperator"]


class CheckOperator(BaseOperator):
    """Checks tables against their expectations, in a separate process: Spark does not run inside Airflow's.

    Streams that process's log into the task's log. If expectations are not met, fails and names each table and
    expectation. Does not repair or hold back anything.

    Parameters
    ----------
    tables
        Table names; if empty, all tables that have a suite. (templated, or set by `tables_param`)
    tables_param
        A DAG param that holds the list of names, and replaces `tables`.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("tables",)
    ui_color = "#efe4f2"

    def __init__(
        self,
        *,
        tables: Sequence[str] = (),
        tables_param: str | None = None,
        profile: str | None = None,
        config: str | None = None,
        root: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tables = tables
        self.tables_param = tables_param
        self.profile = profile
        self.config = config
        self.root = root
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the check and evaluate its result."""
        tables = context["params"][self.tables_param] if self.tables_param else self.tables
        command = [sys.executable, "-m", "streamwarden.cli", "check", "--json"]
        for table in tables or ():
            command += ["--table", str(table)]
        code, output, errors = self._run(command)
        try:
            result = json.loads(output)
        except json.JSONDecodeError:
            result = None
        if not isinstance(result, dict) or code not in (0, 1):
            raise AirflowException(f"the check ended with code {code}: {errors or 'no output'}")
        failures = _failures(result)
        for line in failures:
            self.log.error(line)
        self.log.info("report: %s", result.get("report"))
        if code or not result.get("success"):
            # Final: the same data would fail again.
            raise AirflowFailException("expectations not met: " + ("; ".join(failures) or "see the report"))
        return {key: result.get(key) for key in ("run", "success", "report")}

    def on_kill(self) -> None:
        """Stop the check and its JVM."""
        if self._process is not None and self._process.poll() is None:
            kill(process_of(self._process.pid))

    def _run(self, command: list[str]) -> tuple[int, str, str]:
        workspace = open_workspace(self.profile, config=Path(self.config) if self.config else None, root=self.root)
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
            env={**os.environ, **place, "PYTHONUNBUFFERED": "1"},
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


def _failures(result: dict[str, Any]) -> list[str]:
    lines = []
    for table in result.get("tables", ()):
        for failure in table.get("failures", ()):
            column = f" on {failure['column']}" if failure.get("column") else ""
            severity = failure.get("severity") or "error"
            detail = f": {failure['detail']}" if failure.get("detail") else ""
            lines.append(f"{table['table']}: {failure['expectation']}{column} ({severity}){detail}")
    return lines
