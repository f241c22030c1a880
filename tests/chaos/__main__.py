"""``make chaos``: faults into real drivers and a real Airflow on Postgres; exit code 0 only if nothing broke.

Prints a line for each fault, then a table by fault and the figures beside their goals. The log of injections is
``var/chaos/faults.jsonl``; the same seed plans the same faults.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from filelock import FileLock, Timeout
from nyc_taxi.demo.verify import read_table, verify_outputs

from streamwarden.console import out
from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.supervision.observe import Phase
from tests.chaos.audit import audit, commits_of
from tests.chaos.injections import ColdStart, Injector, Record
from tests.chaos.plan import JOBS, SHARED, WORDS, Fault, Kind, make_plan
from tests.chaos.report import KILL_TO_BATCH_S, KILLS_FOR_A_GOAL, Goal, kill_ratios, table_of
from tests.chaos.watch import Watcher
from tests.chaos.world import TABLES, ChaosError, World, is_running, now_text

_REST_S = 15.0

_BLIND_S = 60.0
"""How long the watcher may have seen nothing: Postgres, which it asks, is down for seconds at a time."""

_WORKERS = 10
"""Workers killed, of which one at least has cost a task a try. One that has deferred it by then costs none."""


class Chaos:
    """One run.

    Parameters
    ----------
    folder
        Where the log is kept; what runs is in ``run`` below it.
    plan
        The faults.
    seed
        That made the plan.
    minutes
        After which no further fault is injected; None injects all.
    trips
        A TLC file; None generates trips.
    """

    def __init__(self, folder: Path, plan: list[Fault], seed: int, minutes: float | None, trips: Path | None) -> None:
        self.folder = folder
        self.plan = plan
        self.seed = seed
        self.minutes = minutes
        self.began = time.monotonic()
        self.records: list[Record] = []
        self.starts: list[ColdStart] = []
        self.broken: list[str] = []
        self.world = World(folder / "run", self.say, trips=trips)
        self._lock = threading.Lock()
        self._calm = threading.Lock()
        self._calm_over = threading.Barrier(len(JOBS))
        self._log = folder / "faults.jsonl"

    def say(self, what: str) -> None:
        """Print a line with the time since the beginning."""
        out.print(f"[dim]{time.monotonic() - self.began:7.1f} s[/dim]  {what}")

    def run(self) -> bool:
        """Do all of it; return whether every goal was met."""
        self._log.write_text("", encoding="utf-8")
        self._write({"seed": self.seed, "faults": len(self.plan), "at": now_text()})
        self.world.start()
        up = time.monotonic()
        self.say(f"all is up; {len(self.plan)} faults to come, seed {self.seed}")
        watcher = Watcher(self.world)
        watcher.start()
        lanes = [threading.Thread(target=self._lane, args=(job,), name=job, daemon=True) for job in JOBS]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            # In steps: a thread that is waited for in one hides Ctrl-C.
            while lane.is_alive():
                lane.join(timeout=0.5)
        injected_s = time.monotonic() - up
        self.say("all faults are over; waiting until everything that landed has passed every job")
        self._settle()
        self.say("stopping the jobs by the stop DAG")
        left = self._stop_jobs()
        differences = [str(found) for found in verify_outputs(self.world.workspace) if not found.equal]
        audits = [
            f"{table}: {what}" for table in TABLES for what in audit(commits_of(self.world.workspace.files, table))
        ]
        return self._conclude(watcher, differences, audits, left, injected_s)

    # -- lanes -------------------------------------------------------------------------------------------------------

    def _lane(self, job: str) -> None:
        """Inject one job's faults, one after the other; the three jobs' lanes run beside each other."""
        injector = Injector(self.world)
        mine = [fault for fault in self.plan if fault.job == job]
        going = self._inject(injector, job, [fault for fault in mine if fault.calm])
        # Nobody's noise in what is compared: a lane that broke comes here, too.
        self._calm_over.wait()
        if going:
            self._inject(injector, job, [fault for fault in mine if not fault.calm])

    def _inject(self, injector: Injector, job: str, faults: list[Fault]) -> bool:
        """Inject a job's faults; return whether the lane can go on."""
        for fault in faults:
            if self.minutes is not None and time.monotonic() - self.began > self.minutes * 60:
                return False
            try:
                if fault.calm:
                    # One job at a time: two starts that share two cores are compared with nothing.
                    with self._calm:
                        self._start_cold(injector, job)
                        record = injector.perform(fault)
                else:
                    record = injector.perform(fault)
            except ChaosError as error:
                if not self.world.over.is_set():
                    with self._lock:
                        self.broken.append(f"{job}: {error}")
                return False
            except Exception as error:
                with self._lock:
                    self.broken.append(
                        f"the lane of {job} broke at fault {fault.number}: {type(error).__name__}: {error}"
                    )
                return False
            if self.world.over.is_set():
                return False
            self._keep(record)
            if record.wrong and not self._mended(injector, job):
                return False
        return True

    def _start_cold(self, injector: Injector, job: str) -> None:
        start = injector.cold_start(job)
        with self._lock:
            self.starts.append(start)
        self.say(f"      {job}: cold start {start.process_s:.1f} s, by its DAG {start.dag_s:.1f} s")
        self._write({"cold_start": job, "process_s": start.process_s, "dag_s": start.dag_s})

    def _keep(self, record: Record) -> None:
        with self._lock:
            self.records.append(record)
            done = len(self.records)
        self._write(record.line())
        fault = record.fault
        about = "Airflow, and " if fault.kind in SHARED else ""
        back = "-" if record.recovery_s is None else f"{record.recovery_s:.1f}"
        watched = "-" if record.supervised_s is None else f"{record.supervised_s:.1f}"
        self.say(
            f"{done:3}/{len(self.plan)} {WORDS[fault.kind]}; {about}{fault.job} {fault.moment}:"
            f" next batch {back} s, watched {watched} s"
        )
        for wrong in record.wrong:
            self.say(f"        [red]{wrong}[/red]")

    def _mended(self, injector: Injector, job: str) -> bool:
        """After a fault that the job did not get over, start it as a person would, so that the run can go on."""
        try:
            injector.cold_start(job)
        except (ChaosError, StreamwardenError) as error:
            with self._lock:
                self.broken.append(f"{job} can't be started again: {error}")
            return False
        return True

    def _write(self, entry: dict[str, Any]) -> None:
        with self._lock, self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")

    # -- the end -----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait until nothing changes any more: every table rests while all drivers run and find nothing to do."""
        world = self.world
        world.stop_feed()
        last: list[Any] = []
        since = time.monotonic()

        def rests() -> bool:
            nonlocal last, since
            running = all(is_running(world.seen(job)) for job in JOBS)
            now: list[Any] = [DeltaLog(world.workspace.files, table).latest for table in TABLES]
            if not running or now != last or not all(world.finds_nothing(job) for job in JOBS):
                last, since = now, time.monotonic()
                return False
            closed = set(read_table(world.workspace, "card_sessions")["status"].to_pylist()) <= {"closed"}
            return closed and time.monotonic() - since >= _REST_S

        world.until(rests, 480, "the jobs to come to rest", poll=1.0)

    def _stop_jobs(self) -> list[str]:
        """Stop all jobs by the DAG; return what is not as it must be afterwards."""
        world = self.world
        for job in JOBS:
            world.mean_all(job)
        run = world.trigger("stop", job="all", reason="the run is over")
        world.until(lambda: world.run_state("stop", run) in ("success", "failed"), 240, "the stop DAG")
        wrong = [] if world.run_state("stop", run) == "success" else ["the stop DAG failed"]
        for job in JOBS:
            seen = world.seen(job)
            if seen.phase is not Phase.STOPPED:
                wrong.append(f"{job} is {seen.phase} ({seen.reason}), not stopped")
            checkpoint = world.checkpoint(job)
            if checkpoint.last_offset() != checkpoint.last_commit():
                wrong.append(f"{job}: batch {checkpoint.last_offset()} was left unfinished")
            own = world.run_of(job)
            world.until(lambda own=own, job=job: world.run_state(f"job_{job}", own) in ("success", "failed"), 120, job)  # type: ignore[misc]
            if world.run_state(f"job_{job}", own) != "success":
                wrong.append(f"the last run of job_{job} is {world.run_state(f'job_{job}', own)}")
        for process in world.processes_of_run():
            wrong.append(f"process {process.pid} outlived the stop")
        return wrong

    def _conclude(
        self, watcher: Watcher, differences: list[str], audits: list[str], left: list[str], injected_s: float
    ) -> bool:
        ratios = kill_ratios(self.records, self.starts)
        unrecovered = [wrong for record in self.records for wrong in record.wrong]
        found = {
            "differences_from_batch": differences,
            "second_writers": [*watcher.second_writers.values(), *audits],
            "healthy_drivers_ended": list(watcher.killed_healthy.values()),
            "jobs_watched_twice": list(watcher.doubly_watched.values()),
            "faults_not_recovered": [*unrecovered, *self.broken],
            "left_after_stop": left,
        }
        goals = [Goal("faults", len(self.records), len(self.plan), at_least=True)]
        relieved = self.world.reliefs()
        workers = [record.detail.get("worker") for record in self.records if record.fault.kind is Kind.WORKER_KILLED]
        hit = sum(worker not in (None, "missed") for worker in workers)
        if workers:
            # A worker has its task for moments, and some get away; a kind of faults of which none hits is none.
            goals.append(Goal("workers_killed", hit, len(workers) // 2, at_least=True))
        if hit >= _WORKERS:
            goals.append(Goal("runs_relieved", relieved, 1, at_least=True))
        marks = sum(record.fault.kind in (Kind.TASK_FAILED, Kind.TASK_SUCCESS) for record in self.records)
        if marks:
            # Some meet a scheduler, or an absence, at just that moment. A release that heeds no mark would need all.
            again = sum(record.detail.get("marked_again", 0) for record in self.records)
            goals.append(Goal("marks_given_again", again, max(1, marks // 4)))
        goals += [Goal(name, len(wrong), 0) for name, wrong in found.items()]
        # What the watcher has not seen has not been looked for.
        goals += [Goal("looks", watcher.looks, 1, at_least=True), Goal("blind_s", round(watcher.blind_s, 1), _BLIND_S)]
        # Other jobs' batches count for much in seconds. So a run with fewer kills only prints them. make bench-start
        # measures starts on an idle machine.
        goals += [
            Goal(f"kill9_to_next_batch_s.{job}", one["recovery_s"], KILL_TO_BATCH_S)
            for job, one in ratios.items()
            if one["n"] >= KILLS_FOR_A_GOAL
        ]
        out.print(table_of(self.records))
        for job, one in ratios.items():
            out.print(
                f"{job}: kill -9 to the next batch {one['recovery_s']} s, launched after {one['launched_after_s']} s;"
                f" cold start {one['cold_start_s']} s from the process's launch, {one['cold_start_by_dag_s']} s from"
                f" the DAG's trigger: {one['ratio']} times (medians of {one['n']:.0f})"
            )
        for name, wrong in found.items():
            for line in wrong:
                out.print(f"{name}: {line}", markup=False, style="red")
        if self.world.ended_by_itself:
            counted = dict(Counter(self.world.ended_by_itself))
            out.print(
                f"components of Airflow that ended because of a fault of another, and were started again: {counted}"
            )
        if self.world.hung:
            out.print(f"of these hung, and were killed by a liveness probe: {dict(Counter(self.world.hung))}")
        rows = {table: read_table(self.world.workspace, table).num_rows for table in TABLES}
        out.print(f"{relieved} runs of a job's DAG were relieved by a fresh one, before their tries ran out")
        out.print(f"rows: {rows}; {watcher.looks} looks, at most {watcher.blind_s:.1f} s apart")
        out.print(f"{len(self.records)} faults in {injected_s / 60:.1f} min; log: {self._log}")
        for goal in goals:
            out.print(str(goal), style=None if goal.met else "red", markup=False)
        summary = {
            "seed": self.seed,
            "faults": len(self.records),
            "injected_s": round(injected_s, 1),
            "goals": {goal.name: {"value": goal.value, "goal": goal.goal, "ok": goal.met} for goal in goals},
            "kill9": ratios,
            "found": found,
            "runs_relieved": relieved,
            "components_ended": dict(Counter(self.world.ended_by_itself)),
            "components_hung": dict(Counter(self.world.hung)),
            "trips": self.world.trips.name if self.world.trips else "generated",
            "rows": rows,
            "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
            "at": now_text(),
        }
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        return all(goal.met for goal in goals)


def _interrupted(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> int:
    """Run, and leave nothing running."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=20230306, help="of the plan")
    parser.add_argument("--only", action="append", default=[], choices=[kind.value for kind in Kind], help="repeatable")
    parser.add_argument("--minutes", type=float, help="inject no further fault after so long")
    parser.add_argument("--trips", type=Path, help="a TLC green-taxi Parquet file; default: generated trips")
    parser.add_argument("--folder", type=Path, default=Path("var/chaos"), help="emptied at the start (var/chaos)")
    parser.add_argument("--plan", action="store_true", help="print the plan, and start nothing")
    given = parser.parse_args()
    plan = make_plan(given.faults, given.seed, [Kind(kind) for kind in given.only])
    if given.plan:
        for fault in plan:
            out.print(
                f"{fault.number:3} {fault.kind:22} {fault.job:14} {fault.moment}{' (calm)' if fault.calm else ''}"
            )
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(given.folder / "lock", timeout=0):
            return _run(Chaos(given.folder.resolve(), plan, given.seed, given.minutes, given.trips))
    except Timeout:
        out.print("[red]another run is going on here[/red]")
        return 2


def _run(chaos: Chaos) -> int:
    code = 1
    try:
        code = 0 if chaos.run() else 1
    except (StreamwardenError, ChaosError) as error:
        out.print(str(error), markup=False, style="red")
        out.print(f"logs: {chaos.world.folder}", markup=False)
    except KeyboardInterrupt as stop:
        out.print(f"interrupted {stop}: stopping what was started", markup=False)
        code = 130
    finally:
        before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        chaos.world.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    return code


if __name__ == "__main__":
    sys.exit(main())
