"""One job on our driver, as a user would run it: a profile, a YAML, and ``deploy``."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import yaml
from deltalake import DeltaTable

from benchmarks.keyed_job import await_spare, timed
from benchmarks.peers import data
from benchmarks.peers.check import compared
from benchmarks.report import REPOSITORY
from benchmarks.rescale import in_words, seconds_of_steps
from streamwarden.model.status import Heartbeat
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.rescale import rescale
from streamwarden.runtime import processes, spares
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation, Phase, observe

JOBS = {
    "windows": "zone_windows",
    "statistics": "zone_running_stats",
    "sessions": "card_sessions",
    "velocity": "card_velocity",
}
# Large outputs: a batch of a million rows takes some seconds, and its state changes fit into memory.
FILES = {"sessions": 4, "velocity": 4}
BY = "benchmark"
_IDLE_S = 8


class OurJob:
    """A job over a table of trips in a folder, with two cores and two state partitions.

    Parameters
    ----------
    spares
        Warm spares. Without kills, none: it would take a core for half a minute of the measurement.
    """

    def __init__(self, job: str, folder: Path, *, spares: int = 0) -> None:
        self.job, self.name = job, JOBS[job]
        config = folder / "config"
        (config / "jobs").mkdir(parents=True)
        (config / "profiles").mkdir()
        spec = yaml.safe_load((REPOSITORY / "config" / "jobs" / f"{self.name}.yaml").read_text())
        if job in FILES:
            spec["source"]["max_files_per_batch"] = FILES[job]
        pace = {"interval": "100ms", "partitions": 2, "resources": {"cores": 2, "memory": "3g"}}
        if "watermark" in spec:
            pace["watermark"] = "15m"
        (config / "jobs" / f"{self.name}.yaml").write_text(yaml.safe_dump({**spec, **pace_of(spec, pace)}))
        profile = {"name": "peers", "root": str(folder / "root"), "master": "local[{cores}]", "spares": spares}
        (config / "profiles" / "peers.yaml").write_text(yaml.safe_dump(profile))
        self.workspace: Workspace = open_workspace("peers", config=config)
        self.table = Path(self.workspace.table("trips"))
        self._newest = self._rescaled_at = 0.0

    def run(self, rows: pa.Table, act: Callable[[OurJob], None] | None = None) -> dict[str, float]:
        """Run the job over the rows; return seconds and peak memory from when all are there.

        A quarter comes before, file by file: what the start costs is not part of it.

        Parameters
        ----------
        act
            Called in a thread when half of the rows are done.
        """
        before = rows.num_rows // 4
        first = data.write_parts(rows.slice(0, before), self.table)
        rest = data.write_parts(rows.slice(before), self.table)
        data.commit(self.table, first[:1])
        deploy_job(self.workspace, self.name, by=BY)
        supervisor = self._supervise()
        try:
            self._await(min(data.PART, before))
            for one in first[1:]:
                data.commit(self.table, [one])
                time.sleep(2)
            self._await(before)
            if act is not None:
                # A job that has run for a while has a spare.
                await_spare(self.workspace)
            else:
                time.sleep(3)
            began = time.time()
            data.commit(self.table, rest)
            if act is not None:
                self._await(rows.num_rows // 2)
                acting = threading.Thread(target=act, args=(self,))
                acting.start()
                peak = self._await(rows.num_rows)
                ended = self._last_batch()
                acting.join()
            else:
                peak = self._await(rows.num_rows)
                ended = self._last_batch()
            # A rescale that lasts longer than the input is part of it.
            ended = max(ended, self._rescaled_at)
            return {"seconds": ended - began, "rows": rows.num_rows - before, "memory_gb": peak / 2**30}
        finally:
            supervisor.terminate()
            supervisor.wait()
            driver_control.stop(self.workspace, self.name, by=BY)
            for spare in spares.living(self.workspace):
                processes.kill(spare.process)

    def kill(self) -> None:
        """Kill the driver, Python and JVM."""
        heartbeat = observe(self.workspace, self.name).heartbeat
        assert heartbeat is not None
        processes.kill(heartbeat.process)

    def rescale(self, partitions: int) -> None:
        """Rescale offline: online, a job that uses all cores is slowed down for longer than it would stop."""
        done, took = timed(lambda: rescale(self.workspace, self.name, partitions=partitions, mode="offline", by=BY))
        self._rescaled_at = time.time()
        print(
            f"rescaled in {took:.1f} s, down for {done.plan.downtime_s} s: {in_words(seconds_of_steps(done))}",
            flush=True,
        )

    def check(self, rows: pa.Table) -> str:
        """Compare the output table with the batch computation."""
        if self.job == "velocity":
            return self._check_alerts(rows)
        columns = {
            "windows": "epoch_ms(window_start) AS start_ms, zone_id AS zone, trips,"
            " CAST(revenue * 100 AS BIGINT) AS cents",
            "statistics": "zone_id AS zone, trips, CAST(revenue * 100 AS BIGINT) AS cents,"
            " epoch_ms(last_activity) AS last_ms",
            "sessions": "card_id AS card, epoch_ms(session_start) AS start_ms, epoch_ms(session_end) AS end_ms, trips,"
            " CAST(total_amount * 100 AS BIGINT) AS cents",
        }[self.job]
        with duckdb.connect() as db:
            db.register("output", DeltaTable(self.workspace.table(self.name)).to_pyarrow_dataset())
            db.execute(f"CREATE TABLE found AS SELECT {columns} FROM output")
            return compared(db, self.job, rows)

    def _check_alerts(self, rows: pa.Table) -> str:
        from nyc_taxi.demo.velocity import compare_card_alerts, compare_card_velocity, expected_card_velocity

        alerts = DeltaTable(self.workspace.table("card_alerts")).to_pyarrow_table()
        windows = DeltaTable(self.workspace.table("card_velocity")).to_pyarrow_table()
        found = (compare_card_alerts(rows, alerts), compare_card_velocity(expected_card_velocity(rows), windows))
        if not all(one.equal for one in found):
            raise SystemExit("\n".join(map(str, found)))
        return "; ".join(map(str, found))

    def _supervise(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "streamwarden.cli", "supervise", self.name, "--profile", "peers"]
        environment = {**os.environ, "STREAMWARDEN_CONFIG": str(self.workspace.config)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def _await(self, rows: int) -> float:
        """Wait until so many rows are done; return the peak of the driver's memory in bytes."""
        began, deadline = time.time(), time.monotonic() + 1800
        peak = 0.0
        documents = JobDocuments(self.workspace.storage, self.name)
        while True:
            seen = observe(self.workspace, self.name)
            peak = max(peak, _memory(seen.heartbeat))
            self._keep_newest(seen)
            totals = documents.current_totals()
            # A batch whose driver was killed right after its commit is in no total: then nothing is left to read.
            if totals is not None and (totals.rows_in >= rows or self._is_idle(seen, began)):
                return peak
            assert time.monotonic() < deadline, seen
            time.sleep(0.2)

    def _is_idle(self, seen: Observation, since: float) -> bool:
        """Return whether a driver has found nothing to read, some time after `since` and after its last rows."""
        if seen.phase is not Phase.RUNNING or time.time() - max(self._newest, since) < _IDLE_S:
            return False
        beat, recent = seen.heartbeat, seen.progress.recent if seen.progress is not None else []
        if beat is not None and beat.idle and beat.idle_at is not None and beat.idle_at.timestamp() > since:
            return True
        # A job with timers is never idle: it runs batches without input.
        last = recent[-1] if recent else None
        return bool(last and last.source and last.source.pending == 0 and last.at.timestamp() > since)

    def _keep_newest(self, seen: Observation) -> None:
        # After a rescale the new driver's batches may all be without rows.
        recent = seen.progress.recent if seen.progress is not None else []
        self._newest = max([self._newest, *(one.at.timestamp() for one in recent if one.rows_in)])

    def _last_batch(self) -> float:
        """Return when the last batch with rows ended, once nothing is left to read."""
        while True:
            seen = observe(self.workspace, self.name)
            self._keep_newest(seen)
            recent = seen.progress.recent if seen.progress is not None else []
            if recent and recent[-1].source is not None and recent[-1].source.pending == 0:
                return self._newest
            time.sleep(0.2)


def pace_of(spec: dict[str, Any], pace: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec with another pace."""
    found: dict[str, Any] = {
        "trigger": {**spec.get("trigger", {}), "interval": pace["interval"], "min_pause": "0s"},
        "state": {**spec.get("state", {}), "backend": "rocksdb", "partitions": pace["partitions"]},
        "resources": pace["resources"],
    }
    if "watermark" in pace:
        found["watermark"] = pace["watermark"]
    return found


def _memory(heartbeat: Heartbeat | None) -> float:
    if heartbeat is None:
        return 0.0
    try:
        driver = psutil.Process(heartbeat.process.pid)
        return float(sum(one.memory_info().rss for one in [driver, *driver.children(recursive=True)]))
    except psutil.NoSuchProcess:
        return 0.0
