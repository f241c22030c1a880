"""Remove what retention lets go."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from streamwarden.airflow.operators.base import (
    InterruptibleOperator,
)
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import PROGRESS_TABLE, RetentionSpec
from streamwarden.operations.housekeeping import housekeep
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["HousekeepingOperator"]


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
