"""An operator that checks tables against their expectations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators.command import CommandOperator

__all__ = ["CheckOperator"]


class CheckOperator(CommandOperator):
    """Checks tables against their expectations, in a process outside Airflow's.

    Streams that process's log into the task's log. If expectations are not met, fails and names each table and
    expectation. Does not repair or hold back anything.

    Parameters
    ----------
    tables
        Table names; if empty, all tables that have a suite. (templated, or set by `tables_param`)
    tables_param
        A DAG param that holds the list of names, and replaces `tables`.
    data_docs
        Whether to write Great Expectations' Data Docs of the check, too.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("tables",)
    ui_color = "#efe4f2"

    def __init__(
        self, *, tables: Sequence[str] = (), tables_param: str | None = None, data_docs: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.data_docs = data_docs
        self.tables = tables
        self.tables_param = tables_param

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the check and evaluate its result."""
        tables = context["params"][self.tables_param] if self.tables_param else self.tables
        command = ["check", "--json", *(["--data-docs"] if self.data_docs else [])]
        for table in tables or ():
            command += ["--table", str(table)]
        code, output, errors = self.run_command(command)
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


def _failures(result: dict[str, Any]) -> list[str]:
    lines = []
    for table in result.get("tables", ()):
        for failure in table.get("failures", ()):
            column = f" on {failure['column']}" if failure.get("column") else ""
            severity = failure.get("severity") or "error"
            detail = f": {failure['detail']}" if failure.get("detail") else ""
            lines.append(f"{table['table']}: {failure['expectation']}{column} ({severity}){detail}")
    return lines
