"""Operators: take savepoints, look through them, remove old ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from streamwarden.airflow.operators.base import (
    InterruptibleOperator,
    JobOperator,
    ProgressLog,
    holder_of,
    is_true,
)
from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.spec import SavepointSpec
from streamwarden.savepoints.schedule import reason_to_skip, schedule_text
from streamwarden.savepoints.take import savepoint_and_stop, take
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["ALL_SAVEPOINTS", "PeriodicSavepointOperator", "SavepointOperator"]

ALL_SAVEPOINTS = "all"
"""What to give :class:`VerifyOperator` as savepoint for every one."""


class SavepointOperator(JobOperator, InterruptibleOperator):
    """Takes a savepoint of a job, of a running one without stopping it, or together with a stop.

    Nothing is left of a take that fails or is ended from outside; a job that was stopped for it is then started again.
    Does not verify: see :class:`VerifyOperator`. Holds its slot while it works.

    Returns id, batch, bytes, rows and time taken.

    Parameters
    ----------
    job
        The job. (templated)
    stop
        Suspend the job first, so that nothing is processed after the savepoint. (templated)
    note
        Why, for the record. (templated)
    stop_timeout
        Seconds that the driver may take to stop. 300: a batch in flight is finished first.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("job", "stop", "note")
    ui_color = "#e3ecd5"

    def __init__(self, *, stop: bool | str = False, note: str = "", stop_timeout: float = 300.0, **kwargs: Any) -> None:
        # What can't pass by itself is final at once; a file removed under the copy is no reason to call a person.
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=30))
        super().__init__(**kwargs)
        self.stop = stop
        self.note = note
        self.stop_timeout = stop_timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Take it."""
        workspace = self.open()
        by, report = f"airflow:{holder_of(context)}", ProgressLog(self.log)
        try:
            with self.interruptible():
                if is_true(self.stop):
                    self.log.info("%s: stopping it between batches", self.job)
                    made = savepoint_and_stop(
                        workspace, self.job, by=by, note=self.note, timeout=self.stop_timeout, report=report
                    )
                else:
                    made = take(workspace, self.job, origin=Origin.MANUAL, by=by, note=self.note, report=report)
        except StreamwardenError as error:
            raise self.fail(error) from error
        return describe_taken(self.log, made)


class PeriodicSavepointOperator(JobOperator, InterruptibleOperator):
    """Takes a periodic savepoint of a running job; is skipped, with the reason, where there is nothing to take.

    That is: the job is not deployed, suspended, down, in the hands of an operation such as a restore, or has no batch
    that the newest savepoint lacks. What the *deployed* spec says of ``savepoints`` counts: a DAG's schedule follows
    the YAML, which may have been changed since. A run that a person triggered doesn't ask what time it is. Does not
    wait for the job, and does not make up for missed ones.

    Returns id, batch, bytes, rows and time taken, and ``verify``: what the deployed spec says of that.

    Parameters
    ----------
    job
        The job. (templated)
    planned
        The DAG's schedule, as :func:`~streamwarden.savepoints.schedule.schedule_text` writes it.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#e3ecd5"

    def __init__(self, *, planned: str, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=30))
        super().__init__(**kwargs)
        self.planned = planned

    def execute(self, context: Context) -> dict[str, Any]:
        """Take it, if there is something to take."""
        workspace = self.open()
        # What the scheduler made; a manual run is a person's wish for one now.
        by_clock = str(getattr(context["dag_run"], "run_type", "scheduled")).endswith("scheduled")
        try:
            spec = self._deployed(workspace)
            reason = reason_to_skip(workspace, self.job, planned=self.planned if by_clock else None)
            if reason is not None:
                raise AirflowSkipException(reason)
            with self.interruptible():
                by = f"airflow:{holder_of(context)}"
                made = take(workspace, self.job, origin=Origin.PERIODIC, by=by, report=ProgressLog(self.log))
        except StreamwardenError as error:
            raise self.fail(error) from error
        return {**describe_taken(self.log, made), "verify": spec.verify}

    def _deployed(self, workspace: Workspace) -> SavepointSpec:
        desired = JobDocuments(workspace.storage, self.job).desired.read()
        spec = desired.spec.savepoints if desired is not None else SavepointSpec()
        if desired is not None and schedule_text(spec) != self.planned:
            said = schedule_text(spec) or "no periodic savepoints"
            self.log.warning("deployed: %s; this DAG follows the YAML: %s. What is deployed counts", said, self.planned)
        return spec


def describe_taken(log: Any, made: Manifest) -> dict[str, Any]:
    rows = f", {made.state_rows} rows of state" if made.state_rows else ""
    log.info(
        "savepoint %s of %s: batch %d, %d files, %d bytes%s, %.1f s",
        made.id,
        made.job,
        made.batch,
        len(made.files),
        made.bytes,
        rows,
        made.took_s,
    )
    return {
        "id": made.id,
        "job": made.job,
        "origin": made.origin.value,
        "batch": made.batch,
        "bytes": made.bytes,
        "rows": made.state_rows,
        "took_s": made.took_s,
    }
