"""An operator that keeps the gate running."""

from __future__ import annotations

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from streamwarden.airflow.operators.command import CommandOperator

__all__ = ["GateOperator"]


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
