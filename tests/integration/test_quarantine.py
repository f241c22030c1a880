"""Row rules in a real driver: rows are quarantined, corrected and replayed, with kills in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamwarden.operations.deploy import deploy_job
from streamwarden.supervision.observe import observe
from tests.integration.conftest import BY, REPOSITORY, Place

pytestmark = pytest.mark.integration

KILLED_BEFORE_SENDING = """
import os, signal
from streamwarden.cli.app import app
from streamwarden.operations import quarantine_replay
quarantine_replay._send = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
app()
"""


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def command(place: Place, *words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    given = {"STREAMWARDEN_CONFIG": str(place.config), "STREAMWARDEN_PROFILE": "test"}
    start = ["-c", code] if code else ["-m", "streamwarden.cli"]
    return subprocess.run(
        [sys.executable, *start, "quarantine", *words],
        env={**os.environ, **given},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def shown(place: Place) -> dict[str, dict[str, Any]]:
    found = command(place, "show", "amounts")
    assert found.returncode == 0, found.stderr
    return {line["row"].get("id") or "?": line for line in map(json.loads, found.stdout.splitlines())}


def edited(place: Place, *rows: dict[str, Any]) -> list[str]:
    path = place.config / "rows.jsonl"
    path.write_bytes(lines(*rows))
    return ["replay", "amounts", "--rows", str(path), "--note", "the sign was wrong", "--by", "ann"]


def until(place: Place, condition: Callable[[], bool], what: str) -> None:
    place.wait("amounts", lambda _: condition(), what)


@pytest.mark.long
def test_rows_are_corrected_and_replayed_once_each(place: Place) -> None:
    rule = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "amount", "min_value": 0},
        "severity": "critical",
        "description": "No amount is negative.",
        "meta": {"id": "amounts.positive", "rows": "quarantine"},
    }
    suites = place.config.parent / "expectations"
    suites.mkdir()
    suite = {"name": "amounts", "meta": {"keys": ["id"]}, "expectations": [rule]}
    (suites / "amounts.json").write_text(json.dumps(suite))
    place.job(
        "amounts",
        module="tests.integration.jobs.amounts",
        source={"kind": "files", "path": "landing"},
        sinks=[
            {"table": "amounts", "mode": "append"},
            {"table": "amounts_quarantine", "output": "refused", "mode": "append"},
        ],
    )
    place.land(
        "a.jsonl",
        lines({"id": "a", "amount": 1}, {"id": "b", "amount": -2}, {"id": "c", "amount": -3}, {"amount": 4}),
    )

    def quarantined() -> list[dict[str, Any]]:
        return place.rows("amounts_quarantine")

    def amounts() -> dict[str, int]:
        rows = place.rows("amounts")
        assert len({row["id"] for row in rows}) == len(rows), "a row is there twice"
        return {row["id"]: row["amount"] for row in rows}

    deploy_job(place.workspace, "amounts", by=BY)
    place.wait("amounts", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 0), "batch 0")
    assert len(quarantined()) == 3
    assert amounts() == {"a": 1}
    found = shown(place)
    assert {name: line["reasons"] for name, line in found.items()} == {
        "b": ["amounts.positive: No amount is negative."],
        "c": ["amounts.positive: No amount is negative."],
        "?": ["NO_ID"],
    }

    # Killed between the record and the file: the same command completes it. b is corrected, c wrongly so.
    words = edited(
        place,
        {"id": found["b"]["id"], "row": {"id": "b", "amount": 2}},
        {"id": found["c"]["id"], "row": {"id": "c", "amount": -30}},
        {"id": found["?"]["id"], "row": {"id": "d", "amount": 4}},
    )
    assert command(place, *words, code=KILLED_BEFORE_SENDING).returncode == -signal.SIGKILL
    # The driver is killed, too, and meets the replay's file at its next start.
    seen = observe(place.workspace, "amounts")
    assert seen.heartbeat is not None
    os.kill(seen.heartbeat.process.pid, signal.SIGKILL)
    done = command(place, *words)
    assert done.returncode == 0, done.stderr
    deploy_job(place.workspace, "amounts", by=BY)
    until(place, lambda: len(quarantined()) == 4, "the row that fails again")
    assert amounts() == {"a": 1, "b": 2, "d": 4}
    counted = command(place, "list", "--json")
    assert counted.returncode == 1
    assert json.loads(counted.stdout) == [
        {"table": "amounts_quarantine", "rule": "NO_ID", "open": 0, "replayed": 1, "failed_again": 0},
        {"table": "amounts_quarantine", "rule": "amounts.positive", "open": 0, "replayed": 1, "failed_again": 1},
    ]
    (again,) = shown(place).values()
    assert (again["id"], again["attempts"], again["row"]["amount"]) == (found["c"]["id"], 1, -30)

    assert command(place, *edited(place, {"id": again["id"], "row": {"id": "c", "amount": 3}})).returncode == 0
    # The result is that of a batch over the corrected rows.
    until(place, lambda: amounts() == {"a": 1, "b": 2, "c": 3, "d": 4}, "all rows")
    assert command(place, "list").returncode == 0 and shown(place) == {}
    documents = place.documents("amounts")
    until(place, lambda: bool((totals := documents.current_totals()) and totals.rows_out == 4), "the totals")
    totals = documents.current_totals()
    assert totals is not None and totals.rows_quarantined == 4
    twice = command(place, *edited(place, {"id": again["id"], "row": {"id": "c", "amount": 5}}))
    assert twice.returncode == 2 and "QUARANTINE_REPLAYED" in twice.stderr
    files = sorted(path.name for path in Path(place.workspace.root / "landing").iterdir())
    assert len(files) == 3 and all(name.startswith("replay-") for name in files[1:])
