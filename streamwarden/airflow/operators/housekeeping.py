"""Remove what retention no longer keeps."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from streamwarden.airflow.operators.base import (
    InterruptibleOperator,
)
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import RetentionSpec
from streamwarden.operations.housekeeping import housekeep, look_after_tables
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import CONTROL, SAVEPOINTS
from streamwarden.store.workspace import Workspace

__all__ = ["HousekeepingOperator"]


class HousekeepingOperator(InterruptibleOperator):
    """Removes savepoints that retention no longer keeps, leftovers of interrupted work, and superseded checkpoints.

    On this worker's machine, also removes files that killed drivers left on the disk.

    Covers every job that is deployed or has savepoints. A deployed job uses the ``savepoints.keep`` of its deployed
    spec. Any other job uses its YAML, or the defaults if it has none. Never removes the newest verified savepoint, a
    labelled one, or one in use. Once a day it also maintains the table of batches, as the profile specifies.

    Returns what was removed, by job; jobs without removals are omitted. The maintenance of the table of batches is
    under the table's name.

    Parameters
    ----------
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#eeeeee"

    def execute(self, context: Context) -> dict[str, dict[str, Any]]:
        """Process all jobs; an error in a job does not affect the others."""
        del context
        workspace = self.open()
        removed: dict[str, dict[str, Any]] = {}
        failed: list[StreamwardenError] = []
        jobs = sorted({*workspace.files.folders(CONTROL), *workspace.files.folders(SAVEPOINTS)})
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
        self.log.info("housekeeping of %d jobs done", len(jobs))
        try:
            with self.interruptible():
                upkeep = look_after_tables(workspace)
        except StreamwardenError as trouble:
            self.log.error("%s", trouble)
            failed.append(trouble)
        else:
            for table, counts in upkeep.items():
                self.log.info("%s: %s", table, counts)
                removed[table] = counts
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
