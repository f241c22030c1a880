"""What is left of a driver that was killed, when its successor is launched."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import utc_now
from streamwarden.model.status import Desired, Lease
from streamwarden.runtime import standby as standby_module
from streamwarden.runtime.launchers import local
from streamwarden.runtime.launchers.launch import launch_driver
from streamwarden.runtime.processes import current_process, process_of
from streamwarden.runtime.standby import standby
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.batches import made_desired
from tests.unit.operations.test_spec_diff import spec

pytestmark = pytest.mark.unit

HERE = current_process()
GONE = HERE.model_copy(update={"started": HERE.started - 1000})


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen[bytes]]:
    """A JVM that does not end by itself."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        process.send_signal(signal.SIGSTOP)
        yield process
        process.kill()


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **streams: Any) -> subprocess.Popen[str]:
        ready = ["sh", "-c", "while read -r line; do echo '{}'; done"]
        return subprocess.Popen(ready, text=True, **streams)

    monkeypatch.setattr(local, "driver_process", start)
    monkeypatch.setattr(standby_module, "driver_process", start)


def desired() -> Desired:
    found = spec()
    return made_desired(found)


def lease(workspace: Workspace, process: ProcessRef, jvm: ProcessRef | None, *, lasts: float = 60) -> None:
    now = utc_now()
    held = Lease(
        job=spec().name,
        incarnation="a1",
        process=process,
        jvm=jvm,
        epoch=1,
        acquired_at=now,
        expires_at=now + timedelta(seconds=lasts),
    )
    JobDocuments(workspace.storage, held.job).lease.write(held)


def launch(workspace: Workspace) -> None:
    launch_driver(workspace, desired(), by="test", reason="for the test")


def take_over(workspace: Workspace) -> None:
    with standby(workspace, spec(), state=False) as spare:
        assert spare.run(desired(), by="test", reason="for the test") is not None


@pytest.mark.parametrize("lasts", [60, -60], ids=["lease lasts", "lease ran out"])
@pytest.mark.parametrize("start", [launch, take_over])
@pytest.mark.usefixtures("drivers")
def test_a_dead_drivers_jvm_is_ended_before_the_next_driver_starts(
    workspace: Workspace, jvm: subprocess.Popen[bytes], start: Callable[[Workspace], None], lasts: float
) -> None:
    lease(workspace, GONE, process_of(jvm.pid), lasts=lasts)
    start(workspace)
    assert jvm.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.parametrize("process", [HERE, HERE.model_copy(update={"host": "elsewhere"})], ids=["lives", "elsewhere"])
@pytest.mark.usefixtures("drivers")
def test_one_whose_driver_may_live_is_left_alone(
    workspace: Workspace, jvm: subprocess.Popen[bytes], process: ProcessRef
) -> None:
    lease(workspace, process, process_of(jvm.pid))
    launch(workspace)
    with pytest.raises(subprocess.TimeoutExpired):
        jvm.wait(timeout=0.3)


@pytest.mark.usefixtures("drivers")
def test_another_process_by_its_number_is_left_alone(workspace: Workspace, jvm: subprocess.Popen[bytes]) -> None:
    real = process_of(jvm.pid)
    lease(workspace, GONE, real.model_copy(update={"started": real.started - 1}))
    launch(workspace)
    lease(workspace, GONE, None)
    launch(workspace)
    with pytest.raises(subprocess.TimeoutExpired):
        jvm.wait(timeout=0.3)
