"""What the control documents of an idle job cost on S3: requests by its driver, and by its supervisor."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from streamwarden.driver import heartbeat
from streamwarden.driver.logs import RecordContext
from streamwarden.driver.pipeline import query as query_module
from streamwarden.driver.pipeline.query import RunningQuery
from streamwarden.driver.runner import Driver
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.status import DriverState, Launch
from streamwarden.model.supervision import Supervision
from streamwarden.runtime.processes import current_process
from streamwarden.storage import Entry, S3Location, Storage
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.driver_control import request_stop
from streamwarden.supervision.observe import Phase, observe
from tests.unit.savepoints import test_catalog
from tests.unit.supervision.test_supervision import JOB, desired

pytestmark = pytest.mark.unit

DAY_S = 86_400
SAMPLE_S = 600
QUIET_POLL_S = 5.0
"""Of the supervise trigger, for a job that runs normally."""


class Counting(Storage):
    """Counts the requests that each call is on S3, where no race is lost."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.sent: Counter[str] = Counter()

    @override
    def read(self, key: str) -> Entry | None:
        self.sent["GET"] += 1
        return self.inner.read(key)

    @override
    def write(self, key: str, data: bytes) -> str:
        self.sent["PUT"] += 1
        return self.inner.write(key, data)

    @override
    def create(self, key: str, data: bytes) -> str:
        self.sent["PUT"] += 1
        return self.inner.create(key, data)

    @override
    def replace(self, key: str, data: bytes, etag: str) -> str:
        self.sent["PUT"] += 1
        return self.inner.replace(key, data, etag)

    @override
    def delete(self, key: str) -> None:
        self.sent["DELETE"] += 1
        self.inner.delete(key)

    @override
    def list(self, prefix: str) -> list[str]:
        self.sent["LIST"] += 1
        return self.inner.list(prefix)


class Clock:
    """The time of a driver's heartbeat thread, which passes only while it waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[tuple[float, Any]] = []
        self.end = self.now + SAMPLE_S

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        # A wait never ends early, and a request takes a moment.
        self.now += seconds + 0.001
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()
        return self.now >= self.end

    def is_set(self) -> bool:
        return False


@pytest.fixture
def storage(tmp_path: Path) -> Counting:
    return Counting(test_catalog.opened(tmp_path).storage)


@pytest.fixture
def workspace(storage: Counting, tmp_path: Path) -> Workspace:
    opened = test_catalog.opened(tmp_path / "s3")
    return replace(opened, storage=storage, s3=S3Location("bucket"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(heartbeat, "time", made)
    return made


@pytest.fixture
def driver(workspace: Workspace, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Driver:
    documents, process = JobDocuments(workspace.storage, JOB), current_process()
    documents.desired.write(desired())
    documents.launch("i1").write(
        Launch(incarnation="i1", at=utc_now(), by="test", reason="", digest="", process=process)
    )
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    made = Driver(workspace, JOB, "i1", RecordContext(JOB, "i1"))
    made._heart.lease.acquire()
    monkeypatch.setattr(made._heart, "_ended", clock)
    return made


def test_an_idle_job_costs_no_listing(driver: Driver, workspace: Workspace, storage: Counting) -> None:
    storage.sent.clear()
    driver._heart._beat()
    a_day = {name: number * DAY_S // SAMPLE_S for name, number in storage.sent.items()}
    # The stop request every 2 s; lease and heartbeat every 2 s.
    assert set(a_day) == {"GET", "PUT"}
    assert a_day["GET"] <= 43_500 and a_day["PUT"] <= 87_000

    driver._heart.say(DriverState.RUNNING, "batches every trigger interval")
    # What the gate holds is asked every 30 s: one more GET for a table.
    observe(workspace, JOB)
    storage.sent.clear()
    seen, memory = observe(workspace, JOB), JobDocuments(workspace.storage, JOB).supervision.read()
    JobDocuments(workspace.storage, JOB).health.read()
    assert seen.phase is Phase.RUNNING and decide(seen, memory or Supervision()).action is Action.WAIT
    assert storage.sent == {"GET": 10}, f"every {QUIET_POLL_S} s: 172,800 a day"


@pytest.mark.parametrize("on_s3", [True, False])
def test_a_stop_takes_effect_within_two_seconds(
    driver: Driver, workspace: Workspace, clock: Clock, monkeypatch: pytest.MonkeyPatch, on_s3: bool
) -> None:
    if not on_s3:
        monkeypatch.setattr(driver._heart, "_workspace", replace(workspace, s3=None))
    asked_at, stopped_at = clock.now + 11.3, []
    clock.events = [(asked_at, lambda: request_stop(workspace, JOB, by="test"))]
    monkeypatch.setattr(
        driver._heart, "request_stop", lambda _: (driver._heart.stop.set(), stopped_at.append(clock.now))
    )
    driver._heart._beat()
    assert len(stopped_at) == 1 and stopped_at[0] - asked_at <= (2.01 if on_s3 else 0.51)


@pytest.mark.parametrize("heartbeat_s", [0.7, 2, 3])
def test_a_store_that_is_away_is_not_asked_at_once_again(
    driver: Driver, workspace: Workspace, storage: Counting, monkeypatch: pytest.MonkeyPatch, heartbeat_s: float
) -> None:
    beats_every = workspace.profile.model_copy(update={"heartbeat": timedelta(seconds=heartbeat_s)})
    monkeypatch.setattr(driver._heart, "_workspace", replace(workspace, profile=beats_every))
    asked = []

    def away(_: str) -> None:
        asked.append(1)
        raise StreamwardenError("S3_UNREACHABLE", "refused")

    monkeypatch.setattr(driver._documents, "stop", away)
    driver._heart._beat()
    assert SAMPLE_S / 2 - 2 <= len(asked) <= SAMPLE_S / 2 + 2


@pytest.mark.parametrize("heartbeat_s", [0.7, 2, 3])
def test_a_heartbeat_comes_in_time_however_often_the_stop_is_read(
    driver: Driver, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, heartbeat_s: float
) -> None:
    beats_every = workspace.profile.model_copy(update={"heartbeat": timedelta(seconds=heartbeat_s)})
    monkeypatch.setattr(driver._heart, "_workspace", replace(workspace, profile=beats_every))
    beats: list[int] = []
    monkeypatch.setattr(driver._heart, "_write", lambda: beats.append(1))
    monkeypatch.setattr(driver._heart.lease, "renew", lambda: None)
    driver._heart._beat()
    assert len(beats) >= 0.99 * SAMPLE_S / heartbeat_s


def test_the_first_to_ask_is_named_and_a_damaged_request_replaced(workspace: Workspace) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    workspace.storage.write(documents.stop("i1").key, b"")
    for name in ("ann", "ben"):
        documents.request_stop("i1", by=name, reason="r")
    asked = documents.stop("i1").read()
    assert asked is not None and (asked.by, asked.reason) == ("ann", "r")


def test_a_stop_lists_a_checkpoint_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now, listed, writes_until = 0.0, [], 60.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def last_commit() -> int:
        listed.append(now)
        # A large state takes 20 s to commit.
        return 7 if now >= writes_until + 20 else 6

    class Writer:
        @property
        def in_flight(self) -> int | None:
            return 7 if 1 <= now < writes_until else None

    monkeypatch.setattr(query_module, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    query = object.__new__(RunningQuery)
    query._query = SimpleNamespace(isActive=True, lastProgress=SimpleNamespace(batchId=7))  # type: ignore[assignment]
    query._writer = Writer()  # type: ignore[assignment]
    query._checkpoint = SimpleNamespace(last_offset=lambda: 7, last_commit=last_commit)  # type: ignore[assignment]
    query._wait_until_between()
    assert len(listed) < 70 and not any(1 <= at < writes_until for at in listed)
    assert writes_until + 20 <= listed[-1] < writes_until + 20.6
    assert sum(writes_until <= at < writes_until + 0.1 for at in listed) >= 4, "a commit that follows is seen at once"
