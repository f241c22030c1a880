"""Operators that keep the gate running, and that carry out a person's decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators.command import CommandOperator

__all__ = ["DecideOperator", "GateOperator"]


class GateOperator(CommandOperator):
    """Runs `streamwarden gate watch` in a process of its own, until the task is stopped.

    Does not decide anything itself. If the process ends, the task fails, so that a retry or a next run starts another.
    A decision that was cut off is made again: what is published is in the published table's own log.

    Parameters
    ----------
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#efe4f2"

    def execute(self, context: Context) -> None:  # noqa: ARG002
        """Run the gate."""
        code, _, errors = self.run_command(["gate", "watch"])
        raise AirflowException(f"the gate ended with code {code}: {errors or 'no output'}")


class DecideOperator(CommandOperator):
    """Checks what is not published of a table once more, or publishes what is held as it is.

    Fails, for good, if the versions are still held. Does not correct rows.

    Parameters
    ----------
    table
        The table. (templated)
    decision
        ``check``, ``check anew`` or ``accept``. (templated)
    note
        Why; `accept` needs it. The run's id is added to it. (templated)
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("table", "decision", "note")
    ui_color = "#efe4f2"

    def __init__(self, *, table: str, decision: str, note: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.decision = decision
        self.note = note

    def execute(self, context: Context) -> None:
        """Carry out the decision."""
        if self.decision == "accept":
            if not self.note.strip():
                raise AirflowFailException("accept needs a note: why the rows are published as they are")
            arguments = ["accept", self.table, "--note", f"{self.note} (run {context['dag_run'].run_id})"]
        else:
            arguments = ["check", self.table, *(["--anew"] if self.decision == "check anew" else [])]
        code, output, errors = self.run_command(["gate", *arguments])
        for line in output.splitlines():
            self.log.info(line)
        if code == 1:
            # Final: the same rows would be held again.
            raise AirflowFailException(f"{self.table} is held: {output.strip()}")
        if code:
            raise AirflowException(f"the command ended with code {code}: {errors or 'no output'}")
