"""Verify savepoints."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from streamwarden.airflow.form_options import chosen_savepoint
from streamwarden.airflow.operators.base import (
    ALL_JOBS,
    InterruptibleOperator,
    JobOperator,
    ProgressLog,
    holder_of,
    is_true,
)
from streamwarden.airflow.operators.savepoint import ALL_SAVEPOINTS
from streamwarden.errors import StreamwardenError
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.savepoints.verify import verify
from streamwarden.store.layout import SAVEPOINTS
from streamwarden.store.workspace import Workspace

__all__ = ["VerifyOperator"]


class VerifyOperator(JobOperator, InterruptibleOperator):
    """Verifies savepoints: every file's bytes, and the state, which Spark reads back in a separate process.

    Records the result for each savepoint. Fails if any is damaged, and names each with its files. Does not repair or
    delete. One JVM serves all; savepoints of a stateless job need none.

    Returns the ids of the verified savepoints.

    Parameters
    ----------
    job
        The job, or ``all`` for every job that has savepoints. (templated)
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
        # A retry for a JVM that did not start. A damaged savepoint stays damaged: that error is final.
        kwargs.setdefault("retries", 1)
        kwargs.setdefault("retry_delay", timedelta(seconds=30))
        super().__init__(**kwargs)
        self.savepoint = savepoint
        self.wanted = wanted

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify, and fail if any savepoint is damaged."""
        if not is_true(self.wanted):
            raise AirflowSkipException("not requested")
        workspace = self.open()
        try:
            chosen = self._chosen(workspace)
            if not chosen:
                raise AirflowSkipException("there are no savepoints")
            self.log.info("verifying %d savepoints", len(chosen))
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
                self.log.info("%s is verified: %d files, %d bytes%s", name, result.files, result.bytes, rows)
        if damaged:
            # Final: it stays damaged. The catalogue's text, as when a restore finds a damaged savepoint.
            raise AirflowFailException(str(StreamwardenError("SAVEPOINT_DAMAGED", "\n".join(damaged))))
        return {"verified": [one.manifest.id for one in chosen if one.manifest.id in found]}

    def _chosen(self, workspace: Workspace) -> list[Savepoint]:
        wanted = chosen_savepoint(self.savepoint)
        if self.job != ALL_JOBS:
            if wanted == ALL_SAVEPOINTS:
                return catalog.savepoints(workspace, self.job)
            return [catalog.find(workspace, self.job, wanted)]
        jobs = workspace.files.folders(SAVEPOINTS)
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
            raise StreamwardenError("SAVEPOINT_NOT_FOUND", f"{wanted!r} is neither an id nor a label of any job")
        return found
