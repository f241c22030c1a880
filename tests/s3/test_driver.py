"""One driver whose documents, checkpoint and table are on S3: a real process, a real server."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamwarden.control import operations
from streamwarden.control.documents import Supervision
from streamwarden.control.supervision import Action, Observation, Phase, decide, observe, restart
from streamwarden.demo.verify import read_table
from tests.integration.conftest import BY, REPOSITORY, Place
from tests.s3.conftest import Place as Bucket
from tests.s3.server import S3Server

pytestmark = [pytest.mark.s3, pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def place(tmp_path: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(s3.location.endpoint))
    made = Place(tmp_path)
    made.profile(
        s3={"bucket": s3.location.bucket, "prefix": s3.location.prefix},
        # So that the batch fails within a test's patience, and the driver's own tries are what saves it.
        spark={"spark.hadoop.fs.s3a.retry.limit": "1"},
    )
    yield made
    made.kill_all()
    for log in tmp_path.glob("root/logs/*/*/driver.log"):
        sys.stdout.write(f"--- {log}\n{log.read_text()[-6000:]}\n")


def reached(batch: int) -> Callable[[Observation], bool]:
    def condition(seen: Observation) -> bool:
        return seen.heartbeat is not None and seen.heartbeat.batch is not None and seen.heartbeat.batch >= batch

    return condition


def log_of(place: Place, seen: Observation) -> str:
    assert seen.incarnation is not None
    return (place.workspace.log_dir("numbers", seen.incarnation) / "driver.log").read_text()


def files(place: Place) -> list[str]:
    return sorted(row["file"] for row in place.rows("numbers"))


def test_a_driver_on_s3_survives_its_own_death_and_the_servers(place: Place, server: S3Server) -> None:
    place.numbers(failures={"tolerable_consecutive": 6, "backoff": "1s"})
    place.land("0.txt")
    operations.deploy(place.workspace, "numbers", by=BY)
    seen = place.wait("numbers", reached(0), "batch 0")
    assert files(place) == ["0.txt"]

    # Killed, it is started again by whoever supervises it, and goes on.
    assert seen.heartbeat is not None
    os.kill(seen.heartbeat.process.pid, signal.SIGKILL)
    ended = place.wait("numbers", lambda now: not now.phase.alive, "the end")
    supervision = place.documents("numbers").supervision.read() or Supervision()
    assert decide(ended, supervision).action is Action.RESTART
    place.land("1.txt")
    assert restart(place.workspace, ended, by=BY) is not None
    place.wait("numbers", reached(1), "batch 1")

    # The server is away while a batch is due, for so long that it fails, and comes back.
    before = observe(place.workspace, "numbers")
    server.kill()
    place.land("2.txt")
    deadline = time.monotonic() + 60
    while "try 1 failed" not in log_of(place, before) and time.monotonic() < deadline:
        time.sleep(0.2)
    server.start()
    place.land("3.txt")
    seen = place.wait("numbers", reached(3), "batch 3")
    assert seen.incarnation == before.incarnation, "the driver lives on"
    assert "try 1 failed" in log_of(place, before)
    assert files(place) == [f"{number}.txt" for number in range(4)]

    ended = operations.stop(place.workspace, "numbers", by=BY)
    assert ended.phase is Phase.STOPPED
    # Nothing but logs and the landing folder is on this machine's disk.
    assert sorted(path.name for path in place.workspace.root.iterdir()) == ["landing", "logs"]
    assert read_table(place.workspace, "numbers").num_rows == 4
