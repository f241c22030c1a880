"""The processes that submit drivers, as children of the process that started them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamwarden.runtime.launchers import submission
from tests.batches import make_place

pytestmark = pytest.mark.unit


def test_a_process_that_lives_long_keeps_none_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[str]] = []

    def start(*_: object, **streams: Any) -> subprocess.Popen[str]:
        streams.pop("module")
        made.append(subprocess.Popen(["sleep", "0.2"], text=True, **streams))
        return made[-1]

    monkeypatch.setattr(submission, "driver_process", start)
    monkeypatch.setattr(submission, "_started", [])
    workspace = make_place(tmp_path)
    submission.start_submission(workspace, "lamp", "i1")
    made[0].wait()
    submission.start_submission(workspace, "lamp", "i2")
    assert submission._started == [made[1]]
    submission.await_submissions()
    assert submission._started == [] and made[1].poll() == 0
