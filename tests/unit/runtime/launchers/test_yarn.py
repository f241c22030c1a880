"""The launcher of YARN, against a server that answers as Hadoop 3.5 does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.status import Launch
from streamwarden.runtime.launchers import yarn
from streamwarden.runtime.launchers.interface import StartState
from streamwarden.runtime.launchers.yarn import YarnLauncher
from tests.batches import make_place

pytestmark = pytest.mark.unit

INCARNATION = "20260308T115900000z1a2b"
TAG = INCARNATION.lower()
APPLICATION = "application_1772000000000_0007"
CONTAINER = "container_1772000000000_0007_01_000001"


class Manager:
    """A ResourceManager, and the NodeManager of its one container."""

    def __init__(self) -> None:
        self.application: dict[str, Any] | None = None
        self.outputs: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.killed: list[Any] = []
        self.status = 200
        self.redirect: str | None = None
        manager = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
                manager.asked.append((path, query))
                if manager.redirect is not None:
                    self.send_response(307)
                    self.send_header("Location", manager.redirect + self.path)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                elif path == "/ws/v1/cluster/info":
                    self.answer({"clusterInfo": {"state": "STARTED", "haState": "ACTIVE"}})
                elif path == "/ws/v1/cluster/apps":
                    ours = manager.application is not None and query["applicationTags"] == [TAG]
                    self.answer({"apps": {"app": [manager.application]} if ours else None})
                elif path.startswith(f"/ws/v1/node/containerlogs/{CONTAINER}/"):
                    text = manager.outputs.get(path.rsplit("/", 1)[1])
                    if text is None:
                        self.answer({}, status=404)
                    else:
                        self.answer(text[int(query["size"][0]) :], kind="text/plain")
                else:
                    self.answer({}, status=404)

            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                manager.killed.append((urlsplit(self.path).path, body, parse_qs(urlsplit(self.path).query)))
                assert manager.application is not None
                manager.application |= {"state": "KILLED", "finalStatus": "KILLED"}
                self.answer({"state": "RUNNING"}, status=202)

            def answer(self, value: Any, *, status: int = 200, kind: str = "application/json") -> None:
                body = (value if isinstance(value, str) else json.dumps(value)).encode()
                self.send_response(status if manager.status == 200 else manager.status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.node = f"127.0.0.1:{self._server.server_port}"
        self.address = f"http://{self.node}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def has(self, state: str, **fields: Any) -> None:
        self.application = {
            "id": APPLICATION,
            "state": state,
            "finalStatus": "UNDEFINED",
            "diagnostics": "",
            "startedTime": 1772000001000,
            "launchTime": 0,
            "finishedTime": 0,
            "applicationTags": f"streamwarden,{TAG}",
            **fields,
        }

    def runs(self) -> None:
        self.has(
            "RUNNING",
            launchTime=1772000002000,
            amHostHttpAddress=self.node,
            amContainerLogs=f"{self.address}/node/containerlogs/{CONTAINER}/me",
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    made = Manager()
    yield made
    made.close()


def launcher(folder: Path, *addresses: str) -> YarnLauncher:
    return YarnLauncher(make_place(folder, launcher="yarn", master="yarn", yarn={"resource_managers": list(addresses)}))


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(1772000000 + seconds, UTC)


def test_one_that_yarn_does_not_know_is_unknown(tmp_path: Path, manager: Manager) -> None:
    assert launcher(tmp_path, manager.address).find("lamp", INCARNATION).state is StartState.UNKNOWN
    assert manager.asked == [("/ws/v1/cluster/apps", {"applicationTags": [TAG]})]


def test_without_a_container_it_waits_for_the_reason_that_yarn_gives(tmp_path: Path, manager: Manager) -> None:
    words = "[Sun Mar 08 11:59:01 +0000 2026] Application is added to the scheduler and is not yet activated. No room."
    manager.has("ACCEPTED", diagnostics=words)
    found = launcher(tmp_path, manager.address).find("lamp", INCARNATION)
    assert (found.state, found.since) == (StartState.WAITING, at(1))
    assert "not yet activated. No room." in found.reason and APPLICATION in found.reason and "Mar" not in found.reason


@pytest.mark.parametrize("state", ["ACCEPTED", "RUNNING"])
def test_with_a_container_it_is_started(tmp_path: Path, manager: Manager, state: str) -> None:
    # YARN calls it accepted until it has a SparkContext, for which it may wait for a lease.
    manager.runs()
    assert manager.application is not None
    manager.application["state"] = state
    found = launcher(tmp_path, manager.address).find("lamp", INCARNATION)
    assert (found.state, found.since) == (StartState.STARTED, at(2))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Application application_1 failed 1 times due to AM Container exited with  exitCode: 137\nFailing.", None),
        ("AM Container for appattempt_1 exited with  exitCode: 3\n", "OUT_OF_MEMORY"),
        ("AM Container for appattempt_1 exited with  exitCode: -104\n", "OUT_OF_MEMORY"),
        ("Container [pid=1] is running 9B beyond the 'PHYSICAL' memory limit. Current usage", "OUT_OF_MEMORY"),
    ],
)
def test_its_end_has_yarns_words(tmp_path: Path, manager: Manager, words: str, code: str | None) -> None:
    manager.has("FAILED", finalStatus="FAILED", launchTime=1772000002000, finishedTime=1772000009000, diagnostics=words)
    found = launcher(tmp_path, manager.address).find("lamp", INCARNATION)
    assert (found.state, found.since) == (StartState.ENDED, at(9))
    assert words.splitlines()[0] in found.reason
    assert (found.error.code if found.error else None) == code


def test_no_answer_is_unknown_and_refuses_a_start(tmp_path: Path, manager: Manager) -> None:
    manager.status = 503
    asked = launcher(tmp_path, manager.address, "http://127.0.0.1:9")
    found = asked.find("lamp", INCARNATION)
    assert found.state is StartState.UNKNOWN and "503" in found.reason and "127.0.0.1:9" in found.reason
    assert asked.kill("lamp", INCARNATION) is False and asked.logs("lamp", INCARNATION, 5) is None
    with pytest.raises(StreamwardenError) as refused:
        asked.start("lamp", Launch(incarnation=INCARNATION, at=utc_now(), by="me", reason="", digest=""))
    assert refused.value.code == "YARN_UNREACHABLE" and refused.value.retryable


def test_any_of_several_managers_answers(tmp_path: Path, manager: Manager) -> None:
    manager.runs()
    assert (
        launcher(tmp_path, "http://127.0.0.1:9", manager.address).find("lamp", INCARNATION).state is StartState.STARTED
    )
    standby = Manager()
    try:
        standby.redirect = manager.address
        assert launcher(tmp_path, standby.address).find("lamp", INCARNATION).state is StartState.STARTED
    finally:
        standby.close()


def test_a_kill_is_asked_of_yarn(tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    asked = launcher(tmp_path, manager.address)
    assert asked.kill("lamp", INCARNATION) is False
    manager.runs()
    assert asked.kill("lamp", INCARNATION) is True
    path = f"/ws/v1/cluster/apps/{APPLICATION}/state"
    assert manager.killed == [(path, {"state": "KILLED"}, {"user.name": ["ada"]})]
    assert asked.kill("lamp", INCARNATION) is False and len(manager.killed) == 1


def test_logs_are_the_ends_of_the_containers_output(tmp_path: Path, manager: Manager) -> None:
    manager.runs()
    manager.outputs = {
        "stdout": "Container: x\nLogType:stdout\nLogContents:\na\nb\nc\nEnd of LogType:stdout.This log file belongs"
    }
    assert launcher(tmp_path, manager.address).logs("lamp", INCARNATION, 2) == "--- stdout\nb\nc\n"


def test_a_start_is_a_process_of_its_own(tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(yarn, "start_submission", lambda *given: started.append(given[1:]))
    launch = Launch(incarnation=INCARNATION, at=utc_now(), by="me", reason="", digest="")
    launcher(tmp_path, manager.address).start("lamp", launch)
    assert started == [("lamp", INCARNATION)]
