"""Remove a job's old savepoints, checkpoints, scratch folders, and the documents and logs of old runs."""

from __future__ import annotations

import shutil

from streamwarden.model.gate import GateRecord
from streamwarden.model.spec import RetentionSpec
from streamwarden.runtime import work_dirs
from streamwarden.savepoints import catalog
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import Document
from streamwarden.store.layout import CONTROL, GATE, INCARNATIONS, LOGS, QUALITY, id_of, job_key
from streamwarden.store.workspace import Workspace

__all__ = ["housekeep", "look_after_tables"]


def housekeep(workspace: Workspace, job: str, retention: RetentionSpec) -> dict[str, list[str]]:
    """Finish interrupted removals, and remove expired and unused files. Return the removed names by reason.

    Removes log files and scratch folders on this machine only. Keeps the operations' records and the table of batches.

    Parameters
    ----------
    retention
        The retention of savepoints. The profile sets how many old runs are kept (``logs.incarnations``).

    Returns
    -------
    dict
        Removed names by reason: the result of :func:`~streamwarden.savepoints.catalog.housekeeping`, scratch folders of
        killed drivers under ``left_by_drivers``, and incarnations without documents and logs now under
        ``old_incarnations``.
    """
    return {
        **catalog.housekeeping(workspace, job, retention),
        "left_by_drivers": work_dirs.sweep(workspace, job),
        "old_incarnations": _remove_old_incarnations(workspace, job),
    }


def _remove_old_incarnations(workspace: Workspace, job: str) -> list[str]:
    storage = workspace.storage
    runs = storage.list(job_key(CONTROL, job, INCARNATIONS))
    newest = sorted({id_of(key) for key in runs})[-workspace.profile.logs.incarnations :]
    if not newest:
        return []
    removed = set()
    # By name, which begins with the time: this also finds the rest of an interrupted removal.
    for key in runs:
        if id_of(key) < newest[0]:
            storage.delete(key)
            removed.add(id_of(key))
    for folder in (workspace.root / job_key(LOGS, job)).glob("*/"):
        if folder.name < newest[0]:
            shutil.rmtree(folder, ignore_errors=True)
            removed.add(folder.name)
    return sorted(removed)


def look_after_tables(workspace: Workspace) -> dict[str, dict[str, int]]:
    """Join the files of the tables of batches and of checks, and remove their old rows.

    Also removes the reports of old checks (``quality.keep``) on this machine, except those of held ranges.

    Returns
    -------
    dict
        By table: what :meth:`~streamwarden.formats.appended_table.AppendedTable.upkeep` did, if anything. Under
        ``quality``: ``runs_removed``.
    """
    # Imported here: at module level, parsing a DAG would load delta-rs.
    from streamwarden.formats.progress_table import ProgressTable
    from streamwarden.formats.quality_table import QualityTable

    spec = workspace.profile.progress_table
    tables = [QualityTable(workspace), *([ProgressTable(workspace)] if spec.enabled else [])]
    done = {table.table: table.upkeep(spec.keep) for table in tables}
    if removed := _remove_old_reports(workspace):
        done[QUALITY] = {"runs_removed": removed}
    return {name: one for name, one in done.items() if one}


def _remove_old_reports(workspace: Workspace) -> int:
    from streamwarden.quality.documents import remove_old_runs

    held = set()
    for key in workspace.storage.list(GATE):
        record = Document(workspace.storage, key, GateRecord).read()
        if record is not None and record.hold is not None:
            held.add(record.hold.run)
    storage = LocalStorage(workspace.root)
    return len(remove_old_runs(storage, workspace.root, QUALITY, workspace.profile.quality.keep, used=held))
