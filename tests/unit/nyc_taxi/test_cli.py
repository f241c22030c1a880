"""The command that lands trips: what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nyc_taxi import cli
from typer.testing import CliRunner

from streamwarden.cli.app import app

pytestmark = pytest.mark.unit

DAY = ["--start", "2023-03-06", "--end", "2023-03-07", "--speed", "max"]


def replay(root: Path, *arguments: str) -> list[str]:
    command = ["replay", "generator", "--root", str(root), *DAY, *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return result.stderr.splitlines() + result.stdout.splitlines()


def test_a_replay_without_a_terminal_says_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = replay(tmp_path / "now and then")
    assert first.startswith("replay: 2023-03-06 00:15, 0 of 2,") and " trips have landed in 0 of " in first
    assert last.startswith("replay: all 2,")

    monkeypatch.setattr(cli, "_LINE_S", 0.0)
    lines = replay(tmp_path / "each file")
    files = int(lines[-1].split()[-2])
    assert [int(line.split()[-4]) for line in lines[:-1]] == list(range(files + 1))


def test_json_is_one_document_beside_those_lines(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["replay", "generator", "--root", str(tmp_path), *DAY, "--json"])
    assert json.loads(result.stdout)["done"] is True
    assert result.stderr.startswith("replay: 2023-03-06 00:15, 0 of ")
