"""Lineage of `gate watch`, a real process: killed, started again, and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http_receiver import wait_until
from tests.lineage import LineageReceiver, check, kinds
from tests.unit.quality.gate_place import Place

pytestmark = pytest.mark.integration


@contextmanager
def gate(place: Any, receiver: LineageReceiver) -> Iterator[subprocess.Popen[bytes]]:
    folders = ["--root", str(place.workspace.root), "--expectations", str(place.suites)]
    command = [sys.executable, "-m", "streamwarden.cli", "gate", "watch", *folders]
    environment = {**os.environ, "OPENLINEAGE_URL": receiver.endpoint}
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.ci
def test_a_killed_gate_ends_no_run_and_the_next_one_is_another_run(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with LineageReceiver() as receiver:
        with gate(place, receiver) as process:
            wait_until(lambda: receiver.of("gate"), 120)
            process.kill()
            process.wait()
        place.write(1)
        with gate(place, receiver) as process:
            wait_until(lambda: "COMPLETE" in kinds(receiver.of("gate.windows")), 120)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    runs: dict[str, list[str]] = {}
    for event in receiver.of("gate"):
        runs.setdefault(event["run"]["runId"], []).append(event["eventType"])
    killed, stopped = runs
    assert runs == {killed: ["START"], stopped: ["START", "COMPLETE"]}
    parents = {event["run"]["facets"]["parent"]["run"]["runId"] for event in receiver.of("gate.windows")}
    assert parents == {stopped}
    for event in receiver.events:
        check(event)
