"""What is left of a driver that was killed, when its successor is launched."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.errors import StreamwardenError
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import utc_now
from streamwarden.model.status import Desired, Exit, Launch, Lease
from streamwarden.runtime import standby as standby_module
from streamwarden.runtime.launchers import local
from streamwarden.runtime.launchers.launch import launch_driver
from streamwarden.runtime.processes import current_process, process_of
from streamwarden.runtime.standby import standby
from streamwarden.store.documents import Document, JobDocuments
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


class Away:
    """A store that takes a launch document once: before the driver's process starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches = 0
        write = Document.write

        def refuse(document: Document[Any], value: Any) -> Any:
            self.launches += isinstance(value, Launch)
            if isinstance(value, Launch) and self.launches == 2:
                raise StreamwardenError("S3_THROTTLED", "slow down")
            return write(document, value)

        monkeypatch.setattr(Document, "write", refuse)


def the_exit(workspace: Workspace) -> Exit:
    documents = JobDocuments(workspace.storage, spec().name)
    [incarnation] = documents.incarnations()
    found = documents.exit(incarnation).read()
    assert found is not None and found.error is not None
    return found


def test_a_driver_whose_process_cannot_be_written_down_is_killed(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []

    def start(*_: object, **streams: Any) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(["sleep", "600"], text=True, **streams))
        return started[0]

    monkeypatch.setattr(local, "driver_process", start)
    Away(monkeypatch)
    with pytest.raises(StreamwardenError, match="S3_THROTTLED"):
        launch(workspace)
    assert started[0].wait(timeout=10) == -signal.SIGKILL
    assert the_exit(workspace).error.code == "S3_THROTTLED"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EACCES, "ACCESS_REFUSED"), (errno.ENOSPC, "DISK_FULL"), (errno.EMFILE, "DRIVER_DID_NOT_START")],
)
def test_a_machine_that_refuses_to_start_a_driver_is_the_drivers_exit(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "logs")

    monkeypatch.setattr(local, "driver_process", refuse)
    with pytest.raises(OSError, match="logs"):
        launch(workspace)
    error = the_exit(workspace).error
    assert error is not None and error.code == code and "logs" in error.what
