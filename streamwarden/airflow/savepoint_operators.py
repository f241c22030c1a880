"""Operators: take savepoints, look through them, remove old ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from streamwarden.airflow.job_operator import (
    ALL_JOBS,
    InterruptibleOperator,
    JobOperator,
    ProgressLog,
    holder_of,
    is_true,
)
from streamwarden.airflow.offered import chosen_savepoint
from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.spec import PROGRESS_TABLE, RetentionSpec, SavepointSpec
from streamwarden.operations.housekeeping import housekeep
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.savepoints.schedule import reason_to_skip, schedule_text
from streamwarden.savepoints.take import savepoint_and_stop, take
from streamwarden.savepoints.verify import verify
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = [
    "ALL_JOBS",
    "ALL_SAVEPOINTS",
    "HousekeepingOperator",
    "PeriodicSavepointOperator",
    "SavepointOperator",
    "VerifyOperator",
]

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
        return _taken(self.log, made)


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
        return {**_taken(self.log, made), "verify": spec.verify}

    def _deployed(self, workspace: Workspace) -> SavepointSpec:
        desired = JobDocuments(workspace.storage, self.job).desired.read()
        spec = desired.spec.savepoints if desired is not None else SavepointSpec()
        if desired is not None and schedule_text(spec) != self.planned:
            said = schedule_text(spec) or "no periodic savepoints"
            self.log.warning("deployed: %s; this DAG follows the YAML: %s. What is deployed counts", said, self.planned)
        return spec


class VerifyOperator(JobOperator, InterruptibleOperator):
    """Looks through savepoints: every file's bytes, and the state read back by Spark in a process of its own.

    Records for each what it found, and fails, naming each damaged one with its files. Does not repair or delete. One
    JVM serves all; a stateless job's savepoints need none.

    Returns the ids of those verified.

    Parameters
    ----------
    job
        The job, or ``all`` for every one that has savepoints. (templated)
    savepoint
        An id, a label, ``latest`` for the newest verified one, or ``all``. (templated)
    wanted
        False skips the task. (templated)
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("job", "savepoint", "wanted")
    ui_color = "#e8e3f2"

    def __init__(self, *, savepoint: str = ALL_SAVEPOINTS, wanted: bool | str = True, **kwargs: Any) -> None:
        # For the JVM that did not start. A savepoint that is damaged stays so, and is final.
        kwargs.setdefault("retries", 1)
        kwargs.setdefault("retry_delay", timedelta(seconds=30))
        super().__init__(**kwargs)
        self.savepoint = savepoint
        self.wanted = wanted

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify, and judge."""
        if not is_true(self.wanted):
            raise AirflowSkipException("not asked for")
        workspace = self.open()
        try:
            chosen = self._chosen(workspace)
            if not chosen:
                raise AirflowSkipException("there are no savepoints")
            self.log.info("looking through %d savepoints", len(chosen))
            with self.interruptible():
                by = f"airflow:{holder_of(context)}"
                found = verify(workspace, chosen, by=by, report=ProgressLog(self.log))
        except StreamwardenError as error:
            raise self.fail(error) from error
        damaged = []
        for one in chosen:
            name, result = f"{one.manifest.job} {one.manifest.id}", found.get(one.manifest.id)
            if result is None:
                self.log.info("%s was deleted meanwhile", name)
            elif result.problems:
                damaged.append(f"{name}: {'; '.join(result.problems)}")
                self.log.error("%s is damaged: %s", name, "; ".join(result.problems))
            else:
                rows = "" if not result.rows else f", {sum(result.rows.values())} rows of state read back"
                self.log.info("%s is whole: %d files, %d bytes%s", name, result.files, result.bytes, rows)
        if damaged:
            # Final: it stays so. The words of the catalogue, as for one that a restore finds damaged.
            raise AirflowFailException(str(StreamwardenError("SAVEPOINT_DAMAGED", "\n".join(damaged))))
        return {"verified": [one.manifest.id for one in chosen if one.manifest.id in found]}

    def _chosen(self, workspace: Workspace) -> list[Savepoint]:
        wanted = chosen_savepoint(self.savepoint)
        if self.job != ALL_JOBS:
            if wanted == ALL_SAVEPOINTS:
                return catalog.savepoints(workspace, self.job)
            return [catalog.find(workspace, self.job, wanted)]
        jobs = workspace.files.folders("savepoints")
        if wanted == ALL_SAVEPOINTS:
            return [one for job in jobs for one in catalog.savepoints(workspace, job)]
        found = []
        for job in jobs:
            try:
                found.append(catalog.find(workspace, job, wanted))
            except StreamwardenError as error:
                if error.code != "SAVEPOINT_NOT_FOUND":
                    raise
                self.log.info(error.what)
        if not found and wanted != catalog.LATEST:
            raise StreamwardenError("SAVEPOINT_NOT_FOUND", f"{wanted!r} is neither an id nor a label, of any job")
        return found


class HousekeepingOperator(InterruptibleOperator):
    """Removes the savepoints that retention lets go, what interrupted work left, and checkpoints no longer in force.

    On this worker's machine, also what killed drivers have left on the disk.

    For every job that is deployed or has savepoints, by the ``savepoints.keep`` of its deployed spec; of a job that is
    not deployed, by its YAML, and by the defaults where there is none. Never removes the newest verified one, one with
    a label, or one in use. Once a day it looks after the table of batches as well, as the profile says.

    Returns what was removed, by job; jobs without are left out. What was done to the table of batches is under its
    name.

    Parameters
    ----------
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#eeeeee"

    def execute(self, context: Context) -> dict[str, dict[str, Any]]:
        """Go through all jobs; one's trouble is not another's."""
        del context
        workspace = self.open()
        removed: dict[str, dict[str, Any]] = {}
        failed: list[StreamwardenError] = []
        jobs = sorted({*workspace.files.folders("control"), *workspace.files.folders("savepoints")})
        for job in jobs:
            try:
                with self.interruptible():
                    done = housekeep(workspace, job, self._retention(workspace, job))
            except (StreamwardenError, OSError) as error:
                trouble = (
                    error if isinstance(error, StreamwardenError) else StreamwardenError("OPERATION_FAILED", str(error))
                )
                self.log.error("%s: %s", job, trouble)
                failed.append(trouble)
                continue
            for what, ids in done.items():
                if ids:
                    self.log.info("%s: %s: %s", job, what.replace("_", " "), ", ".join(ids))
                    removed.setdefault(job, {})[what] = ids
        self.log.info("%d jobs looked through", len(jobs))
        try:
            with self.interruptible():
                upkeep = _look_after_batches(workspace)
        except StreamwardenError as trouble:
            self.log.error("%s: %s", PROGRESS_TABLE, trouble)
            failed.append(trouble)
        else:
            if upkeep:
                self.log.info("%s: %s", PROGRESS_TABLE, upkeep)
                removed[PROGRESS_TABLE] = upkeep
        if failed:
            raise AirflowException("\n".join(str(error) for error in failed))
        return removed

    def _retention(self, workspace: Workspace, job: str) -> RetentionSpec:
        desired = JobDocuments(workspace.storage, job).desired.read()
        if desired is not None:
            return desired.spec.savepoints.keep
        try:
            return workspace.job(job).savepoints.keep
        except StreamwardenError as error:
            self.log.info("%s: the defaults, since %s", job, error.what)
            return RetentionSpec()


def _look_after_batches(workspace: Workspace) -> dict[str, int]:
    spec = workspace.profile.progress_table
    if not spec.enabled:
        return {}
    # Here, since a DAG's parsing would load delta-rs otherwise.
    from streamwarden.formats.progress_table import ProgressTable

    return ProgressTable(workspace).upkeep(spec.keep)


def _taken(log: Any, made: Manifest) -> dict[str, Any]:
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
