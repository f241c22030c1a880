"""docker/keep.py: a component is started again when it ends and ended when it hangs; drivers go on.

With real processes and a real HTTP server; a component is a shell that stands in for Airflow's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
HUNG = 1.0
# A worker of the component's session, a driver in one of its own; both are noted, and the component last.
COMPONENT = """
sleep 300 & echo $! >> workers
setsid sleep 300 & echo $! >> drivers
trap 'echo orderly > end; exit 0' TERM
echo $$ >> components
while :; do sleep 0.05; done
"""


class Health:
    """A server that answers as Airflow's ``monitor/health`` does."""

    def __init__(self) -> None:
        self.scheduler = self.database = "healthy"
        self.answers = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = {"metadatabase": {"status": outer.database}, "scheduler": {"status": outer.scheduler}}
                self.send_response(200 if outer.answers else 503)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def health() -> Iterator[Health]:
    server = Health()
    yield server
    server.close()


def pids(folder: Path, kind: str) -> list[int]:
    path = folder / kind
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def lives(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@contextlib.contextmanager
def kept(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-S", str(ROOT / "docker" / "keep.py"), *words, "--", "sh", "-c", COMPONENT]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, env={**os.environ, "STREAMWARDEN_KEEP_HUNG": str(HUNG)}
        )
    try:
        until(lambda: len(pids(folder, "components")) == 1, "the component has not started")
        # Until `setsid` has run, it still is of the component's group.
        until(lambda: all(os.getsid(pid) == pid for pid in pids(folder, "drivers")), "the driver has no session")
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        process.kill()
        for kind in ("components", "workers", "drivers"):
            for pid in pids(folder, kind):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def assert_begun_anew(folder: Path) -> None:
    until(lambda: len(pids(folder, "components")) == 2, "the component was not started again")
    assert not lives(pids(folder, "components")[0])
    assert not lives(pids(folder, "workers")[0])
    assert lives(pids(folder, "drivers")[0])


def test_what_hangs_is_ended_and_started_again(tmp_path: Path, health: Health) -> None:
    with kept(tmp_path, health.url, "scheduler.status=healthy"):
        time.sleep(2 * HUNG)
        assert len(pids(tmp_path, "components")) == 1
        # A stopped process hears no SIGTERM.
        os.kill(pids(tmp_path, "components")[0], signal.SIGSTOP)
        health.scheduler = "unhealthy"
        assert_begun_anew(tmp_path)
        health.scheduler = "healthy"
        assert "is alive, but unhealthy for" in (tmp_path / "log").read_text()


def test_what_ends_is_started_again(tmp_path: Path, health: Health) -> None:
    with kept(tmp_path, health.url, "scheduler.status=healthy"):
        os.kill(pids(tmp_path, "components")[0], signal.SIGKILL)
        assert_begun_anew(tmp_path)
        assert "ended with -9" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("unknown", ["no answer", "no database"])
def test_where_nothing_is_known_nothing_is_ended(unknown: str, tmp_path: Path, health: Health) -> None:
    with kept(tmp_path, health.url, "scheduler.status=healthy"):
        health.scheduler = "unhealthy"
        if unknown == "no answer":
            health.answers = False
        else:
            health.database = "unhealthy"
        time.sleep(4 * HUNG)
        assert len(pids(tmp_path, "components")) == 1
        assert lives(pids(tmp_path, "components")[0])


def test_a_short_break_in_being_unwell_counts_anew(tmp_path: Path, health: Health) -> None:
    with kept(tmp_path, health.url, "scheduler.status=healthy"):
        for _ in range(5):
            health.scheduler = "unhealthy"
            time.sleep(0.5 * HUNG)
            health.scheduler = "healthy"
            time.sleep(0.5 * HUNG)
        assert len(pids(tmp_path, "components")) == 1


def test_an_api_server_that_does_not_answer_is_ended(tmp_path: Path, health: Health) -> None:
    with kept(tmp_path, health.url):
        health.database = "unhealthy"
        time.sleep(2 * HUNG)
        assert len(pids(tmp_path, "components")) == 1
        health.answers = False
        assert_begun_anew(tmp_path)


def test_a_stop_is_handed_on_and_waited_for(tmp_path: Path, health: Health) -> None:
    with kept(tmp_path, health.url, "scheduler.status=healthy") as process:
        process.terminate()
        assert process.wait(timeout=10) == 0
        assert (tmp_path / "end").read_text() == "orderly\n"
        assert not lives(pids(tmp_path, "components")[0])
        assert not lives(pids(tmp_path, "workers")[0])
        assert lives(pids(tmp_path, "drivers")[0])
