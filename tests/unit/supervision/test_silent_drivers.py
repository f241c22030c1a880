"""Operations and drivers that can't be heard: after an outage a healthy one looks as silent as a dead one, at first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import DriverState, Heartbeat, Launch
from streamwarden.operations.rescale_rollback import RescaleBack
from streamwarden.operations.rescale_verify import RescaleVerdict
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control, silence
from streamwarden.supervision.observe import Observation
from streamwarden.supervision.silence import Silence
from tests.batches import made_desired, make_place

pytestmark = pytest.mark.unit

JOB = "lamp"
ELSEWHERE = ProcessRef(host="another-machine", boot="b", pid=1, started=0)
"""Of which nobody here can tell whether it lives."""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(silence, "_SECOND_LOOK", timedelta(seconds=0.7))
    made = make_place(tmp_path, heartbeat="300ms", lease="2s")
    sinks = [{"table": JOB, "mode": "append"}]
    source = {"kind": "files", "path": "landing"}
    spec = JobSpec.model_validate({"name": JOB, "module": "m", "source": source, "sinks": sinks})
    documents, now = JobDocuments(made.storage, JOB), utc_now()
    documents.desired.write(made_desired(spec))
    documents.launch("i1").write(Launch(incarnation="i1", at=now, by="test", reason="", digest="", process=ELSEWHERE))
    return made


def speak(workspace: Workspace, *, ago: float = 0.0) -> None:
    at = utc_now() - timedelta(seconds=ago)
    JobDocuments(workspace.storage, JOB).heartbeat("i1").write(
        Heartbeat(
            incarnation="i1",
            at=at,
            started_at=at,
            state=DriverState.RUNNING,
            process=ELSEWHERE,
            generation=1,
            batch=7,
        )
    )


@contextmanager
def heard_again(workspace: Workspace) -> Iterator[None]:
    """Let the driver be heard a moment later, as after an outage that was longer than its lease."""
    speak(workspace, ago=60)
    later = threading.Timer(0.4, speak, (workspace,))
    later.start()
    try:
        yield
    finally:
        later.join()


def awaited(workspace: Workspace, timeout: float = 20) -> str:
    return driver_control.await_health(workspace, JOB, generation=1, base=6, timeout=timeout)


def work(workspace: Workspace, **fields: Any) -> Any:
    return SimpleNamespace(_workspace=workspace, _job=JOB, _silence=Silence(), **fields)


def seen_live(workspace: Workspace) -> Observation:
    return RescaleVerdict._see_it_live(work(workspace), time.monotonic() + 20)


@pytest.mark.parametrize("timeout", [20, 0], ids=["in time", "as the time is over"])
def test_health_is_not_judged_by_the_first_look_after_an_outage(workspace: Workspace, timeout: float) -> None:
    with heard_again(workspace):
        assert awaited(workspace, timeout) == "batch 7 committed"


def test_catching_up_is_not_judged_by_the_first_look_after_an_outage(workspace: Workspace) -> None:
    with heard_again(workspace):
        assert seen_live(workspace).phase.alive


@pytest.mark.parametrize("look", [awaited, seen_live])
def test_one_that_stays_silent_is(workspace: Workspace, look: Callable[[Workspace], Any]) -> None:
    speak(workspace, ago=60)
    with pytest.raises(StreamwardenError, match="DRIVER_SILENT"):
        look(workspace)


def look_for(workspace: Workspace, seconds: float) -> None:
    """Look at the driver that is to run on while its rescale is prepared, as between its steps."""
    preparing = work(workspace, _runs_on=True, _looked=0.0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        RescaleBack._see_it_run_on(preparing)
        time.sleep(0.05)


def test_one_that_freezes_while_its_rescale_is_prepared_ends_that(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamwarden.operations.rescale_rollback._LOOK_S", 0.0)
    speak(workspace, ago=60)
    look_for(workspace, 0.3)
    with pytest.raises(StreamwardenError, match=r"RESCALE_NOT_HEALTHY.*ended meanwhile: no heartbeat"):
        look_for(workspace, 20)
    # Three leases are 6 s.
    speak(workspace, ago=3)
    look_for(workspace, 1.5)
