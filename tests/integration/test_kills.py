"""Drivers killed at arbitrary moments: what they wrote equals a batch computation over the same trips.

Real trips where they are at hand (STREAMWARDEN_TEST_DATA, or shared/data beside the checkout's parent), generated ones
otherwise. A twentieth of them arrive late, within the watermark.
"""

from __future__ import annotations

import os
import random
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from streamwarden.control import operations
from streamwarden.control.checkpoint import CheckpointReader
from streamwarden.control.documents import Supervision
from streamwarden.control.processes import kill
from streamwarden.control.supervision import Action, Phase, decide, observe, restart
from streamwarden.demo.verify import verify_outputs
from streamwarden.trips.generator import GeneratorOptions, generate
from streamwarden.trips.replay import Replay, ReplayOptions
from streamwarden.trips.tlc import read_tlc
from tests.integration.conftest import BY, REPOSITORY, Place

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

JOBS = ("ingest_trips", "zone_windows", "card_sessions")
START = datetime(2023, 3, 6)
KILLS = 5


def _trips(days: int) -> pa.Table:
    folder = Path(os.environ.get("STREAMWARDEN_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    real = folder / "green_tripdata_2023-03.parquet"
    end = START + timedelta(days=days)
    if real.exists():
        return read_tlc([real], start=START, end=end)
    return generate(GeneratorOptions(start=START, end=end))


class Supervisor(threading.Thread):
    """Does for a few jobs what their DAGs' supervise tasks do."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.done = threading.Event()
        self.gave_up: list[str] = []

    def run(self) -> None:
        while not self.done.wait(0.3):
            for job in JOBS:
                seen = observe(self.place.workspace, job)
                if seen.phase is Phase.NOT_DEPLOYED:
                    continue
                verdict = decide(seen, self.place.documents(job).supervision.read() or Supervision())
                if verdict.action is Action.RESTART:
                    restart(self.place.workspace, seen, by=BY)
                elif verdict.action is Action.FAIL:
                    self.gave_up.append(f"{job}: {verdict.error}")
                    return


def test_killed_drivers_leave_tables_equal_to_batch(place: Place) -> None:
    seed = int(os.environ.get("STREAMWARDEN_TEST_SEED", "20230306"))
    chance = random.Random(seed)
    for job in JOBS:
        place.job(job, restarts={"max": 50, "backoff": "100ms", "backoff_max": "1s"})
    # Some batches more than the default would make of it, so that there is more to be killed in.
    place.job("ingest_trips", source={"kind": "files", "path": "landing", "max_files_per_batch": 6})
    place.profile(
        jobs={
            "interval": "1s",
            "partitions": 2,
            "resources": {"cores": 1, "memory": "768m"},
            "options": {"card_sessions": {"close_after": "5s"}},
        }
    )
    options = ReplayOptions(speed=3_000, late_share=0.1, late_max=timedelta(minutes=90), file_every=timedelta(hours=1))
    replay = Replay(_trips(days=2), place.workspace.root / "landing", options)
    (place.workspace.root / "landing").mkdir(parents=True)
    (place.workspace.root / "landing" / "notes.csv").write_text("no,trips\n")
    for job in JOBS:
        operations.deploy(place.workspace, job, by=BY)
    supervisor = Supervisor(place)
    supervisor.start()
    feeding = threading.Thread(target=replay.run)
    feeding.start()
    killed = []
    try:
        for number in range(KILLS * len(JOBS)):
            job = JOBS[number % len(JOBS)]
            # Anywhere from the JVM's start to the middle of some batch.
            time.sleep(chance.uniform(0.5, 9.0))
            seen = observe(place.workspace, job)
            process = seen.heartbeat.process if seen.heartbeat else seen.launch.process if seen.launch else None
            if process is not None and seen.phase.alive and kill(process):
                killed.append((job, seen.phase))
        feeding.join()
        _settle(place, supervisor)
    finally:
        supervisor.done.set()
        supervisor.join()
    assert len(killed) >= KILLS * len(JOBS) * 0.8, killed
    for job in JOBS:
        assert operations.stop(place.workspace, job, by=BY).phase is Phase.STOPPED
        reference = place.documents(job).checkpoint.read()
        assert reference is not None
        checkpoint = CheckpointReader(place.workspace.storage, reference.path)
        assert checkpoint.last_offset() == checkpoint.last_commit()
    for found in verify_outputs(place.workspace):
        assert found.equal, f"seed {seed}: {found}"


def _settle(place: Place, supervisor: Supervisor) -> None:
    """Wait until nothing changes any more: every table's version rests while the drivers run."""
    from deltalake import DeltaTable

    def versions() -> list[int]:
        tables = ("trips", "trips_quarantine", "zone_windows", "card_sessions")
        return [DeltaTable(str(place.workspace.table(table))).version() for table in tables]

    deadline = time.monotonic() + 400
    rested, last = 0.0, []
    while rested < 25:
        assert not supervisor.gave_up, supervisor.gave_up
        assert time.monotonic() < deadline, [observe(place.workspace, job).phase for job in JOBS]
        time.sleep(1)
        running = all(observe(place.workspace, job).phase is Phase.RUNNING for job in JOBS)
        now = versions() if running else []
        rested = rested + 1 if running and now == last else 0
        last = now
