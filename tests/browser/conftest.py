"""A real Airflow with the pages, a real job, and a real browser.

The place is made once: a job takes trips, is checked by the gate, rescaled, and its driver killed. That takes minutes;
``STREAMWARDEN_BROWSER_ROOT`` names a folder to keep it in, and to take it from.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow.parquet as pq
import pytest

from streamwarden.devserver.standalone import Standalone
from streamwarden.model.savepoint import Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.rescale import rescale
from streamwarden.quality.data_docs.files import docs_key
from streamwarden.quality.data_docs.site import write_data_docs
from streamwarden.quality.documents import read_run
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_state
from streamwarden.savepoints.take import take
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision.observe import observe

JOB = "ingest_trips"
"""A folder of documents alone: no YAML file can have such a name."""
DELETED = "old_ingest"

_CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    pytest.importorskip("playwright")
    if _CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    kept = os.environ.get("STREAMWARDEN_BROWSER_ROOT")
    root = Path(kept) if kept else tmp_path_factory.mktemp("pages")
    workspace = open_workspace("demo", root=root)
    if not (root / "made").exists():
        _make(workspace)
        (root / "made").touch()
    hold = gate_state(workspace, "trips").record.hold
    assert hold is not None
    if not (root / docs_key(hold.run)).exists():
        storage = LocalStorage(root)
        write_data_docs(storage, read_run(storage, QUALITY, hold.run))
    return workspace


def _make(workspace: Workspace) -> None:
    from nyc_taxi.demo.trips import land_overcharged, write_week
    from nyc_taxi.trips.cards import add_card_ids
    from nyc_taxi.trips.landing import LandingFolder

    week, landing = workspace.root / "week.parquet", workspace.root / "landing"
    write_week(None, week)
    trips = add_card_ids(pq.read_table(week))
    folder = LandingFolder(landing)
    deploy_job(workspace, JOB, by="ann", note="first deploy")
    part = len(trips) // 5
    for number in range(5):
        name = f"part-{number}.parquet"
        folder.prepare(name, trips.slice(number * part, part))
        folder.land(name)
        _await(lambda want=(number + 1) * part: _rows(workspace) >= want)
    gate = Gate(workspace)
    gate.decide("trips")
    _, rows = land_overcharged(week, landing)
    _await(lambda: _rows(workspace) >= 5 * part + rows)
    gate.decide("trips")
    assert gate_state(workspace, "trips").record.hold is not None
    gate.keep_results()
    take(workspace, JOB, origin=Origin.MANUAL, by="ann", note="before the rescale")
    rescale(workspace, JOB, memory="800m", by="ann", reason="more room")
    process = observe(workspace, JOB).heartbeat
    assert process is not None
    os.kill(process.process.pid, signal.SIGKILL)
    control = workspace.root / "control"
    shutil.copytree(control / JOB, control / DELETED)


def _rows(workspace: Workspace) -> int:
    totals = JobDocuments(workspace.storage, JOB).current_totals()
    return totals.rows_in if totals else 0


def _await(condition: Callable[[], bool], timeout: float = 600) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(1)


@pytest.fixture(scope="session")
def airflow(place: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    env = {
        "STREAMWARDEN_PROFILE": "demo",
        "STREAMWARDEN_CONFIG": str(place.config),
        "STREAMWARDEN_ROOT": str(place.root),
        # The place stays as it is.
        "STREAMWARDEN_HOUSEKEEPING_SCHEDULE": "",
        "STREAMWARDEN_WATCH_SCHEDULE": "",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,vera:viewer,otto:op",
    }
    with Standalone(home=tmp_path_factory.mktemp("airflow"), port=0, env=env, parallelism=2) as one:
        one.start(timeout=900)
        one.wait_for_dags([f"job_{JOB}", "rescale"], timeout=300)
        yield one


@pytest.fixture(scope="session")
def prefixed(airflow: Standalone) -> Iterator[str]:
    """Start a second API server of the same Airflow, whose base URL has a path; return that URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/air"
    env = airflow.environment() | {"AIRFLOW__API__PORT": str(port), "AIRFLOW__API__BASE_URL": url}
    with (airflow.home / "logs" / "prefixed.log").open("wb") as log:
        command = [sys.executable, "-m", "airflow", "api-server"]
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        _await(lambda: _answers(f"{url}/api/v2/monitor/health"))
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def _answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url, trust_env=False, timeout=30).status_code == 200
    return False


@dataclass
class Visitor:
    """A browser of one user.

    Parameters
    ----------
    page
        Playwright's page.
    url
        Airflow's.
    requests
        Addresses of all requests.
    errors
        What the browser's console reported as an error.
    """

    page: Any
    url: str
    requests: list[str]
    errors: list[str]

    def go(self, path: str) -> None:
        """Open a page of ours by itself."""
        self.page.goto(f"{self.url}/streamwarden{path}", timeout=120_000)

    def inside(self, path: str) -> Any:
        """Open a page of ours inside Airflow's UI; return its frame."""
        prefix = urlsplit(self.url).path
        self.page.goto(f"{self.url}/plugin/streams{prefix}/streamwarden{path}", timeout=120_000)
        frame = self.page.frame_locator("iframe").first
        frame.locator("main h1").wait_for(timeout=120_000)
        return frame


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without its sandbox: tests may run as root in a container.
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(airflow: Standalone, chromium: Any) -> Iterator[Callable[..., Visitor]]:
    contexts = []

    def made(user: str | None = "otto", *, width: int = 1280, dark: bool = False, url: str = airflow.url) -> Visitor:
        scheme = "dark" if dark else "light"
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        if user is not None:
            passwords = json.loads((airflow.home / "simple_auth_manager_passwords.json.generated").read_text())
            body = {"username": user, "password": passwords[user]}
            answer = context.request.post(f"{airflow.url}/auth/token", data=body, timeout=60_000)
            context.add_cookies([{"name": "_token", "value": answer.json()["access_token"], "url": url}])
        page = context.new_page()
        page.set_default_timeout(60_000)
        visitor = Visitor(page, url, [], [])
        page.on("request", lambda request: visitor.requests.append(request.url))
        page.on("console", lambda said: visitor.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: visitor.errors.append(str(error)))
        return visitor

    yield made
    for context in contexts:
        context.close()
