"""Server time of the pages: 100 jobs with a week of batches each, and with thirteen weeks.

Run by ``make bench-pages``. Each length of history has a process of its own, and they are asked by turns: what else the
machine does makes both slower. The documents and the table of batches are generated: a batch a minute, joined by
housekeeping, and the last ones in files of five, as drivers append them. Pages are not kept between the requests; what
was computed from a file is, so the first request after a start takes longer: it is measured apart. Before each
request, half of the jobs complete a batch, and three of their drivers append to the table. CPU is this process's, the
lower quartile of the requests: the work is the same each time, and what is above it is noise. If Playwright and
Chromium are there, the time from the address to the first drawn chart is measured, too.

Options: ``--jobs``, ``--weeks`` (two numbers), ``--requests`` (of each page).
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.report import goal_met, print_machine
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.model.record import utc_now
from streamwarden.model.spec import PROGRESS_TABLE
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import CONTROL
from streamwarden.store.workspace import Workspace
from tests.unit.airflow.pages.made import batch, opened, ran

SERVER_S = 0.3
"""Server time of a page, 95th percentile."""

FIRST_CHART_S = 1.0

GROWTH = 1.25
"""Server time with thirteen weeks of history, relative to one: flat, except noise."""

_ROWS_A_FILE = 5

PAGES = {
    "streams, 1 hour": "/streams",
    "streams, 7 days": "/streams?span=7d",
    "a stream, 1 hour": "/streams/job000",
    "a stream, 7 days": "/streams/job000?span=7d",
    "batches": "/streams/job000/batches",
    "operations": "/operations",
    "savepoints": "/savepoints",
    "quality": "/quality",
}


def main() -> int:
    """Measure; exit with status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Server time of the pages.")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--weeks", type=int, nargs=2, default=[1, 13])
    parser.add_argument("--requests", type=int, default=40)
    given = parser.parse_args()
    print_machine(given.requests)
    # By turns: what else the machine does in a minute makes both slower.
    servers = [ProcessPoolExecutor(1, get_context("spawn")) for _ in given.weeks]
    for server, weeks in zip(servers, given.weeks, strict=True):
        server.submit(_begin, given.jobs, weeks).result()
    found: list[dict[str, tuple[float, float]]] = [{} for _ in servers]
    for name, path in PAGES.items():
        asked = [
            [server.submit(_ask, path, len(found[0]) * given.requests + number).result() for server in servers]
            for number in range(given.requests)
        ]
        for one, times in zip(found, zip(*asked, strict=True), strict=True):
            walls, cpus = zip(*times, strict=True)
            one[name] = (
                sorted(walls)[max(int(0.95 * given.requests + 0.5) - 1, 0)],
                statistics.quantiles(cpus, n=4)[0],
            )
    chart = servers[0].submit(_first_chart).result()
    print(f"{'page':20} {'wall p95':>10} {'cpu':>8}   " + " then ".join(f"{weeks} weeks" for weeks in given.weeks))
    for name in PAGES:
        cells = "   ".join(f"{wall:8.3f} s {cpu:6.3f} s" for wall, cpu in (one[name] for one in found))
        print(f"{name:20} {cells}")
    met = [goal_met(f"server_s[{name}]", found[0][name][0], SERVER_S) for name in PAGES]
    for name in PAGES:
        met.append(goal_met(f"growth[{name}]", found[1][name][1] / found[0][name][1], GROWTH))
    if chart is not None:
        met.append(goal_met("first_chart_s", chart, FIRST_CHART_S))
    return 0 if all(met) else 1


_place: list[tuple[Workspace, Any]] = []
"""The workspace of this process, and the client of its pages."""


def _begin(jobs: int, weeks: int) -> None:
    """Generate so many weeks, and ask for each page once."""
    from fastapi.testclient import TestClient

    folder = Path("var/bench-pages") / str(weeks)
    shutil.rmtree(folder, ignore_errors=True)
    workspace = opened(folder)
    _generate(workspace, jobs, weeks)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    client = TestClient(_client(workspace))
    _place.append((workspace, client))
    for name, path in PAGES.items():
        wall = time.perf_counter()
        client.get(path)
        print(f"  first request of {name}: {time.perf_counter() - wall:.2f} s", flush=True)


def _generate(workspace: Workspace, jobs: int, weeks: int) -> None:
    now = utc_now()
    names = [f"job{number:03d}" for number in range(jobs)]
    for name in names:
        recent = [batch(n, now - timedelta(minutes=49 - n)) for n in range(50)]
        ran(workspace, name, batches=recent)
    table = ProgressTable(workspace)
    table.append(names[0], "first", 1, [batch(0, now - timedelta(weeks=weeks))])
    uri, _ = workspace.delta_rs(PROGRESS_TABLE)
    # The same at any time of the day: until half a day ago, all was joined, as housekeeping does each night.
    half = now.replace(second=0, microsecond=0) - timedelta(minutes=30)
    night = half - timedelta(hours=12)
    for day in range(7 * weeks, 0, -1):
        _append(uri, table.schema, names, night - timedelta(days=day), 24 * 60)
    table.upkeep(timedelta(days=400))
    # Today's, as each hour joins them; and those of half an hour, as drivers append them. The requests append more.
    _append(uri, table.schema, names, night, 12 * 60)
    for begin in range(0, 30, _ROWS_A_FILE):
        _append(uri, table.schema, names, half + timedelta(minutes=begin), _ROWS_A_FILE)
    written = DeltaTable(uri)
    written.create_checkpoint()
    print(f"{jobs} jobs, {weeks} weeks: {len(written.file_uris()):,} files, version {written.version()}", flush=True)


def _append(uri: str, schema: pa.Schema, names: list[str], begin: datetime, minutes: int) -> None:
    """Append a batch a minute of every job, in one file a job."""
    count = len(names) * minutes
    at = np.int64(begin.timestamp() * 1e6) + np.tile(np.arange(minutes, dtype=np.int64) * 60_000_000, len(names))
    noise = np.random.default_rng(minutes).uniform(0.5, 1.5, count)
    values: dict[str, Any] = {
        "job": np.repeat(names, minutes),
        "incarnation": np.full(count, "i0"),
        "at": pa.array(at, pa.timestamp("us", "UTC")),
        "watermark": pa.array(at, pa.timestamp("us", "UTC")),
        "source_unit": np.full(count, "files"),
    }
    columns = []
    for field in schema:
        if field.name in values:
            columns.append(pa.array(values[field.name], field.type))
        elif field.name == "operators":
            one = [
                {
                    "id": 0,
                    "name": "stateStoreSave",
                    "rows": 1000,
                    "bytes": 10**6,
                    "metrics": [("rocksdbFilesCopied", 3)],
                }
            ]
            columns.append(pa.array([one] * count, field.type))
        else:
            columns.append(pa.array(noise * 1000, pa.float64()).cast(field.type, safe=False))
    write_deltalake(uri, pa.Table.from_arrays(columns, schema=schema), mode="append")


def _client(workspace: Workspace) -> Any:
    # Airflow writes its configuration there when it is imported.
    os.environ.setdefault("AIRFLOW_HOME", str(Path("var/bench-pages-airflow").resolve()))
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user

    from streamwarden.airflow.pages.app import build_app
    from streamwarden.airflow.pages.fresh import Fresh
    from streamwarden.airflow.pages.places import workspace as workspace_of

    create_auth_manager()
    app = build_app()
    app.state.fresh = Fresh(0)
    app.dependency_overrides[workspace_of] = lambda: workspace
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ann", role="OP")
    return app


def _ask(path: str, number: int) -> tuple[float, float]:
    """Return the seconds of a request, and those of this process's CPU; requests are numbered."""
    [(workspace, client)] = _place
    _go_on(workspace, number)
    wall, cpu = time.perf_counter(), time.process_time()
    answer = client.get(path)
    spent = time.perf_counter() - wall, time.process_time() - cpu
    assert answer.status_code == 200, answer.text
    return spent


def _go_on(workspace: Workspace, number: int) -> None:
    """Complete a batch of every second job; the next three drivers write their last five to the table."""
    uri, _ = workspace.delta_rs(PROGRESS_TABLE)
    jobs = sorted(workspace.files.folders(CONTROL))
    names = [jobs[(3 * number + one) % len(jobs)] for one in range(min(3, len(jobs)))]
    _append(uri, ProgressTable(workspace).schema, names, utc_now() - timedelta(minutes=_ROWS_A_FILE), _ROWS_A_FILE)
    for job in jobs[number % 2 :: 2]:
        documents = JobDocuments(workspace.storage, job)
        document = documents.progress(documents.incarnations()[-1])
        before = document.read()
        assert before is not None and before.last is not None
        last = before.last.model_copy(update={"batch": before.last.batch + 1, "at": utc_now()})
        document.write(before.model_copy(update={"at": last.at, "last": last, "recent": [*before.recent[1:], last]}))


def _first_chart() -> float | None:
    """Return the seconds from the address of a stream to its first drawn chart; None without a browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        import uvicorn
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    [(workspace, _)] = _place
    server = uvicorn.Server(uvicorn.Config(_client(workspace), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    _await(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            page.goto(f"http://127.0.0.1:{port}/streams/job000?span=7d", wait_until="commit")
            page.locator(".uplot canvas").first.wait_for()
            times.append(time.perf_counter() - begin)
    server.should_exit = True
    thread.join(5)
    return statistics.median(times)


def _await(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
