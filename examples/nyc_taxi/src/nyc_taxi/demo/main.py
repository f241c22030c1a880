"""The steps of ``make demo``: the main job from end to end, headless, through a real Airflow.

Deploys the three jobs by their DAGs, replays a week of trips, kills a driver, waits for its restart, and checks the
tables. Publishes them, and lands a bad file, which the gate holds. Then it stops everything and compares each table
with a batch computation. Exit code 0 only if nothing differs.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc
from rich.table import Table

from nyc_taxi.demo.trips import CROWDED, land_overcharged, write_week
from nyc_taxi.demo.verify import read_table, verify_outputs
from streamwarden.console import out
from streamwarden.devserver.standalone import Standalone
from streamwarden.errors import StreamwardenError
from streamwarden.model.gate import Verdict
from streamwarden.operations.quarantine import quarantined_rows
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_state
from streamwarden.runtime import spares
from streamwarden.runtime.processes import is_alive, kill
from streamwarden.store.config import job_names
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Phase, observe

__all__ = ["JOBS", "Demo", "DemoError", "kill_drivers"]

JOBS = ("ingest_trips", "zone_windows", "card_sessions")
VICTIM = "card_sessions"
# Event seconds a second: a week takes a little over a minute.
SPEED = 9_000
# Maximum lateness. The watermark of zone_windows is 2 h, so nothing is dropped.
LATE_MAX = "90m"
FILE_EVERY = "3h"


class DemoError(StreamwardenError):
    """A step of the demo failed."""

    def __init__(self, what: str) -> None:
        super().__init__("DEMO_FAILED", what)


@dataclass
class Demo:
    """One run of the demo.

    Parameters
    ----------
    workspace
        The workspace.
    trips
        A TLC file, or None for generated trips.
    airflow
        The Airflow to use, not yet started.
    """

    workspace: Workspace
    trips: Path | None
    airflow: Standalone
    began: float = field(default_factory=time.monotonic)
    figures: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)

    def say(self, what: str) -> None:
        """Print a line with the time since the start."""
        out.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {what}")

    @contextmanager
    def step(self, name: str, what: str) -> Iterator[None]:
        """Announce a step and measure its time."""
        self.say(what)
        began = time.monotonic()
        yield
        self.steps[name] = round(time.monotonic() - began, 1)

    def run(self) -> bool:
        """Run the demo; return whether every table equals its batch computation."""
        with ThreadPoolExecutor(1) as pool:
            week: Future[tuple[int, datetime]] = pool.submit(
                write_week, self.trips, self.workspace.root / "week.parquet"
            )
            with self.step("airflow", "starting Airflow (SQLite, LocalExecutor)"):
                self.airflow.start(progress=self.say)
                self.airflow.wait_for_dags([f"job_{name}" for name in JOBS] + ["quality", "stop"])
            trips, start = week.result()
        origin = self.trips.name if self.trips else "generated"
        self.say(f"Airflow is up at {self.airflow.url}; the week of {start:%Y-%m-%d}: {trips:,} trips ({origin})")
        self.figures |= {"source": origin, "week": f"{start:%Y-%m-%d}", "trips_replayed": trips}

        with self.step("deploy", f"triggering the DAGs that deploy {', '.join(JOBS)}"):
            for job in JOBS:
                self.runs[job] = self.airflow.client.trigger_dag(f"job_{job}")
            for job in JOBS:
                self.await_phase(job, (Phase.RUNNING,), timeout=180)
                self.say(f"{job} runs, as incarnation {observe(self.workspace, job).incarnation}")
        with self.step("replay", f"replaying the week at {SPEED:,} times its pace, 5 % of trips up to {LATE_MAX} late"):
            replay = self.start_replay()
            try:
                self.kill_midway(replay, trips)
                self.await_replay(replay, trips)
            finally:
                replay.terminate()
                replay.wait()
        with self.step("catch_up", "everything has landed; waiting until the jobs have caught up"):
            self.await_caught_up()
        with self.step("quality", "triggering the quality DAG"):
            self.quality()
        with self.step("gate", "publishing the tables; then a file with tenfold fares lands"):
            self.gate()
        with self.step("stop", "triggering the stop DAG for all jobs"):
            self.stop()
        with self.step("compare", "comparing each table with a batch computation over the landed files"):
            differences = verify_outputs(self.workspace)
        for found in differences:
            self.say(f"[{'green' if found.equal else 'red'}]{found}[/]")
        equal = all(found.equal for found in differences)
        self.summarise(equal, {found.table: found.equal for found in differences})
        return equal

    # -- steps -------------------------------------------------------------------------------------------------------

    def start_replay(self) -> subprocess.Popen[bytes]:
        """Start the replay as a user would, as a command."""
        command = [sys.executable, "-m", "streamwarden.cli", "replay", str(self.workspace.root / "week.parquet")]
        command += ["--profile", "demo", "--root", str(self.workspace.root), "--speed", str(SPEED)]
        command += ["--late-max", LATE_MAX, "--file-every", FILE_EVERY]
        log = (self.workspace.root / "replay.log").open("wb")
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill_midway(self, replay: subprocess.Popen[bytes], trips: int) -> None:
        """Kill a driver with SIGKILL after a third of the trips, and wait until its successor commits."""
        self.until(lambda: self.rows_in(VICTIM) >= trips / 3, 180, f"{VICTIM} to read a third of the trips", replay)
        seen = observe(self.workspace, VICTIM)
        assert seen.heartbeat is not None and seen.incarnation is not None
        batch = seen.heartbeat.batch
        pid = seen.heartbeat.process.pid
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        self.say(f"[yellow]kill -9 {pid}[/yellow]: the driver of {VICTIM}, after batch {batch}")

        def back() -> bool:
            now = observe(self.workspace, VICTIM)
            return now.incarnation != seen.incarnation and now.progress is not None and now.progress.last is not None

        self.until(back, 120, f"{VICTIM} to come back")
        took = time.monotonic() - began
        restarts = JobDocuments(self.workspace.storage, VICTIM).supervision.read() or None
        reason = restarts.restarts[-1].reason if restarts and restarts.restarts else "?"
        self.say(f"{VICTIM} is back and has committed a batch after {took:.1f} s (supervision said: {reason})")
        self.figures |= {"killed": VICTIM, "recovery_s": round(took, 1)}

    def await_replay(self, replay: subprocess.Popen[bytes], trips: int) -> None:
        """Wait for the end of the replay."""
        self.until(lambda: replay.poll() is not None, 180, "the replay to end")
        if replay.returncode != 0:
            raise DemoError(f"the replay ended with {replay.returncode}: {self.workspace.root / 'replay.log'}")
        self.say(f"the replay has ended: {trips:,} trips in {self.landed()} files")

    def await_caught_up(self) -> None:
        """Wait until every job has processed every row, and every session is closed."""
        self.until(lambda: self.rows_in("ingest_trips") >= self.figures["trips_replayed"], 120, "ingest_trips")
        valid = read_table(self.workspace, "trips").num_rows
        for job in ("zone_windows", "card_sessions"):
            self.until(lambda job=job: self.rows_in(job) >= valid or self.is_idle(job), 180, job)  # type: ignore[misc]
        self.until(self.sessions_closed, 120, "the timers of card_sessions to close every session")
        self.until(self.windows_final, 60, "zone_windows to mark what is final")

    def quality(self) -> None:
        """Run the quality DAG."""
        run = self.airflow.client.trigger_dag("quality")
        state = self.airflow.client.wait_for_run("quality", run, timeout=240)
        reports = sorted((self.workspace.root / "quality").glob("*/report.html"))
        self.figures |= {"quality": state, "quality_report": str(reports[-1]) if reports else None}
        if state != "success":
            raise DemoError(f"the quality DAG failed:\n{self.airflow.client.task_log('quality', run, 'check')[-3000:]}")
        self.say(f"quality: every expectation is met; report: {reports[-1]}")

    def gate(self) -> None:
        """Publish the tables; let the gate hold a bad file, and accept it as a person would."""
        gate = Gate(self.workspace)
        for table in ("trips", "zone_windows", "card_sessions"):
            decision = gate.decide(table)
            if decision is None or decision.verdict is not Verdict.PUBLISHED:
                raise DemoError(f"the gate holds {table}: {gate_state(self.workspace, table).record.hold}")
            self.say(f"gate: {table}: version {decision.version} published after {decision.seconds:.1f} s")
        newest = self.newest_session()
        name, rows = land_overcharged(self.workspace.root / "week.parquet", self.workspace.root / "landing")
        self.figures["trips_replayed"] += rows
        # The file is a batch of each job, and all of its trips are later than the week's.
        self.until(lambda: self.newest_session() > newest, 120, f"card_sessions to take {name}")
        self.await_caught_up()
        self.quarantined(name)
        decision = gate.decide("trips")
        hold = gate_state(self.workspace, "trips").record.hold
        if decision is None or decision.verdict is not Verdict.HELD or hold is None:
            raise DemoError(f"the gate has published {name}")
        why = hold.failures[0]
        self.say(
            f"[yellow]gate: trips: versions {hold.after + 1} to {hold.version} are held[/yellow] after"
            f" {decision.seconds:.1f} s: {why.expectation}: {why.description} They are of batch {hold.batches[-1]}"
        )
        published = gate_state(self.workspace, "trips").published.content
        gate.accept("trips", by="demo", note=f"{name} was planted")
        gate.keep_results()
        report = self.workspace.root / "quality" / str(decision.run) / "report.html"
        self.say(f"gate: accepted, with a note; readers saw version {published} until then; report: {report}")
        self.figures |= {"held": why.expectation, "held_file": name, "gate_report": str(report)}

    def quarantined(self, file: str) -> None:
        """Explain what the row rules kept out of a file."""
        found = [row for row in quarantined_rows(self.workspace, "trips_quarantine") if row.source_file == file]
        if len(found) != CROWDED or not all(row.rules for row in found):
            raise DemoError(f"{len(found)} trips of {file} are quarantined, not {CROWDED}")
        self.say(
            f"[yellow]quarantine: {len(found)} trips of {file} are kept out of trips[/yellow]:"
            f" {found[0].reasons[0]} Look: streamwarden quarantine show trips --root {self.workspace.root}"
        )
        self.figures["quarantined_by_rule"] = {found[0].rules[0]: len(found)}

    def stop(self, jobs: Sequence[str] = JOBS) -> None:
        """Run the stop DAG; wait until the drivers end and the job DAGs succeed."""
        run = self.airflow.client.trigger_dag("stop", {"job": "all", "reason": "the demo is over"})
        state = self.airflow.client.wait_for_run("stop", run, timeout=180)
        if state != "success":
            raise DemoError(f"the stop DAG failed:\n{self.airflow.client.task_log('stop', run, 'stop')[-3000:]}")
        for job in jobs:
            seen = observe(self.workspace, job)
            if seen.phase is not Phase.STOPPED:
                raise DemoError(f"{job} is {seen.phase}, not stopped: {seen.reason}")
            state = self.airflow.client.wait_for_run(f"job_{job}", self.runs[job], timeout=90)
            if state != "success":
                raise DemoError(f"the DAG run of {job} ended as {state}")

    def summarise(self, equal: bool, tables: dict[str, bool]) -> None:
        """Print a table of figures and write summary.json."""
        jobs = {}
        shown = Table("job", "batches", "rows in", "rows out", "quarantined", "late", "restarts", title="The demo")
        for job in JOBS:
            documents = JobDocuments(self.workspace.storage, job)
            totals = documents.current_totals()
            restarts = len(memory.restarts if (memory := documents.supervision.read()) else [])
            assert totals is not None
            jobs[job] = {**totals.model_dump(), "restarts": restarts}
            rows = (totals.rows_in, totals.rows_out, totals.rows_quarantined, totals.late_rows)
            cells = (totals.batches, *rows, restarts)
            shown.add_row(job, *(f"{cell:,}" for cell in cells))
        self.figures |= {
            "equal_to_batch": equal,
            "tables": tables,
            "rows": {name: read_table(self.workspace, name).num_rows for name in sorted(_tables(self.workspace))},
            "jobs": jobs,
            "steps_s": self.steps,
            "total_s": round(time.monotonic() - self.began, 1),
            "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        path = self.workspace.root / "summary.json"
        path.write_text(json.dumps(self.figures, indent=2) + "\n", encoding="utf-8")
        out.print(shown)
        out.print("steps: " + ", ".join(f"{name} {seconds} s" for name, seconds in self.steps.items()))
        verdict = "[green]equal to batch[/green]" if equal else "[red]DIFFERENT from batch[/red]"
        out.print(f"{verdict}, in {self.figures['total_s']} s; summary: {path}; tables: {self.workspace.tables}/NAME")

    # -- looking -----------------------------------------------------------------------------------------------------

    def until(
        self,
        condition: Callable[[], bool],
        timeout: float,
        what: str,
        replay: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Wait for a condition; fail if a job fails or the time runs out."""
        deadline = time.monotonic() + timeout
        while not condition():
            for job in self.runs:
                seen = observe(self.workspace, job)
                if seen.phase is Phase.FAILED and seen.error is not None and not seen.error.retryable:
                    raise DemoError(f"{job} failed: {seen.error.to_exception()}")
            if replay is not None and replay.poll() not in (None, 0):
                raise DemoError(f"the replay ended with {replay.returncode}: {self.workspace.root / 'replay.log'}")
            if time.monotonic() >= deadline:
                phases = ", ".join(f"{job}: {observe(self.workspace, job).phase}" for job in self.runs)
                raise DemoError(f"waited {timeout:.0f} s for {what} ({phases})")
            time.sleep(0.5)

    def await_phase(self, job: str, phases: tuple[Phase, ...], timeout: float) -> None:
        """Wait until a job's driver is in one of some phases."""
        self.until(lambda: observe(self.workspace, job).phase in phases, timeout, f"{job} to be {phases[0]}")

    def rows_in(self, job: str) -> int:
        """Return the number of rows that a job has read so far."""
        totals = JobDocuments(self.workspace.storage, job).current_totals()
        return totals.rows_in if totals else 0

    def is_idle(self, job: str) -> bool:
        """Return whether a job has committed all its input; totals may lack a killed driver's last batch."""
        seen = observe(self.workspace, job)
        if seen.progress is None or seen.progress.last is None or seen.phase is not Phase.RUNNING:
            return False
        recent = seen.progress.recent[-3:]
        return job == VICTIM and len(recent) == 3 and not any(batch.rows_in for batch in recent)

    def landed(self) -> int:
        """Return the number of landed files."""
        return sum(1 for path in (self.workspace.root / "landing").glob("*.parquet"))

    def sessions_closed(self) -> bool:
        """Return whether all sessions are closed."""
        statuses = set(read_table(self.workspace, "card_sessions")["status"].to_pylist())
        return statuses == {"closed"}

    def newest_session(self) -> datetime:
        """Return the latest end of a session."""
        newest: datetime = pc.max(read_table(self.workspace, "card_sessions")["session_end"]).as_py()
        return newest

    def windows_final(self) -> bool:
        """Return whether the windows behind the last watermark are marked."""
        heartbeat = observe(self.workspace, "zone_windows").heartbeat
        # If the last rows moved the watermark, Spark runs one more batch without rows, and is idle only after it.
        # Otherwise there is no such batch.
        return heartbeat is not None and heartbeat.idle


def _tables(workspace: Workspace) -> list[str]:
    return workspace.files.folders("tables")


def kill_drivers(workspace: Workspace) -> None:
    """End every remaining driver and spare, with its JVM."""
    for job in job_names(workspace.config):
        documents = JobDocuments(workspace.storage, job)
        lease = documents.lease.read()
        found = [lease.process, lease.jvm] if lease else []
        for incarnation in documents.incarnations():
            launch = documents.launch(incarnation).read()
            found.append(launch.process if launch else None)
        for process in found:
            if process is not None and is_alive(process):
                kill(process)
    spares.end_waiting(workspace)
