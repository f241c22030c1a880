"""Operators that keep the gate running, and that carry out a person's decision."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators.command import CommandOperator

__all__ = ["DecideOperator", "GateOperator", "lineage_parent"]

_END_S = 3.0
"""Seconds for a stopped gate to end by itself. 3: Airflow kills the task 5 seconds after it asked it to stop."""


class GateOperator(CommandOperator):
    """Runs `streamwarden gate watch` in a process of its own, until the task is stopped.

    Does not decide anything itself. If the process ends, the task fails, so that a retry or a next run starts another.
    A decision that was cut off is made again: what is published is in the published table's own log.

    If Airflow sends OpenLineage events, the gate's run is a child of this task's.

    Parameters
    ----------
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#efe4f2"

    def execute(self, context: Context) -> None:
        """Run the gate."""
        code, _, errors = self.run_command(["gate", "watch"], lineage_parent(context, self.log))
        raise AirflowException(f"the gate ended with code {code}: {errors or 'no output'}")

    def on_kill(self) -> None:
        """Stop the gate: a gate that is not in the middle of a decision ends its run of lineage first."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        super().on_kill()


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
        code, output, errors = self.run_command(["gate", *arguments], lineage_parent(context, self.log))
        for line in output.splitlines():
            self.log.info(line)
        if code == 1:
            # Final: the same rows would be held again.
            raise AirflowFailException(f"{self.table} is held: {output.strip()}")
        if code:
            raise AirflowException(f"the command ended with code {code}: {errors or 'no output'}")


def lineage_parent(context: Context, log: Any) -> dict[str, str]:
    """Return the variables that name this task's run to a process as its OpenLineage parent.

    Empty without Airflow's provider for OpenLineage, or if that sends no events.
    """
    try:
        from airflow.providers.openlineage import conf
        from airflow.providers.openlineage.plugins import macros
    except ImportError:
        return {}
    try:
        if conf.is_disabled():
            return {}
        ti = context["ti"]
        return {
            "OPENLINEAGE_PARENT_ID": macros.lineage_parent_id(ti),
            "OPENLINEAGE_ROOT_PARENT_ID": macros.lineage_root_parent_id(ti),
        }
    except Exception:
        # The provider's own, in any of its versions: no reason not to decide.
        log.warning("the gate's lineage has no parent", exc_info=True)
        return {}
