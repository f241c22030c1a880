"""What every route needs: the workspace, the reader, and names of the address that exist and may be seen."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Depends, HTTPException, Query

from streamwarden.airflow.pages.access import Reader, reader
from streamwarden.airflow.pages.quality import jobs_by_table, suites_of
from streamwarden.store.config import job_names
from streamwarden.store.layout import CONTROL
from streamwarden.store.workspace import Workspace, open_workspace

__all__ = ["SPANS", "Job", "Place", "Span", "Table", "Who", "all_jobs", "known_job", "known_table", "seen_tables"]

SPANS = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
"""The times that a reader can choose."""

QUALITY_DAG = "quality"


def workspace() -> Workspace:
    """Return the workspace of the environment; a dependency of routes."""
    return open_workspace()


Place = Annotated[Workspace, Depends(workspace)]
Who = Annotated[Reader, Depends(reader)]
Span = Annotated[str, Query(pattern=f"^({'|'.join(SPANS)})$")]


def all_jobs(place: Workspace) -> list[str]:
    """Return the jobs with YAML, and those that were deployed once."""
    return sorted({*job_names(place.config), *place.files.folders(CONTROL)})


def known_job(job: str, place: Place, who: Who) -> str:
    """Return a job that the reader may see and that exists; a dependency of routes.

    Raises
    ------
    HTTPException
        403 or 404.
    """
    who.require(job)
    # Looked up, and not made a path of: the address may hold anything.
    if job not in all_jobs(place):
        raise HTTPException(404, f"No job {job}: it has neither a YAML file nor documents")
    return job


def seen_tables(place: Workspace, who: Reader) -> dict[str, list[str]]:
    """Return the tables with a suite that the reader may see, with the jobs that write them.

    A table is seen by those who see one of its jobs. A table of no job is seen by those who see the DAG ``quality``.
    """
    jobs = jobs_by_table(place)
    seen = set(who.of(sorted({job for each in jobs.values() for job in each})))
    checks = who.sees_dag(QUALITY_DAG)
    return {
        table: sorted(seen & set(jobs.get(table, ())))
        for table in suites_of(place)
        if (seen & set(jobs[table]) if table in jobs else checks)
    }


def known_table(table: str, place: Place, who: Who) -> str:
    """Return a table that the reader may see and that has a suite; a dependency of routes.

    Raises
    ------
    HTTPException
        404.
    """
    if table not in seen_tables(place, who):
        raise HTTPException(404, f"No table {table} that you may see has a suite")
    return table


Job = Annotated[str, Depends(known_job)]
Table = Annotated[str, Depends(known_table)]
