"""The REST client against a server that answers as an overtaxed Airflow does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from streamwarden.devserver.rest import AirflowClient, AirflowRequestFailed

pytestmark = pytest.mark.unit


class Server(ThreadingHTTPServer):
    """Answers a run's triggering with some statuses in turn, then with 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int] = []
        self.asked: list[dict[str, Any]] = []
        self.dags = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = {name: int(value) for name, (value,) in parse_qs(urlsplit(self.path).query).items()}
        # As Airflow, whatever limit is asked for.
        page = range(self.server.dags)[asked["offset"] :][: min(asked["limit"], 100)]
        self._answer(200, {"dags": [{"dag_id": str(one)} for one in page], "total_entries": self.server.dags})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = 200, {"access_token": "t"}
        if self.path.endswith("/dagRuns"):
            self.server.asked.append(body)
            status = self.server.statuses.pop(0) if self.server.statuses else 200
            answer = {"dag_run_id": body["dag_run_id"]}
        self._answer(status, answer)

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def client(server: Server) -> Iterator[AirflowClient]:
    made = AirflowClient(url=f"http://127.0.0.1:{server.server_port}", user="u", password="p")
    yield made
    made.close()


@pytest.mark.parametrize("statuses", [[500, 503], [500, 409]])
def test_a_server_error_is_tried_again_and_makes_one_run(
    server: Server, client: AirflowClient, statuses: list[int]
) -> None:
    server.statuses = list(statuses)
    run = client.trigger_dag("stop", {"job": "lamp"})
    # 409: the try that was answered with 500 had made the run.
    assert {asked["dag_run_id"] for asked in server.asked} == {run}
    assert len(server.asked) == (3 if statuses == [500, 503] else 2)


def test_what_is_refused_or_stays_broken_is_said(server: Server, client: AirflowClient) -> None:
    server.statuses = [422]
    with pytest.raises(AirflowRequestFailed, match="422"):
        client.trigger_dag("stop")
    assert len(server.asked) == 1
    server.statuses = [500] * 4
    with pytest.raises(AirflowRequestFailed, match="500"):
        client.trigger_dag("stop")
    assert len(server.asked) == 5


@pytest.mark.parametrize("dags", [0, 99, 100, 101, 250])
def test_dags_beyond_the_first_page_are_found(server: Server, client: AirflowClient, dags: int) -> None:
    server.dags = dags
    assert client.dags() == [str(one) for one in range(dags)]
