"""Examine a place and its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamwarden.errors import StreamwardenError
from streamwarden.names import is_name
from streamwarden.operations.doctor.case import Case
from streamwarden.operations.doctor.findings import Finding, Verdict, of_error
from streamwarden.operations.doctor.of_job import examine_job
from streamwarden.operations.doctor.of_place import examine_published, examine_storage, hosts_of, judged_tables
from streamwarden.store.each import for_each
from streamwarden.store.layout import CHECKPOINTS, CONTROL, SAVEPOINTS
from streamwarden.store.workspace import Workspace

__all__ = ["examine"]


def examine(workspace: Workspace, jobs: Iterable[str] = (), *, deep: bool = False) -> list[Finding]:
    """Return what is whole in a place and what is not, with the commands that mend it. Writes nothing.

    Parameters
    ----------
    jobs
        Only these; default every job that has left documents, checkpoints or savepoints, and all that is no job's:
        driver hosts and published tables.
    deep
        Also read all bytes of savepoints, and look whether all files of tables are there.
    """
    storage = examine_storage(workspace)
    if storage.verdict is Verdict.BROKEN:
        # The rest would repeat this for each job.
        return [storage]
    found = [storage]
    chosen = list(jobs)
    tables = [] if chosen else judged_tables(workspace)
    if not chosen:
        found += _guarded("driver hosts", lambda: hosts_of(workspace))
        chosen = _jobs_of(workspace)
    published = for_each(workspace, tables, lambda table: _published(workspace, table, deep))
    examined = for_each(workspace, chosen, lambda job: examine_job(Case(workspace, job, deep)))
    return [*found, *(one for about in (*published, *examined) for one in about)]


def _jobs_of(workspace: Workspace) -> list[str]:
    """Return the jobs that have left traces, described or not."""
    names = (name for folder in (CONTROL, CHECKPOINTS, SAVEPOINTS) for name in workspace.files.folders(folder))
    return sorted({name for name in names if is_name(name)})


def _published(workspace: Workspace, table: str, deep: bool) -> list[Finding]:
    return _guarded(f"published {table}", lambda: examine_published(workspace, table, deep=deep))


def _guarded(about: str, part: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(part())
    except StreamwardenError as error:
        return [of_error("", about, error)]
