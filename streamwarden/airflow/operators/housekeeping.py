"""Remove what retention no longer keeps."""

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
    # Imported here: at module level, parsing a DAG would load delta-rs.
    from streamwarden.formats.progress_table import ProgressTable

    return ProgressTable(workspace).upkeep(spec.keep)
