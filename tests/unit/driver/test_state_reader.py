"""Where the process that reads state back puts what it unpacks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamwarden.driver import state_reader
from tests.batches import make_place

pytestmark = pytest.mark.unit


def test_it_works_on_the_disk_that_was_found_to_have_room_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = make_place(tmp_path)
    left = workspace.scratch / "_state_reader" / "killed"
    left.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", "/tmp")
    given: dict[str, Any] = {}

    def build(*_: Any, **rest: Any) -> Any:
        (given["own"],) = (path for path in workspace.scratch.glob("*/*") if path.is_dir())
        given.update(rest, tmp=os.environ["TMPDIR"])
        context = SimpleNamespace(setLogLevel=lambda _: None)
        return SimpleNamespace(sparkContext=context, stop=lambda: None)

    monkeypatch.setattr(state_reader, "build_session", build)
    monkeypatch.setattr(state_reader, "_read", lambda *_: {"rows": {"0": 12}})
    words = ["--profile", "test", "--config", str(workspace.config), "--root", str(workspace.root), "one=c@1"]
    monkeypatch.setattr(sys, "argv", ["state_reader", *words])
    assert state_reader.main() == 0
    assert json.loads(capsys.readouterr().out) == {"name": "one", "rows": {"0": 12}}
    own = given["own"]
    assert own != left and given["tmp"] == str(own) and f"-Djava.io.tmpdir={own}" in given["java_options"]
    assert not own.exists() and not left.exists()
