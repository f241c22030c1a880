"""``make demo JOBS=…``: other jobs of the example through Airflow, each compared with a batch computation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from nyc_taxi.demo.comparisons import COMPARISONS
from nyc_taxi.demo.main import Demo, DemoError
from nyc_taxi.demo.trips import write_week
from streamwarden.supervision.observe import Phase, observe

__all__ = ["OtherJobs"]

_FEEDS = {
    "trip_payments": ("payments",),
    "dedup_events": ("payments", "--table", "payments_delivered", "--repeated", "0.2"),
    "sensor_metrics": ("sensor_readings",),
    "trade_metrics": ("trades",),
}
"""The arguments of `feed` for the jobs that read more than trips."""


class OtherJobs(Demo):
    """Deploys `ingest_trips` and some other jobs, kills the first of them, and compares all."""

    others: Sequence[str] = ()

    def run(self) -> bool:
        """Run the demo; return whether every table equals its batch computation."""
        jobs = ("ingest_trips", *self.others)
        with ThreadPoolExecutor(1) as pool:
            week = pool.submit(write_week, self.trips, self.workspace.root / "week.parquet")
            with self.step("airflow", "starting Airflow (SQLite, LocalExecutor)"):
                self.airflow.start(progress=self.say)
                self.airflow.wait_for_dags([f"job_{name}" for name in jobs] + ["stop"])
            trips, _ = week.result()
        with self.step("deploy", f"triggering the DAGs that deploy {', '.join(jobs)}"):
            for job in jobs:
                self.runs[job] = self.airflow.client.trigger_dag(f"job_{job}")
            for job in jobs:
                self.await_phase(job, (Phase.RUNNING, Phase.WAITING), timeout=240)
        with self.step("replay", f"replaying {trips:,} trips"):
            replay = self.start_replay()
            try:
                self.until(lambda: replay.poll() is not None, 300, "the replay to end")
            finally:
                replay.terminate()
                replay.wait()
            self.until(lambda: self.rows_in("ingest_trips") >= trips, 120, "ingest_trips")
        feeds = self._feed()
        with self.step("kill", f"killing the driver of {self.others[0]}, and waiting until all is read"):
            self._kill(self.others[0])
            for feed in feeds:
                self.until(lambda feed=feed: feed.poll() is not None, 240, "the feeds to end")  # type: ignore[misc]
                if feed.returncode != 0:
                    raise DemoError(f"a feed ended with {feed.returncode}: {self.workspace.root / 'feed.log'}")
            since = datetime.now(UTC)
            for job in self.others:
                self.until(lambda job=job: self._has_read_all(job, since), 240, f"{job} to read all")  # type: ignore[misc]
        self.stop(jobs)
        equal = True
        for job in self.others:
            tables = COMPARISONS[job](self.workspace, self.workspace.job(job))
            for found in tables:
                self.say(f"[{'green' if found.equal else 'red'}]{found}[/]")
            # A table may be right without a row, as one of alerts; not all of a job's.
            equal = equal and all(found.equal for found in tables) and any(found.expected for found in tables)
        verdict = "[green]equal to batch[/green]" if equal else "[red]DIFFERENT from batch[/red]"
        self.say(f"{verdict}, in {time.monotonic() - self.began:.0f} s; tables: {self.workspace.tables}/NAME")
        return equal

    def _feed(self) -> list[subprocess.Popen[bytes]]:
        chosen = [_FEEDS[job] for job in self.others if job in _FEEDS]
        if "dedup_events" in self.others:
            # It writes the payments that trip_payments reads.
            chosen = [one for one in chosen if one != _FEEDS["trip_payments"]]
        log = (self.workspace.root / "feed.log").open("ab")
        found = []
        for words in chosen:
            command = [sys.executable, "-m", "streamwarden.cli", "feed", *words, "--pieces", "6", "--pause", "2"]
            command += ["--profile", "demo", "--root", str(self.workspace.root)]
            found.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        return found

    def _kill(self, job: str) -> None:
        self.await_phase(job, (Phase.RUNNING,), timeout=120)
        seen = observe(self.workspace, job)
        assert seen.heartbeat is not None
        os.kill(seen.heartbeat.process.pid, signal.SIGKILL)
        self.say(f"[yellow]kill -9[/yellow] of {job}, after batch {seen.heartbeat.batch}")
        self.until(lambda: observe(self.workspace, job).incarnation != seen.incarnation, 120, f"{job} to be restarted")

    def _has_read_all(self, job: str, since: datetime) -> bool:
        seen = observe(self.workspace, job)
        heartbeat, last = seen.heartbeat, seen.progress.last if seen.progress else None
        if seen.phase is not Phase.RUNNING or heartbeat is None:
            return False
        if heartbeat.idle and heartbeat.idle_at is not None and heartbeat.idle_at > since:
            return True
        # Processing-time timers keep a job from being idle.
        return last is not None and last.at > since and last.source is not None and last.source.pending == 0
