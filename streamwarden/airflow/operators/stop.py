"""An operator that stops a job, or all jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from streamwarden.airflow.operators.base import (
    ALL_JOBS,
    JobOperator,
    holder_of,
)
from streamwarden.airflow.operators.observed import summary_of
from streamwarden.errors import StreamwardenError
from streamwarden.store.config import job_names
from streamwarden.supervision import driver_control

__all__ = ["StopOperator"]


class StopOperator(JobOperator):
    """Suspends a job, or all of them: each driver finishes its batch in flight and ends.

    Holds its worker slot while it waits; a stop takes as long as a batch. Does not delete anything: a deploy continues
    where the job stopped.

    Parameters
    ----------
    job
        The job, or ``all`` for every deployed one. (templated)
    timeout
        Seconds to wait for the drivers to end. (templated)
    reason
        The reason, for the record. (templated)
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("job", "timeout", "reason")
    ui_color = "#f5e6dc"

    def __init__(self, *, timeout: float | str = 300.0, reason: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.timeout = timeout
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Request all stops, then wait for each."""
        workspace = self.open()
        by, timeout = f"airflow:{holder_of(context)}", float(self.timeout)
        try:
            if self.job == ALL_JOBS:
                ended = driver_control.stop_all(workspace, by=by, reason=self.reason, timeout=timeout)
                for name in sorted({*job_names(workspace.config)} - ended.keys()):
                    self.log.info("%s was never deployed", name)
            else:
                seen = driver_control.stop(workspace, self.job, by=by, reason=self.reason, timeout=timeout)
                ended = {self.job: seen}
        except StreamwardenError as error:
            raise self.fail(error) from error
        for name, seen in ended.items():
            self.log.info("%s is %s: %s", name, seen.phase, seen.reason)
        return {name: summary_of(workspace, seen) for name, seen in ended.items()}
