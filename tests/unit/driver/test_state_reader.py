"""Where the process that reads state back puts what it unpacks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from streamwarden.driver import state_reader, state_rows
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


def test_a_path_with_odd_characters_is_read_by_a_link_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "my root 100%" / "checkpoints" / "counts"
    checkpoint.mkdir(parents=True)
    # As in a driver, and in the process that reads state.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "my root 100%"))
    with state_rows.plain_path(str(checkpoint)) as path:
        assert quote(path) == path and Path(path).resolve() == checkpoint
    assert not Path(path).exists() and list(checkpoint.parent.parent.iterdir()) == [checkpoint.parent]
    monkeypatch.setattr(state_rows.os, "access", lambda *_: False)
    with pytest.raises(OSError, match="no folder found for a link"), state_rows.plain_path(str(checkpoint)):
        pass


def test_why_a_state_could_not_be_read_is_told_with_the_code_of_a_known_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["SdkClientException: Unable to execute HTTP request: x.s3.amazonaws.com", "something else"])

    def fails(*_: Any) -> Any:
        raise RuntimeError(next(answers))

    session = SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None), stop=lambda: None)
    monkeypatch.setattr(state_reader, "build_session", lambda *_, **__: session)
    monkeypatch.setattr(state_reader, "_read", fails)
    state_reader._answer(make_place(tmp_path), tmp_path, ["one=c@1", "two=c@1"])
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["code"] for one in told] == ["S3_UNREACHABLE", None]
    assert "Unable to execute" in told[0]["error"]


def test_no_answer_is_no_word_on_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> Any:
        raise Py4JNetworkError("Answer from Java side is empty")

    session = SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None), stop=lambda: None)
    monkeypatch.setattr(state_reader, "build_session", lambda *_, **__: session)
    monkeypatch.setattr(state_reader, "_read", gone)
    # Of a process that ends so nobody says that a savepoint is damaged.
    with pytest.raises(Py4JNetworkError):
        state_reader._answer(make_place(tmp_path), tmp_path, ["one=c@1"])
