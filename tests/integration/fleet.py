"""The project's four jobs over trips that stream in, supervised as their DAGs do it."""

from __future__ import annotations

import os
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from nyc_taxi.demo.verify import verify_outputs
from nyc_taxi.trips.generator import GeneratorOptions, generate
from nyc_taxi.trips.replay import Replay, ReplayOptions
from nyc_taxi.trips.tlc import read_tlc

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.record import utc_now
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import restart
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.integration.conftest import BY, REPOSITORY, Place

JOBS = ("ingest_trips", "zone_windows", "card_sessions", "card_velocity")
TABLES = ("trips", "trips_quarantine", "zone_windows", "card_sessions", "card_alerts", "card_velocity")
# More than any test needs: trips land until it says that it has seen enough.
START, END = datetime(2023, 3, 6), datetime(2023, 3, 31)


def some_trips() -> pa.Table:
    """Real trips where they are at hand (STREAMWARDEN_TEST_DATA, or shared/data beside the checkout), or generated."""
    folder = Path(os.environ.get("STREAMWARDEN_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    real = folder / "green_tripdata_2023-03.parquet"
    if real.exists():
        return read_tlc([real], start=START, end=END)
    return generate(GeneratorOptions(start=START, end=END))


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
                try:
                    self._look(job)
                except StreamwardenError as error:
                    if not error.retryable:
                        self.gave_up.append(f"{job}: {error}")

    def _look(self, job: str) -> None:
        seen = observe(self.place.workspace, job)
        if seen.phase is Phase.NOT_DEPLOYED:
            return
        verdict = decide(seen, self.place.documents(job).supervision.read() or Supervision())
        if verdict.action is Action.RESTART:
            restart(self.place.workspace, seen, by=BY)
        elif verdict.action is Action.FAIL:
            self.gave_up.append(f"{job}: {verdict.error}")


class Fleet:
    """Deployed, fed until it settles, and supervised; used as a context, after which the supervisor is at rest."""

    def __init__(self, place: Place, *, speed: float, profile: dict[str, Any] | None = None) -> None:
        self.place = place
        for job in JOBS:
            place.job(job, restarts={"max": 200, "backoff": "100ms", "backoff_max": "1s"})
        # Bursts and windows that a month of trips on some hundreds of cards has.
        place.job("card_velocity", options={"trips": 3, "within": "15m", "window": "20m", "every": "5m"})
        # Some batches more than the default would make of it, so that there is more to be killed in.
        place.job("ingest_trips", source={"kind": "files", "path": "landing", "max_files_per_batch": 6})
        place.profile(
            **{
                "jobs": {
                    "interval": "1s",
                    "partitions": 2,
                    "resources": {"cores": 1, "memory": "768m"},
                    "options": {"card_sessions": {"close_after": "5s"}},
                },
                **(profile or {}),
            }
        )
        landing = place.workspace.root / "landing"
        landing.mkdir(parents=True)
        (landing / "notes.csv").write_text("no,trips\n")
        late = timedelta(minutes=90)
        options = ReplayOptions(speed=speed, late_share=0.1, late_max=late, file_every=timedelta(hours=1))
        self.replay = Replay(some_trips(), landing, options)
        self.supervisor = Supervisor(place)
        self._enough = threading.Event()
        self._feeding = threading.Thread(target=self.replay.run, kwargs={"stop": self._enough}, daemon=True)

    def __enter__(self) -> Fleet:
        for job in JOBS:
            deploy_job(self.place.workspace, job, by=BY)
        self.supervisor.start()
        self._feeding.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.done.set()
        self.supervisor.join()

    def await_tables(self, timeout: float = 240) -> None:
        """Wait until every job has committed a batch."""
        for job in JOBS:
            self.place.wait(job, lambda seen: bool(seen.heartbeat and seen.heartbeat.batch is not None), job, timeout)

    def settle(self) -> None:
        """Let no more trips land, and wait until every job has read its source to the end and no table changes."""
        assert self._feeding.is_alive(), "there were too few trips: some of what was done was done without any"
        self._enough.set()
        self._feeding.join()
        deadline = time.monotonic() + 400
        rested, last, since = 0, [], utc_now()
        while rested < 12:
            assert not self.supervisor.gave_up, self.supervisor.gave_up
            seen = [observe(self.place.workspace, job) for job in JOBS]
            assert time.monotonic() < deadline, [(one.job, one.phase, one.reason) for one in seen]
            time.sleep(1)
            files = self.place.workspace.files
            now = [DeltaLog(files, table).latest for table in TABLES]
            if now != last:
                last, since = now, utc_now()
            # After the newest change of a table, which for the next job is input.
            rested = rested + 1 if all(_drained(one, since) for one in seen) else 0

    def stop_and_compare(self, words: str) -> None:
        """Stop all jobs cleanly, and compare what they wrote with a batch computation over the same trips."""
        workspace = self.place.workspace
        for job in JOBS:
            assert driver_control.stop(workspace, job, by=BY).phase is Phase.STOPPED
            reference = self.place.documents(job).checkpoint.read()
            assert reference is not None
            checkpoint = CheckpointReader(workspace.storage, reference.path)
            assert checkpoint.last_offset() == checkpoint.last_commit()
        for found in verify_outputs(workspace):
            assert found.equal, f"{words}: {found}"


def _drained(seen: Observation, since: datetime) -> bool:
    """Tell whether a driver found nothing left to read at some moment after another."""
    heartbeat, done = seen.heartbeat, seen.progress.last if seen.progress else None
    if seen.phase is not Phase.RUNNING or heartbeat is None:
        return False
    if heartbeat.idle and heartbeat.idle_at is not None and heartbeat.idle_at > since:
        return True
    # A job with timers is never idle: it runs batches without input.
    return done is not None and done.at > since and done.source is not None and done.source.pending == 0
