"""A standby driver, played by another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.runtime import standby as module
from streamwarden.runtime.processes import kill, process_of
from streamwarden.runtime.standby import standby
from streamwarden.store.workspace import Workspace, open_workspace
from tests.unit.operations.test_spec_diff import spec

pytestmark = pytest.mark.unit

READY = """
import sys
for line in sys.stdin:
    print('{"ready": true}', flush=True)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


@pytest.fixture
def job() -> JobSpec:
    return spec()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    made: list[subprocess.Popen[str]] = []

    def start(*_: object, **streams: object) -> subprocess.Popen[str]:
        made.append(subprocess.Popen([sys.executable, "-c", READY], text=True, **streams))  # type: ignore[call-overload]
        return made[-1]

    monkeypatch.setattr(module, "driver_process", start)
    return made


def test_one_that_died_before_a_command_is_what_is_told(
    workspace: Workspace, job: JobSpec, started: list[subprocess.Popen[str]]
) -> None:
    with (
        pytest.raises(StreamwardenError, match=r"RESCALE_FAILED.*ended with -9"),
        standby(workspace, job, state=False) as spare,
    ):
        spare.await_ready()
        kill(process_of(started[0].pid))
        started[0].wait()
        spare.replay("checkpoints/job/g000002", timeout=30, say=lambda: None)
