"""Every route as nobody, as a viewer, as an operator, and as somebody who may read no DAG."""

from __future__ import annotations

import gzip
import hashlib
import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("airflow")

from airflow.api_fastapi.app import _AuthManagerState
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from streamwarden.airflow import pages
from streamwarden.airflow.pages.app import build_app
from streamwarden.airflow.pages.places import workspace as workspace_of
from streamwarden.errors import StreamwardenError
from streamwarden.model.gate import Decision, GateRecord, Verdict
from streamwarden.model.record import utc_now
from streamwarden.quality.gate_state import gate_document
from streamwarden.redaction import HIDDEN
from streamwarden.store.workspace import Workspace
from tests.canaries import CANARIES, found_in, value_of
from tests.unit.airflow.pages.made import LEAKED_RUN, NASTY, ODD, OPERATION, RUN, batch, leaked, populated, ran

pytestmark = pytest.mark.unit

PREFIX = "/airflow/streamwarden"

# An address for each route, with values that exist.
ADDRESSES = {
    "/": "/",
    "/static/{name}": "/static/pages.js",
    "/streams": "/streams",
    "/streams/{job}": "/streams/slow",
    "/streams/{job}/batches": "/streams/slow/batches",
    "/streams/{job}/spec": "/streams/slow/spec",
    "/streams/{job}/advice": "/streams/slow/advice",
    "/streams/{job}/logs": "/streams/slow/logs",
    "/operations": "/operations",
    "/operations/{job}/{name}": f"/operations/slow/{OPERATION}",
    "/savepoints": "/savepoints",
    "/quality": "/quality",
    "/quality/{table}": "/quality/trips",
    "/quality/{table}/{run}": f"/quality/trips/{RUN}",
    "/docs/{run}/index.html": f"/docs/{RUN}/index.html",
    "/docs/{run}/static/{name}": f"/docs/{RUN}/static/bootstrap.min.css",
    "/docs/{run}/{kind}/{table}.html": f"/docs/{RUN}/validations/trips.html",
    "/act/{name}": "/act/rescale?job=slow",
    "/dag/{dag_id}": "/dag/job_slow",
    "/dag/{dag_id}/run/{run_id:path}": "/dag/rescale/run/manual__2026",
}

OF_A_JOB = [one for path, one in ADDRESSES.items() if "{job}" in path or one.startswith(("/act", "/dag"))]


class _NoDags(SimpleAuthManager):
    """Everybody sees plugins, and nobody a DAG."""

    def is_authorized_dag(self, **_: Any) -> bool:
        return False


def _of_job(job: str) -> type[SimpleAuthManager]:
    """Return a manager by which everybody reads and triggers the DAG of one job, and reads some DAGs for all jobs."""

    class Manager(SimpleAuthManager):
        def is_authorized_dag(self, *, method: Any, details: Any = None, **_: Any) -> bool:
            mine, others = f"job_{job}", ("rescale", "gate_decide", "quarantine_replay")
            return details is not None and (details.id == mine or (method == "GET" and details.id in others))

    return Manager


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return populated(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A place that was filled by processes with a canary in every secret; the environment keeps them meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name, secret in CANARIES.items():
            patch.setenv(name, value_of(name, secret))
        yield leaked(tmp_path_factory.mktemp("leaky"))


@pytest.fixture
def client(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TestClient]]:
    def made(role: str | None = "OP", manager: Any = SimpleAuthManager, place: Workspace = place) -> TestClient:
        monkeypatch.setattr(_AuthManagerState, "instance", manager())
        app = build_app()
        app.dependency_overrides[workspace_of] = lambda: place
        if role is not None:
            app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ann", role=role)
        outer = FastAPI()
        outer.mount("/streamwarden", app)
        return TestClient(outer, root_path="/airflow", follow_redirects=False)

    yield made


def get(client: TestClient, address: str) -> Any:
    return client.get(f"/airflow/streamwarden{address}")


def routes() -> list[APIRoute]:
    return [route for route in build_app().routes if isinstance(route, APIRoute)]


def test_every_route_is_walked_and_only_reads() -> None:
    app = build_app()
    assert {getattr(route, "path", str(route)) for route in app.routes} == set(ADDRESSES)
    assert {method for route in routes() for method in route.methods} == {"GET"}


@pytest.mark.parametrize("address", ADDRESSES.values())
def test_nobody_sees_nothing(client: Callable[..., TestClient], address: str) -> None:
    answer = get(client(None), address)
    assert answer.status_code == 401
    assert "Log in" in answer.text and "slow" not in answer.text


@pytest.mark.parametrize("address", ADDRESSES.values())
@pytest.mark.parametrize("role", ["VIEWER", "OP"])
def test_a_reader_sees_each_page(client: Callable[..., TestClient], address: str, role: str) -> None:
    answer = get(client(role), address)
    assert answer.status_code in (200, 307), answer.text[:500]
    assert NASTY not in answer.text
    if answer.status_code == 307:
        assert answer.headers["location"].startswith(f"{PREFIX}/")
    else:
        assert "default-src 'none'" in answer.headers["content-security-policy"]


# The pages of errors.
TELLING = {
    "/streams",
    "/streams/slow",
    "/streams/slow/logs",
    f"/operations/slow/{OPERATION}",
    "/savepoints?job=slow",
    "/quality/trips",
    f"/quality/trips/{LEAKED_RUN}",
}


@pytest.mark.parametrize("address", sorted({*ADDRESSES.values(), *TELLING}))
def test_no_page_shows_a_secret_that_was_in_an_error(
    client: Callable[..., TestClient], address: str, leaky: Workspace
) -> None:
    answer = get(client(place=leaky), address)
    assert answer.status_code in (200, 307), answer.text[:500]
    assert found_in(answer.text + str(answer.headers)) == []
    assert address not in TELLING or HIDDEN in answer.text


def test_a_job_has_the_same_colour_in_the_list_and_on_its_page(
    client: Callable[..., TestClient], tmp_path: Path
) -> None:
    place = populated(tmp_path)
    ran(place, "long", batches=[batch(n, utc_now(), ms=25_000) for n in range(10)])
    walker = client(place=place)
    tones = {"long": "warn", "slow": "bad", "ingest": "warn", "broken": "bad", "stopped": "off"}
    rows = get(walker, "/streams").text.split("<tr")
    for job, tone in tones.items():
        page = get(walker, f"/streams/{job}").text
        assert re.findall(r'id="state"[^>]*><span class="badge (\w+)', page) == [tone], job
        (row,) = [row for row in rows if f"/streams/{job}" in row]
        assert re.findall(r'class="badge (\w+)', row)[0] == tone


@pytest.mark.parametrize("address", OF_A_JOB)
def test_a_page_of_a_job_needs_its_dag(client: Callable[..., TestClient], address: str) -> None:
    assert get(client(manager=_NoDags), address).status_code == 403


@pytest.mark.parametrize("address", ["/streams", "/operations", "/savepoints", "/quality"])
def test_lists_leave_out_what_may_not_be_seen(client: Callable[..., TestClient], address: str) -> None:
    answer = get(client(manager=_NoDags), address)
    assert answer.status_code == 200
    assert not re.search(r"slow|trips|ingest", answer.text)
    assert get(client(manager=_NoDags), "/quality/trips").status_code == 404


TABLE_PAGES = [one for path, one in ADDRESSES.items() if "{table}" in path]
OF_ALL = ["/streams", "/operations", "/savepoints", "/quality", "/dag/rescale", "/dag/rescale/run/another"]


@pytest.mark.parametrize("address", [*OF_A_JOB, *TABLE_PAGES])
@pytest.mark.parametrize("mine", ["slow", "ingest"])
def test_who_sees_one_job_sees_no_page_of_another(client: Callable[..., TestClient], address: str, mine: str) -> None:
    """The table `trips` is written by `ingest`."""
    one = client(manager=_of_job(mine))
    if address in TABLE_PAGES:
        assert get(one, address).status_code == (200 if mine == "ingest" else 404)
    elif address.startswith("/dag/rescale/"):
        # The run of a rescale of `slow` leads to it.
        answer = get(one, address)
        assert (answer.status_code == 307) is (mine == "slow") and ("slow" in str(answer.headers)) is (mine == "slow")
    else:
        assert get(one, address).status_code == (403 if mine == "ingest" else 307 if "/dag/" in address else 200)


@pytest.mark.parametrize("mine", ["slow", "ingest"])
def test_who_sees_one_job_reads_the_name_of_no_other(client: Callable[..., TestClient], mine: str) -> None:
    one = client(manager=_of_job(mine))
    own = [address.replace("slow", mine) for address in OF_A_JOB if OPERATION not in address or mine == "slow"]
    names = {"slow", "ingest", "broken", "dead", "stopped", "deleted", "fresh", "torn"} - {mine}
    for address in [*OF_ALL, *own, *(TABLE_PAGES if mine == "ingest" else ())]:
        answer = get(one, address)
        assert answer.status_code in (200, 307), address
        shown = set(re.findall(r"(?:>|/streams/|job_|job=)(\w+)", answer.text + answer.headers.get("location", "")))
        assert shown & names == set(), address
    assert f"/streams/{mine}" in get(one, "/streams").text


def test_who_may_trigger_a_job_is_offered_no_decision_of_the_gate(client: Callable[..., TestClient]) -> None:
    one = client(manager=_of_job("ingest"))
    assert set(re.findall(r"/act/(\w+)", get(one, "/streams/ingest").text)) == {"deploy"}
    assert "You may not trigger" not in get(one, "/act/deploy?job=ingest").text
    # They may read the table, that it is held, and the DAG that would publish it.
    table = get(one, "/quality/trips").text
    assert "versions 4 to 5" in table and "/act/" not in table
    for name in ("accept", "recheck", "anew", "replay"):
        assert "You may not trigger" in get(one, f"/act/{name}?table=trips").text
    assert "You may not trigger" in get(one, "/act/rescale?job=ingest").text


def test_only_who_may_trigger_is_offered_acts(client: Callable[..., TestClient]) -> None:
    assert "/act/rescale?job=slow" in get(client("OP"), "/streams/slow").text
    viewer = client("VIEWER")
    assert "/act/" not in get(viewer, "/streams/slow").text
    assert "/act/" not in get(viewer, "/savepoints?job=slow").text
    assert "/act/" not in get(viewer, "/quality/trips").text
    assert "/act/accept?table=trips" in get(client(), "/quality/trips").text
    viewer = client("VIEWER")
    assert "You may not trigger" in get(viewer, "/act/rescale?job=slow").text


def test_no_address_leads_out_of_the_places_it_names(client: Callable[..., TestClient]) -> None:
    one = client()
    for address in (
        "/streams/nobody", "/streams/..%2F..%2Fetc", "/operations/slow/..%2Fdesired", "/operations/slow/x",
        "/quality/nothing", "/quality/trips/..%2F..", "/quality/trips/nothing", "/static/..%2Fapp.py", "/static/app.py",
        "/static/uplot.LICENSE",
        "/act/nothing?job=slow", "/act/rescale?job=nobody", "/streams/slow/logs?incarnation=..",
        "/operations?job=nobody", "/docs", "/openapi.json", "/quality/trips/...", "/quality/trips/a%5Cb",
        "/operations/slow/-x", "/operations/slow/a%0Ab", "/operations/slow/%C3%A4", "/streams/..%5C..%5Cetc",
        "/streams/slow%00", f"/operations/slow/{'x' * 300}", "/quality/%252e%252e", "/savepoints?job=../slow",
        "/act/accept?table=../trips", "/streams/slow/logs?incarnation=a%00b",
    ):  # fmt: skip
        assert get(one, address).status_code == 404, address


def test_no_link_is_dead(client: Callable[..., TestClient]) -> None:
    one, base = client(), "/airflow/streamwarden"
    todo, seen = ["/streams"], {"/streams"}
    while todo:
        address = todo.pop()
        answer = get(one, address)
        # One job's documents are damaged: its pages say so.
        assert answer.status_code == 200 or ("torn" in address and "streamwarden repair" in answer.text), address
        if answer.headers["content-type"].startswith("text/html"):
            found = re.findall(rf'(?:href|src)="{base}(/[^"]*)"', answer.text)
            new = {html.unescape(link).partition("#")[0] for link in found} - seen
            todo += new
            seen |= new
    # A savepoint among what happened to a job led to a page that does not exist.
    assert "/savepoints?job=slow" in seen and len(seen) > 100


def test_an_unchanged_page_is_not_sent_again(client: Callable[..., TestClient]) -> None:
    one = client()
    first = get(one, "/quality")
    again = one.get("/airflow/streamwarden/quality", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content


def test_the_list_tells_when_the_gate_decided_last(client: Callable[..., TestClient], tmp_path: Path) -> None:
    place = populated(tmp_path)
    decision = Decision(at=utc_now(), verdict=Verdict.PUBLISHED, after=0, version=1, rows=3, seconds=0.5, run=RUN)
    gate_document(place, "slow_table").write(GateRecord(table="slow_table", began=0, decisions=[decision]))
    rows = get(client(place=place), "/streams").text.split("<tr")
    words = {job: next(row for row in rows if f"/streams/{job}" in row) for job in ("slow", "ingest", "stopped")}
    assert "decided<br><time" in words["slow"] and "trips held" in words["ingest"]
    assert "decided" not in words["stopped"] + words["ingest"]


def test_streams_are_sorted_by_trouble(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/streams").text
    names = re.findall(r'<th scope="row"><a href="[^"]*">([^<]*)</a>', text)
    # broken, dead and torn are down; the rest of the order is by what needs a look.
    assert set(names[:3]) == {"broken", "dead", "torn"}
    assert names[-1] == "fresh" and names[-2] == "stopped"
    assert "a&amp;b" not in text


def test_streams_are_filtered(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/streams?q=JOB_CODE").text
    assert "broken" in text and ">slow<" not in text
    assert "No stream fits" in get(client(), "/streams?q=nothing-like-it").text
    trouble = get(client(), "/streams?show=trouble").text
    assert ">broken<" in trouble and ">stopped<" not in trouble


def test_a_folder_that_no_job_can_have_is_none(client: Callable[..., TestClient]) -> None:
    answer = get(client(), f"/streams/{quote(ODD, safe='')}")
    assert answer.status_code == 404 and "<i>" not in answer.text


def test_a_deleted_job_says_so(client: Callable[..., TestClient]) -> None:
    assert "deleted.yaml is gone" in get(client(), "/streams/deleted").text


def test_a_failure_has_its_diagnosis(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/streams/broken").text
    assert "Diagnosis" in text and "correct what the traceback names" in text and "streamwarden deploy broken" in text


def test_a_torn_document_is_named_with_its_remedy(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/streams/torn").text
    assert "DOCUMENT_INVALID" in text and "streamwarden repair torn" in text


def test_a_held_table_shows_rows_and_what_can_be_done(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/quality/trips").text
    assert "versions 4 to 5" in text and "Fares are positive." in text and "gate accept trips" in text
    assert "&lt;script&gt;" in text


def test_quarantined_rows_are_shown_by_reason(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/quality/trips").text
    assert "streamwarden quarantine show trips --rule fares" in text and "a.parquet, row 2" in text
    assert "/act/replay?table=trips&amp;rule=fares" in text and "/airflow/dags/quarantine_replay" in text
    assert "quarantine" not in get(client(), "/quality/zone_windows").text
    act = get(client(), "/act/replay?table=trips&rule=fares&note=why").text
    assert "streamwarden quarantine replay trips --unchanged --rule fares --note why" in act
    assert "&#34;unchanged&#34;: true" in act or '"unchanged": true' in act
    viewer = get(client("VIEWER"), "/quality/trips").text
    assert "a.parquet, row 2" in viewer and "/act/replay" not in viewer


def test_quarantined_rows_that_cannot_be_read_are_an_error_on_the_page(
    client: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise StreamwardenError("TABLE_NOT_FOUND", "trips_quarantine")

    monkeypatch.setattr("streamwarden.airflow.pages.quality_routes.quarantine_of_table", broken)
    answer = get(client(), "/quality/trips")
    assert answer.status_code == 200 and "TABLE_NOT_FOUND" in answer.text and "versions 4 to 5" in answer.text


def test_a_check_leads_to_its_data_docs(client: Callable[..., TestClient]) -> None:
    one = client()
    text = get(one, f"/quality/trips/{RUN}").text
    for kind in ("validations", "expectations"):
        assert f"{PREFIX}/docs/{RUN}/{kind}/trips.html" in text
        answer = get(one, f"/docs/{RUN}/{kind}/trips.html")
        assert answer.text == f"the page {kind}/trips.html"
        policy = answer.headers["content-security-policy"]
        assert "script-src" not in policy and "frame-ancestors 'self'" in policy
    # The first page of the site has all tables, also those that the reader may not see.
    assert get(one, f"/docs/{RUN}/index.html").headers["location"] == f"{PREFIX}/quality"
    assert get(client(manager=_NoDags), f"/docs/{RUN}/validations/trips.html").status_code == 404


@pytest.mark.parametrize(
    "address",
    [
        "/docs/../validations/trips.html",
        "/docs/%2e%2e/validations/trips.html",
        "/docs/..%2f..%2fx/validations/trips.html",
        f"/docs/{RUN}/%2e%2e/trips.html",
        f"/docs/{RUN}/static/trips.html",
        f"/docs/{RUN}/validations/..%2ftrips.html",
        f"/docs/{RUN}/validations/%2e%2e%2f%2e%2e%2fresults.html",
        f"/docs/{RUN}/static/bootstrap.LICENSE",
        f"/docs/{RUN}/static/..%2f__init__.py",
        f"/docs/{RUN}/validations/nobody.html",
        "/docs/x/validations/trips.html",
        "/quality/trips/%2e%2e",
    ],
)
def test_no_other_file_is_served(client: Callable[..., TestClient], address: str) -> None:
    assert get(client(), address).status_code == 404


def test_the_memory_of_the_driver_is_shown_over_time(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/streams/slow").text
    assert "800 MB <small>of the driver" in text and '"name":"memory"' in text


def test_a_slow_job_is_explained(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/streams/slow").text
    assert (
        "no room left" in text
        and "Since" in text
        and "reading, computing and state 75 %" in text
        and "What to do" in text
    )


def test_a_run_leads_to_its_operation(client: Callable[..., TestClient]) -> None:
    answer = get(client(), "/dag/rescale/run/manual__2026")
    assert answer.headers["location"] == f"{PREFIX}/operations/slow/{OPERATION}"
    assert "performs no restore" in get(client(), "/dag/rescale/run/another").text


def test_an_act_shows_values_and_command(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/act/rescale?job=slow&partitions=8&reason=as+advised").text
    assert "streamwarden rescale slow --partitions 8 --reason &#39;as advised&#39;" in text
    assert "/airflow/dags/rescale" in text


def test_what_nobody_expected_is_a_page_without_its_text(
    client: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("streamwarden.airflow.pages.job_routes.log_ends", broken)
    one = client()
    one.raise_server_exceptions = False
    one._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
    answer = get(one, "/streams/slow/logs")
    assert answer.status_code == 500 and "ZeroDivisionError" in answer.text and "secret" not in answer.text


def test_a_place_that_does_not_answer_is_named(
    client: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise StreamwardenError("S3_UNREACHABLE", "the bucket")

    monkeypatch.setattr("streamwarden.airflow.pages.job_routes.list_streams", gone)
    answer = get(client(), "/streams")
    assert answer.status_code == 503 and "S3_UNREACHABLE" in answer.text and "What to do" in answer.text


def test_the_logs_end_is_shown(client: Callable[..., TestClient]) -> None:
    text = get(client(), "/streams/slow/logs").text
    assert "the last line" in text and "console.log" not in text


def test_vendored_files_are_those_of_the_package() -> None:
    folder = Path(pages.__file__).parent / "static"
    lines = [line.split() for line in (folder / "uplot.sha256").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 3
    for digest, name in lines:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_all_scripts_and_styles_are_small() -> None:
    folder = Path(pages.__file__).parent / "static"
    files = [path for path in folder.iterdir() if path.suffix in (".js", ".css")]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < 60_000
    assert not any(re.search(r"(?:src|href|url|import|fetch)\W{1,3}https?:", path.read_text()) for path in files)
