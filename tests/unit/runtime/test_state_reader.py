"""The process that reads state back: here one that hangs, and one that ends early."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.runtime import state_reader
from streamwarden.runtime.state_reader import SCRATCH, StateAt, read_state
from tests.batches import make_place

pytestmark = pytest.mark.unit

ASKED = {"one": StateAt("checkpoints/lamp/g000001", 7), "two": StateAt("checkpoints/lamp/g000002", 8, 3)}


def started_as(command: list[str], monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    real = subprocess.Popen
    started: list[subprocess.Popen[str]] = []

    def start(_: list[str], **kwargs: Any) -> subprocess.Popen[str]:
        started.append(real(command, **kwargs))
        return started[-1]

    monkeypatch.setattr(state_reader.subprocess, "Popen", start)
    return started


def test_what_is_asked_names_checkpoint_batch_and_partitions() -> None:
    assert [str(state) for state in ASKED.values()] == ["checkpoints/lamp/g000001@7", "checkpoints/lamp/g000002@8/3"]


def test_one_that_never_ends_is_an_error_of_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_reader, "_TIMEOUT_S", 0.2)
    started, workspace = started_as(["sleep", "60"], monkeypatch), make_place(tmp_path)
    unpacked = workspace.scratch_dir(SCRATCH, "killed")
    unpacked.mkdir(parents=True)
    with pytest.raises(StreamwardenError, match=r"SAVEPOINT_VERIFY_FAILED(?s:.)*not finished"):
        read_state(workspace, ASKED, code="SAVEPOINT_VERIFY_FAILED")
    assert started[0].wait(5) == -9 and not unpacked.exists()


@pytest.mark.parametrize("code", [0, 1])
def test_an_answer_too_few_is_an_error_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    said = """echo '{"name": "one", "rows": {"0": 12}}'; echo what it was >&2; exit"""
    started_as(["sh", "-c", f"{said} {code}"], monkeypatch)
    with pytest.raises(StreamwardenError, match=rf"RESCALE_FAILED(?s:.)*ended with {code}: what it was"):
        read_state(make_place(tmp_path), ASKED, code="RESCALE_FAILED")
