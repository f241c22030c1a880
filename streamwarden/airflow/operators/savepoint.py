"""Operators that take savepoints, on demand and periodically."""

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
from streamwarden.savepoints.take import take
from streamwarden.savepoints.with_stop import savepoint_and_stop
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["ALL_SAVEPOINTS", "PeriodicSavepointOperator", "SavepointOperator"]

ALL_SAVEPOINTS = "all"
"""The value of :class:`VerifyOperator`'s `savepoint` that selects all savepoints."""


class SavepointOperator(JobOperator, InterruptibleOperator):
    """Takes a savepoint of a job: of a running job without stopping it, or together with a stop.

    A take that fails or is terminated leaves nothing; a job that it stopped is started again. Does not verify: see
    :class:`VerifyOperator`. Holds its worker slot while it works.

    Returns id, batch, bytes, rows and time taken.

    Parameters
    ----------
    job
        The job. (templated)
    stop
        Whether to suspend the job first, so that nothing is processed after the savepoint. (templated)
    note
        The reason, for the record. (templated)
    stop_timeout
        Seconds that the driver has to stop. 300: the batch in flight finishes first.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("job", "stop", "note")
    ui_color = "#e3ecd5"

    def __init__(self, *, stop: bool | str = False, note: str = "", stop_timeout: float = 300.0, **kwargs: Any) -> None:
        # A permanent error is final at once. A file that was removed during the copy is worth a retry, not a call.
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=30))
        super().__init__(**kwargs)
        self.stop = stop
        self.note = note
        self.stop_timeout = stop_timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Take the savepoint."""
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
    """Takes a periodic savepoint of a running job; is skipped, with the reason, if there is nothing to take.

    Reasons: the job is not deployed, suspended, down, owned by an operation such as a restore, or the newest savepoint
    covers its last batch. The *deployed* spec's ``savepoints`` count: a DAG's schedule follows the YAML, which may have
    changed since. A run that a person triggered ignores the schedule. Does not wait for the job, and does not make up
    for missed savepoints.

    Returns id, batch, bytes, rows and time taken, and ``verify`` from the deployed spec.

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
        """Take the savepoint, if there is something to take."""
        workspace = self.open()
        # True for the scheduler's runs; with a manual run, a person requests a savepoint now.
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
            self.log.warning(
                "deployed schedule: %s; this DAG's schedule, from the YAML: %s. The deployed one counts",
                said,
                self.planned,
            )
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
