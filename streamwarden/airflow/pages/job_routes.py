"""The routes of the streams' pages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import yaml
from fastapi import APIRouter, HTTPException, Request, Response

from streamwarden.airflow.pages.acts import ACTS
from streamwarden.airflow.pages.batches import newest_batches
from streamwarden.airflow.pages.fresh import Fresh, freeze_heap
from streamwarden.airflow.pages.logs import log_ends
from streamwarden.airflow.pages.places import SPANS, Job, Place, Span, Who, all_jobs
from streamwarden.airflow.pages.render import page
from streamwarden.airflow.pages.stream import StreamPage, stream_page
from streamwarden.airflow.pages.streams import StreamList, list_streams
from streamwarden.autoscaler.advise import advise
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.operations.diff_words import value_text, what_a_deploy_does
from streamwarden.operations.spec_diff import plan
from streamwarden.store.documents import JobDocuments

__all__ = ["router"]

router = APIRouter()


@router.get("/streams")
def streams(request: Request, place: Place, who: Who, span: Span = "1h", q: str = "", show: str = "all") -> Response:
    """Show all streams."""
    jobs = who.of(all_jobs(place))
    fresh: Fresh = request.app.state.fresh

    def read() -> StreamList:
        return list_streams(place, jobs, SPANS[span], utc_now())

    found = fresh.get(("streams", place.base, span, tuple(jobs)), read)
    chosen = [one for one in found.streams if one.matches(q, show)]
    values: dict[str, Any] = {"span": span, "spans": list(SPANS), "q": q, "show": show}
    answer = page(request, "streams.html.j2", found=found, chosen=chosen, **values)
    # After the first one, when all that a page needs is loaded.
    freeze_heap()
    return answer


@router.get("/streams/{job}")
def stream(
    request: Request, job: Job, place: Place, who: Who, span: Span = "1h", until: datetime | None = None
) -> Response:
    """Show one stream over a time, which ends now or at `until`."""
    end = until.astimezone(UTC) if until is not None else None
    fresh: Fresh = request.app.state.fresh

    def read() -> StreamPage:
        return stream_page(place, job, SPANS[span], until=end or utc_now(), live=end is None)

    found = fresh.get(("stream", place.base, job, span, end), read)
    values: dict[str, Any] = {"span": span, "spans": list(SPANS), "tab": "overview", "who": who}
    return page(request, "stream.html.j2", job=job, found=found, **values)


@router.get("/streams/{job}/batches")
def batches(request: Request, job: Job, place: Place) -> Response:
    """Show the newest batches."""
    found, problem = newest_batches(place, job)
    return page(request, "batches.html.j2", job=job, tab="batches", batches=found, problem=problem)


@router.get("/streams/{job}/spec")
def spec(request: Request, job: Job, place: Place, who: Who) -> Response:
    """Show the spec in force, and what a deploy would change."""
    desired = JobDocuments(place.storage, job).desired.read()
    text = yaml.safe_dump(desired.spec.model_dump(mode="json", exclude_unset=True), sort_keys=False) if desired else ""
    planned, error = None, None
    try:
        planned = plan(place, job)
    except StreamwardenError as caught:
        error = caught
    does = what_a_deploy_does(planned) if planned is not None else ""
    values: dict[str, Any] = {"desired": desired, "spec": text, "value": value_text, "who": who, "acts": ACTS}
    return page(request, "spec.html.j2", job=job, tab="spec", planned=planned, does=does, error=error, **values)


@router.get("/streams/{job}/advice")
def advice(request: Request, job: Job, place: Place, who: Who) -> Response:
    """Show the advisor's recommendation."""
    fresh: Fresh = request.app.state.fresh
    found, error, window = None, None, 0.0
    try:
        found = fresh.get(("advice", place.base, job), lambda: advise(place, job))
        desired = JobDocuments(place.storage, job).desired.read()
        if desired is not None:
            window = desired.spec.advisor.window.total_seconds()
    except StreamwardenError as caught:
        error = caught
    return page(request, "advice.html.j2", job=job, tab="advice", advice=found, error=error, window=window, who=who)


@router.get("/streams/{job}/logs")
def logs(request: Request, job: Job, place: Place, who: Who, incarnation: str = "") -> Response:
    """Show the ends of a driver's logs."""
    if not who.may_read_logs(job):
        raise HTTPException(403, f"You may not read the task logs of {job}'s DAG")
    found = log_ends(place, job, incarnation)
    if found is None:
        raise HTTPException(404, f"No incarnation {incarnation} of {job}")
    return page(request, "logs.html.j2", job=job, tab="logs", found=found)
