"""The routes of the pages. Each reads; none writes. Each asks Airflow who may see it."""

from __future__ import annotations

import re
from importlib.resources import files

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from streamwarden.airflow.describe import dag_id_of
from streamwarden.airflow.pages import job_routes, quality_routes
from streamwarden.airflow.pages.access import SEES_PLUGINS
from streamwarden.airflow.pages.acts import ACTS
from streamwarden.airflow.pages.fresh import Fresh
from streamwarden.airflow.pages.operations import find_operation, list_operations, operation_of_run, timeline_of
from streamwarden.airflow.pages.places import Place, Who, all_jobs, known_job, known_table
from streamwarden.airflow.pages.render import HEADERS, KEPT, links_of, page
from streamwarden.airflow.pages.savepoints import TONES as PROOF_TONES
from streamwarden.airflow.pages.savepoints import JobSavepoints, savepoints_of
from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.model.record import utc_now
from streamwarden.store.layout import SAVEPOINTS

__all__ = ["build_app"]

_FILE = re.compile(r"[a-z]+(?:\.min)?\.(css|js)")
_TYPES = {"css": "text/css", "js": "text/javascript"}


def build_app() -> FastAPI:
    """Return the application of the pages."""
    # Without the pages of FastAPI's own documentation, which would be open to everybody.
    app = FastAPI(title="Streamwarden", dependencies=[SEES_PLUGINS], docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(StreamwardenError, _failed)
    app.add_exception_handler(Exception, _broken)
    app.state.fresh = Fresh()
    # For results whose key has the versions of what they were made of.
    app.state.kept = Fresh(3600, size=50)
    app.include_router(job_routes.router)
    app.include_router(quality_routes.router)

    @app.get("/")
    def home(request: Request) -> Response:
        return RedirectResponse(links_of(request).page("streams"))

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        found = _FILE.fullmatch(name)
        file = files(__package__) / "static" / name
        if found is None or not file.is_file():
            raise HTTPException(404, f"No file {name}")
        # The address names the version: a browser may keep it.
        return Response(file.read_bytes(), headers={**HEADERS, **KEPT}, media_type=_TYPES[found[1]])

    @app.get("/operations")
    def operations(request: Request, place: Place, who: Who, job: str = "") -> Response:
        jobs = [known_job(job, place, who)] if job else who.of(all_jobs(place))
        now = utc_now()

        def read() -> list[Operation]:
            return list_operations(place, jobs)

        fresh: Fresh = app.state.fresh
        found = [timeline_of(one, now) for one in fresh.get(("operations", place.base, tuple(jobs)), read)]
        return page(request, "operations.html.j2", found=found, job=job)

    @app.get("/operations/{job}/{name}")
    def operation(request: Request, job: str, name: str, place: Place, who: Who) -> Response:
        found = find_operation(place, known_job(job, place, who), name)
        if found is None:
            raise HTTPException(404, f"No operation {name} of {job}")
        return page(request, "operation.html.j2", one=timeline_of(found, utc_now()), who=who)

    @app.get("/savepoints")
    def savepoints(request: Request, place: Place, who: Who, job: str = "") -> Response:
        taken = place.files.folders(SAVEPOINTS)
        jobs = [known_job(job, place, who)] if job else who.of(taken)

        def read() -> list[JobSavepoints]:
            found = [savepoints_of(place, one, utc_now()) for one in jobs]
            return found if job else [one for one in found if one.kept or one.error]

        fresh: Fresh = app.state.fresh
        found = fresh.get(("savepoints", place.base, job, tuple(jobs)), read)
        return page(request, "savepoints.html.j2", found=found, job=job, who=who, tones=PROOF_TONES)

    @app.get("/act/{name}")
    def act(request: Request, name: str, place: Place, who: Who, job: str = "", table: str = "") -> Response:
        found = ACTS.get(name)
        if found is None:
            raise HTTPException(404, f"No act {name}")
        subject = known_table(table, place, who) if found.on_table else known_job(job, place, who)
        links = links_of(request)
        return page(
            request,
            "act.html.j2",
            act=found,
            subject=subject,
            conf=found.conf(subject, request.query_params),
            command=found.as_command(subject, request.query_params),
            back=links.page("quality", subject) if found.on_table else links.page("streams", subject),
            allowed=who.may_trigger(found.dag_id(subject)),
        )

    @app.get("/dag/{dag_id}")
    def dag(request: Request, dag_id: str, place: Place, who: Who) -> Response:
        if not who.sees_dag(dag_id):
            raise HTTPException(403, f"You may not read the DAG {dag_id}")
        job = next((one for one in all_jobs(place) if dag_id_of(one) == dag_id), None)
        if job is not None:
            return RedirectResponse(links_of(request).page("streams", job))
        text = f"The DAG {dag_id} runs no stream."
        return page(request, "dag.html.j2", dag_id=dag_id, text=text)

    @app.get("/dag/{dag_id}/run/{run_id:path}")
    def run(request: Request, dag_id: str, run_id: str, place: Place, who: Who) -> Response:
        if not who.sees_dag(dag_id):
            raise HTTPException(403, f"You may not read the DAG {dag_id}")
        links = links_of(request)
        jobs = who.of(all_jobs(place))
        found = operation_of_run(place, jobs, dag_id, run_id)
        if found is not None:
            return RedirectResponse(links.page("operations", found.job, found.id))
        job = next((one for one in jobs if dag_id_of(one) == dag_id), None)
        if job is not None:
            return RedirectResponse(links.page("streams", job))
        text = "This run performs no restore, rollout or rescale, or has not begun it."
        return page(request, "dag.html.j2", dag_id=dag_id, text=text)

    return app


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    titles = {401: "Log in to Airflow first", 403: "You may not see this", 404: "Not found"}
    title = titles.get(error.status_code, "This did not work")
    what = str(error.detail)
    return page(request, "error.html.j2", status=error.status_code, title=title, what=what, remedy="", code="")


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, StreamwardenError)
    if error.code == "NAME_INVALID":
        return _refused(request, HTTPException(404, error.what))
    status = 503 if error.retryable else 500
    title = "This can't be read now" if error.retryable else "This can't be read"
    return page(
        request, "error.html.j2", status=status, title=title, what=error.what, remedy=error.remedy, code=error.code
    )


def _broken(request: Request, error: Exception) -> Response:
    # The error itself goes to the server's log: its text may hold anything.
    what = f"{type(error).__name__}: the log of the API server has the details"
    return page(request, "error.html.j2", status=500, title="This did not work", what=what, remedy="", code="")
