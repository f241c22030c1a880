"""The routes of the pages about data quality."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from streamwarden.airflow.pages.acts import ACTS
from streamwarden.airflow.pages.fresh import Fresh
from streamwarden.airflow.pages.places import Place, Table, Who, seen_tables
from streamwarden.airflow.pages.quality import SINCE, TableQuality, data_docs_page, table_quality, table_run
from streamwarden.airflow.pages.quarantine import (
    Quarantine,
    quarantine_of_table,
    quarantine_versions,
    shortened,
)
from streamwarden.airflow.pages.render import DOCS_HEADERS, KEPT, links_of, page, rows
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.quality.data_docs.files import ASSETS, asset
from streamwarden.quality.gate_words import decision_note, version_range
from streamwarden.store.workspace import Workspace

__all__ = ["router"]

router = APIRouter()

_Found = tuple[list[TableQuality], StreamwardenError | None]


def _read(request: Request, place: Workspace, tables: dict[str, list[str]]) -> _Found:
    fresh: Fresh = request.app.state.fresh
    key = ("quality", place.base, tuple((table, *jobs) for table, jobs in tables.items()))
    return fresh.get(key, lambda: table_quality(place, tables, utc_now() - SINCE))


@router.get("/quality")
def quality(request: Request, place: Place, who: Who) -> Response:
    """Show all tables that have a suite."""
    found, problem = _read(request, place, seen_tables(place, who))
    return page(request, "quality.html.j2", found=found, problem=problem)


@router.get("/quality/{table}")
def one_table(request: Request, table: Table, place: Place, who: Who) -> Response:
    """Show a table: what is held, its checks, and the gate's decisions."""
    jobs = seen_tables(place, who)[table]
    (one,), problem = _read(request, place, {table: jobs})
    quarantine, unread = _quarantine(request, place, table, jobs)
    values: dict[str, Any] = {"range": version_range, "rows": rows, "note": decision_note, "who": who, "acts": ACTS}
    values |= {"quarantine": quarantine, "unread": unread, "shortened": shortened}
    return page(request, "table.html.j2", table=table, one=one, problem=problem, **values)


def _quarantine(
    request: Request, place: Workspace, table: str, jobs: list[str]
) -> tuple[Quarantine | None, StreamwardenError | None]:
    """Return the table's quarantined rows, and why they can't be read."""
    kept: Fresh = request.app.state.kept
    try:
        versions = quarantine_versions(place, table)
        if versions is None:
            return None, None
        key = ("quarantine", place.base, table, tuple(jobs), versions)
        return kept.get(key, lambda: quarantine_of_table(place, table, jobs)), None
    except StreamwardenError as error:
        return None, error


@router.get("/quality/{table}/{run}")
def one_run(request: Request, table: Table, run: str, place: Place) -> Response:
    """Show one check of a table."""
    found = table_run(place, table, run, utc_now() - SINCE)
    if found is None:
        raise HTTPException(404, f"No check {run} of {table}")
    return page(request, "run.html.j2", table=table, one=found, range=version_range, rows=rows)


@router.get("/docs/{run}/index.html")
def docs_index(request: Request) -> Response:
    """Lead from Data Docs back to the list: their own first page names tables that the reader may not see."""
    return RedirectResponse(links_of(request).page("quality"))


@router.get("/docs/{run}/static/{name}")
def docs_static(name: str) -> Response:
    """Return a style sheet of the Data Docs."""
    if name not in ASSETS:
        raise HTTPException(404, f"No file {name}")
    return Response(asset(name), headers={**DOCS_HEADERS, **KEPT}, media_type="text/css")


@router.get("/docs/{run}/{kind}/{table}.html")
def docs_page(run: str, kind: str, table: Table, place: Place) -> Response:
    """Show Great Expectations' page of a check of a table, or of its suite."""
    text = data_docs_page(place, kind, table, run)
    if text is None:
        raise HTTPException(404, f"No Data Docs of the check {run}: streamwarden data-docs {run} writes them")
    return Response(text, headers=DOCS_HEADERS, media_type="text/html; charset=utf-8")
