"""How each fault is injected, and how its recovery is waited for."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psutil

from streamwarden.airflow.run_handover import relief_id
from streamwarden.devserver.rest import AirflowRequestFailed
from streamwarden.errors import StreamwardenError
from streamwarden.runtime import spares
from streamwarden.supervision.observe import Phase
from tests.chaos.plan import JOBS, SHARED, Fault, Kind, Moment
from tests.chaos.world import LEASE_S, TRIGGERER_THRESHOLD_S, ChaosError, World, is_running, now_text, some_time

DEADLINE_S = 240.0
"""Within which every job must be back and watched, from the end of the fault; with Airflow's own time-outs in it."""

_WORKER = "airflow worker -- LocalExecutor: "
_WORKER_TRIES = 3
"""What a worker calls itself, before the id of the task instance that it has."""


@dataclass
class Record:
    """What was injected, and what became of it. Times are seconds since the epoch, durations seconds.

    Parameters
    ----------
    fault
        The plan's.
    at
        When it was injected.
    held_s
        How long the harness kept it up: a frozen process, a paused DAG, a component left away.
    recovery_s
        From `at` to the job's next committed batch (or to its being idle and well); None if it did not recover.
    supervised_s
        From `at` until exactly one task watches each job again.
    launched_s
        From `at` to the launch of the driver that came next, where one did.
    detail
        What exactly was hit.
    wrong
        What must not be.
    """

    fault: Fault
    at: float = 0.0
    ended: float = 0.0
    held_s: float = 0.0
    recovery_s: float | None = None
    supervised_s: float | None = None
    launched_s: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """Return it as a line of the log."""
        fault = self.fault
        return {
            "logged_at": now_text(),
            "number": fault.number,
            "kind": fault.kind.value,
            "moment": fault.moment.value,
            "job": fault.job,
            "seed": fault.seed,
            "calm": fault.calm,
            "at": round(self.at, 3),
            "held_s": round(self.held_s, 2),
            "recovery_s": None if self.recovery_s is None else round(self.recovery_s, 2),
            "supervised_s": None if self.supervised_s is None else round(self.supervised_s, 2),
            "launched_s": None if self.launched_s is None else round(self.launched_s, 2),
            "detail": self.detail,
            "wrong": self.wrong,
        }


@dataclass
class ColdStart:
    """A job that was stopped in order, started: what kills are compared with.

    Parameters
    ----------
    process_s
        From the launch of the driver's process to its first committed batch.
    dag_s
        From the trigger of the job's DAG to that.
    """

    job: str
    process_s: float
    dag_s: float


class Injector:
    """Performs one fault after another of one job's lane."""

    def __init__(self, world: World) -> None:
        self.world = world

    def perform(self, fault: Fault) -> Record:
        """Inject a fault at its moment, wait for recovery, and return what was seen.

        Does not raise because of what the fault did: that is in the record.
        """
        record = Record(fault)
        chance = random.Random(fault.seed)
        act = self._ACTS[fault.kind]
        try:
            if fault.kind in SHARED:
                with self.world.airflow_to_itself():
                    act(self, record, chance)
                    self._await_airflow(record)
            else:
                act(self, record, chance)
        except (ChaosError, StreamwardenError, psutil.Error, OSError) as error:
            if not self.world.over.is_set():
                record.wrong.append(f"{type(error).__name__}: {error} ({self._state(fault.job)})")
                self._bring_back(fault.job)
        record.ended = time.time()
        return record

    def cold_start(self, job: str) -> ColdStart:
        """Stop a job by its DAG, start it by its DAG, and take the time to its first batch."""
        self._stop(job)
        began = time.time()
        known = set(self.world.documents(job).incarnations())
        self.world.trigger(f"job_{job}")
        launched, committed = self._await_batch(job, known, DEADLINE_S)
        self._await_supervised([job], began, DEADLINE_S)
        return ColdStart(job, committed - launched, committed - began)

    # -- moments -----------------------------------------------------------------------------------------------------

    def _await_moment(self, record: Record) -> None:
        """Wait for the fault's moment; at once where a job has nothing to do for a while."""
        world, job, moment = self.world, record.fault.job, record.fault.moment
        world.until(lambda: is_running(world.seen(job)), DEADLINE_S, f"{job} to run")
        checkpoint = world.checkpoint(job)
        deadline = time.monotonic() + 60
        if moment is Moment.IN_BATCH:
            while checkpoint.last_offset() == checkpoint.last_commit() and time.monotonic() < deadline:
                time.sleep(0.03)
            record.detail["batch"] = checkpoint.last_offset()
        elif moment is Moment.BETWEEN:
            done = checkpoint.last_commit()
            while checkpoint.last_commit() == done and time.monotonic() < deadline:
                time.sleep(0.03)
            record.detail["batch"] = checkpoint.last_commit()
        if time.monotonic() >= deadline:
            record.detail["moment_missed"] = True

    def _start_anew(self, record: Record, chance: random.Random) -> None:
        """Kill the job's driver, and wait until its successor is somewhere in its start."""
        world, job = self.world, record.fault.job
        known = self._kill_driver(job)
        world.until(lambda: self._launched(job, known), DEADLINE_S, f"{job}: a successor")
        wait = some_time(chance, 0.2, 9.0)
        record.detail["into_start_s"] = wait
        world.sleep(wait)

    def _mid_savepoint(self, record: Record, chance: random.Random) -> str:
        """Have a savepoint taken by its DAG, return the run while its take is at work."""
        world, job = self.world, record.fault.job
        run = world.trigger("savepoint", job=job, verify=False)
        going = ("running", "success", "failed")
        world.until(lambda: world.task_state("savepoint", run, "take") in going, 120, "the savepoint's take", poll=0.05)
        world.sleep(some_time(chance, 0.0, 2.5))
        return run

    # -- drivers -----------------------------------------------------------------------------------------------------

    def _drivers(self, record: Record, chance: random.Random) -> None:
        world, job, moment = self.world, record.fault.job, record.fault.moment
        savepoint = None
        if moment is Moment.STARTING:
            self._start_anew(record, chance)
        elif moment is Moment.SAVEPOINT:
            savepoint = self._mid_savepoint(record, chance)
        else:
            self._await_moment(record)
        known = set(world.documents(job).incarnations())
        targets = self._targets(job, record.fault.kind)
        world.mean_all(job)
        self._strike(record, targets)
        self._await_job(record, known)
        if savepoint is not None:
            world.until(
                lambda: world.run_state("savepoint", savepoint) in ("success", "failed"), 150, "the savepoint's end"
            )
            record.detail["savepoint"] = world.run_state("savepoint", savepoint)

    def _targets(self, job: str, kind: Kind) -> list[psutil.Process]:
        deadline = time.monotonic() + 60
        while True:
            members = self.world.driver(job)
            # Not the one that only tells its version.
            java = [process for process in members if _is_jvm(process)]
            if members and (kind is Kind.DRIVER_PYTHON or java or time.monotonic() >= deadline):
                break
            time.sleep(0.05)
        if kind is Kind.DRIVER_PYTHON or (kind is Kind.DRIVER_JVM and not java):
            return members[:1]
        if kind is Kind.DRIVER_SPARES:
            for spare in spares.living(self.world.workspace):
                with contextlib.suppress(psutil.Error):
                    root = psutil.Process(spare.process.pid)
                    members += [root, *root.children(recursive=True)]
        return java[:1] if kind is Kind.DRIVER_JVM else members

    def _strike(self, record: Record, targets: Iterable[psutil.Process], how: signal.Signals = signal.SIGKILL) -> None:
        record.at = time.time()
        hit = []
        for process in targets:
            with contextlib.suppress(psutil.Error):
                process.send_signal(how)
                hit.append(process.pid)
        record.detail["pids"] = hit
        if not hit:
            raise ChaosError("there was no process to hit")

    def _frozen(self, record: Record, chance: random.Random) -> None:
        world, job = self.world, record.fault.job
        if record.fault.moment is Moment.STARTING:
            self._start_anew(record, chance)
        else:
            self._await_moment(record)
        before = world.seen(job).incarnation
        targets = world.driver(job)
        world.mean_all(job)
        self._strike(record, targets, signal.SIGSTOP)
        try:
            record.held_s = LEASE_S + some_time(chance, 2.0, 10.0)
            world.sleep(record.held_s)
        finally:
            # Whatever is left of it wakes up, and must do no harm.
            left = [process.pid for process in targets if _resume(process)]
        woken = time.time()
        record.detail["woken"] = left
        # Replaced, as a rule. One that was frozen before its first heartbeat is given longer, and goes on.
        self._await_job(record, None, since=woken)
        record.detail["replaced"] = world.seen(job).incarnation != before

    def _woken(self, record: Record, chance: random.Random) -> None:
        world, job = self.world, record.fault.job
        self._await_moment(record)
        before = world.seen(job).incarnation
        targets = world.driver(job)
        # So that nobody replaces it: the supervise task that was woken gets no worker.
        world.api(lambda client: client.request("PATCH", f"/dags/job_{job}", json={"is_paused": True}))
        try:
            self._strike(record, targets, signal.SIGSTOP)
            try:
                record.held_s = LEASE_S + some_time(chance, 1.0, 5.0)
                world.sleep(record.held_s)
            finally:
                for process in targets:
                    _resume(process)
            woken = time.time()
            world.until(lambda: world.commit_after(job, woken) or world.idle_after(job, woken), 90, f"{job} to go on")
        finally:
            world.api(lambda client: client.unpause(f"job_{job}"))
        self._await_job(record, None, since=woken)
        if world.seen(job).incarnation != before:
            record.wrong.append(f"{before} was replaced, though it was awake again")

    # -- the supervise task ------------------------------------------------------------------------------------------

    def _cleared(self, record: Record, chance: random.Random) -> None:
        world, job = self.world, record.fault.job
        known = self._perhaps_kill(record, chance)
        before = max((found.attempt for found in world.supervisions(job)), default=0)
        record.at = time.time()
        world.api(lambda client: client.clear_task(f"job_{job}", world.run_of(job), "supervise"))
        self._await_job(record, known)
        found = world.supervisions(job)
        record.detail["attempts"] = [before, *(one.attempt for one in found)]

    def _marked(self, record: Record, chance: random.Random) -> None:
        world, job = self.world, record.fault.job
        state = "failed" if record.fault.kind is Kind.TASK_FAILED else "success"
        run = world.run_of(job)
        self._perhaps_kill(record, chance)
        world.mean_run(job, run)
        record.at = time.time()
        marked = [run]

        def mark(run: str) -> None:
            try:
                world.api(lambda client: client.set_task_state(f"job_{job}", run, "supervise", state))
            except AirflowRequestFailed as error:
                # The answer to a first request may have been lost with the API server. What a person reads then.
                if f"already in {state} state" not in str(error):
                    raise

        def again(run: str) -> None:
            # Whoever sees that it goes on marks it again.
            world.mean_run(job, run)
            mark(run)
            record.detail["marked_again"] = record.detail.get("marked_again", 0) + 1

        def ended() -> bool:
            if world.run_state(f"job_{job}", marked[-1]) in ("failed", "success"):
                return True
            if world.task_state(f"job_{job}", marked[-1], "supervise") not in ("failed", "success", None):
                # A scheduler that has just looked at a scheduled task queues it over a mark that comes in between.
                again(marked[-1])
            return False

        def down() -> bool:
            if world.task_state(f"job_{job}", fresh := relief_id(marked[-1]), "supervise") in ("running", "deferred"):
                # With two tries, a mark that Airflow takes long to act on looks like tries that died unseen.
                marked.append(fresh)
                again(fresh)
            return rest.over(ended() and self._is_down(job))

        mark(run)
        world.until(ended, DEADLINE_S, "the run's end", poll=3.0)
        rest = _Rest(5.0)
        world.until(down, DEADLINE_S, f"{job} to stay down")
        desired = world.documents(job).desired.read()
        record.detail["left_as"] = desired.state if desired else None
        record.held_s = time.time() - record.at
        known = set(world.documents(job).incarnations())
        world.trigger(f"job_{job}")
        self._await_job(record, known)

    def _is_down(self, job: str) -> bool:
        return not self.world.seen(job).phase.alive and not self.world.supervisions(job)

    def _paused(self, record: Record, chance: random.Random) -> None:
        world, job = self.world, record.fault.job
        self._await_moment(record)
        world.api(lambda client: client.request("PATCH", f"/dags/job_{job}", json={"is_paused": True}))
        record.at = time.time()
        known = self._kill_driver(job)
        try:
            record.held_s = some_time(chance, 8.0, 15.0)
            world.sleep(record.held_s)
        finally:
            world.api(lambda client: client.unpause(f"job_{job}"))
        self._await_job(record, known)

    def _worker(self, record: Record, chance: random.Random) -> None:
        job = record.fault.job
        self._await_moment(record)
        for _ in range(_WORKER_TRIES):
            record.at = time.time()
            known = self._kill_driver(job)
            self._kill_worker(record, chance, known)
            self._await_job(record, known)
            if "worker" in record.detail:
                return
        record.detail["worker"] = "missed"

    def _kill_worker(self, record: Record, chance: random.Random, known: set[str]) -> None:
        """Kill the worker that restarts the job, if it is seen before the job is launched."""
        job = record.fault.job
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and not self._launched(job, known):
            if (worker := self._worker_of(job)) is not None:
                # Anywhere in its work: before it looks, while it launches, after that.
                time.sleep(some_time(chance, 0.0, 1.5))
                with contextlib.suppress(psutil.Error):
                    family = [worker, *(child for child in worker.children(recursive=True) if not _is_driver(child))]
                    self._kill(family)
                    record.detail["worker"] = worker.pid
                return
            time.sleep(0.03)

    def _worker_of(self, job: str) -> psutil.Process | None:
        rows = self.world.query(
            "SELECT id FROM task_instance WHERE dag_id = %s AND task_id = 'supervise' AND state = 'running'",
            f"job_{job}",
        )
        titles = {f"{_WORKER}{row[0]}" for row in rows}
        for process in self.world.airflow.processes("scheduler") if titles else ():
            with contextlib.suppress(psutil.Error):
                if " ".join(process.cmdline()).strip() in titles:
                    return process
        return None

    # -- Airflow's parts ---------------------------------------------------------------------------------------------

    def _part(self, name: str, away: tuple[float, float] = (0.5, 6.0)) -> Callable[[Record, random.Random], None]:
        def act(record: Record, chance: random.Random) -> None:
            world = self.world

            def fault() -> None:
                record.at = time.time()
                world.kill_component(name)

            def end() -> None:
                record.held_s = some_time(chance, *away)
                world.sleep(record.held_s)
                world.start_component(name)

            self._around(record, chance, fault, end)

        return act

    def _triggerer_killed(self, record: Record, chance: random.Random) -> None:
        self._part("triggerer")(record, chance)

    def _scheduler_killed(self, record: Record, chance: random.Random) -> None:
        self._part("scheduler")(record, chance)

    def _api_killed(self, record: Record, chance: random.Random) -> None:
        self._part("api-server")(record, chance)

    def _api_away(self, record: Record, chance: random.Random) -> None:
        # Three tries, ten seconds apart, each of which gives up within some.
        self._part("api-server", (60.0, 80.0))(record, chance)

    def _dag_processor_killed(self, record: Record, chance: random.Random) -> None:
        self._part("dag-processor")(record, chance)

    def _stalled(self, record: Record, chance: random.Random) -> None:
        world = self.world
        stalled: list[psutil.Process] = []

        def fault() -> None:
            record.at = time.time()
            world.hold("triggerer")
            stalled.extend(world.airflow.processes("triggerer"))
            for process in stalled:
                with contextlib.suppress(psutil.Error):
                    process.suspend()
            world.start_component("triggerer-2", kind="triggerer")

        def end() -> None:
            try:
                record.held_s = TRIGGERER_THRESHOLD_S + some_time(chance, 8.0, 20.0)
                world.sleep(record.held_s)
            finally:
                for process in stalled:
                    _resume(process)
            # Both at work, one of them with triggers that are no longer its own.
            world.sleep(some_time(chance, 5.0, 12.0))
            record.detail["woken_triggerer_lives"] = world.airflow.running().get("triggerer", False)
            # If it ended at that, the keeper starts it again.
            world.let_go("triggerer")
            world.airflow.stop_component("triggerer-2")

        self._around(record, chance, fault, end)

    def _second(self, record: Record, chance: random.Random) -> None:
        world = self.world

        def fault() -> None:
            record.at = time.time()
            world.start_component("triggerer-2", kind="triggerer")

        def end() -> None:
            record.held_s = some_time(chance, 10.0, 25.0)
            try:
                world.sleep(record.held_s)
            finally:
                world.kill_component("triggerer-2")

        self._around(record, chance, fault, end)

    def _postgres(self, record: Record, chance: random.Random) -> None:
        world = self.world
        down = some_time(chance, 0.0, 4.0)

        def fault() -> None:
            record.at = time.time()
            record.held_s = down
            world.postgres.restart(immediate=True, down=down)

        self._around(record, chance, fault, lambda: None)

    def _around(
        self, record: Record, chance: random.Random, fault: Callable[[], None], end: Callable[[], None]
    ) -> None:
        """Inject a fault of Airflow's, with a driver killed around it where the moment says so."""
        job = record.fault.job
        known: set[str] | None = None
        if record.fault.moment is Moment.RECOVERING:
            first = chance.random() < 0.5
            record.detail["driver_killed"] = "before" if first else "after"
            if first:
                known = self._kill_driver(job)
                self.world.sleep(some_time(chance, 0.1, 6.0))
                fault()
            else:
                fault()
                self.world.sleep(some_time(chance, 0.1, 2.0))
                known = self._kill_driver(job)
        else:
            self._await_moment(record)
            fault()
        end()
        self._await_job(record, known)

    def _await_airflow(self, record: Record) -> None:
        """Wait until Airflow is whole, and each job is watched again."""
        back = time.time()
        self.world.until(self.world.airflow_is_healthy, DEADLINE_S, "Airflow to be healthy", poll=1.0)
        # Those of the other lanes may be under a fault of their own meanwhile: that too ends watched.
        self._await_supervised(JOBS, back, 2 * DEADLINE_S)
        record.supervised_s = time.time() - record.at

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _kill(self, processes: Iterable[psutil.Process]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _kill_driver(self, job: str) -> set[str]:
        """Kill a job's driver and its JVM, and return the incarnations up to it."""
        world = self.world
        world.until(lambda: world.seen(job).phase.alive and world.driver(job), DEADLINE_S, f"{job}: a driver to kill")
        known = set(world.documents(job).incarnations())
        members = world.driver(job)
        world.mean_all(job)
        self._kill(members)
        return known

    def _perhaps_kill(self, record: Record, chance: random.Random) -> set[str] | None:
        """Bring the job's moment about; return the incarnations before the successor that comes, if one comes."""
        if record.fault.moment is not Moment.RECOVERING:
            self._await_moment(record)
            return None
        known = self._kill_driver(record.fault.job)
        wait = some_time(chance, 0.2, 7.0)
        record.detail["after_kill_s"] = wait
        self.world.sleep(wait)
        return known

    def _launched(self, job: str, known: set[str]) -> bool:
        return bool(set(self.world.documents(job).incarnations()) - known)

    def _await_batch(self, job: str, known: set[str], timeout: float) -> tuple[float, float]:
        """Wait for the first batch of a driver that is not one of these; return when it was launched, and that time.

        That it runs and finds nothing to do is as good.
        """
        world = self.world
        found: list[tuple[float, float]] = []

        def back() -> bool:
            seen = world.seen(job)
            if seen.incarnation is None or seen.incarnation in known or seen.launch is None:
                return False
            launched = seen.launch.at.timestamp()
            # A JVM that outlived its Python may have committed meanwhile; that is not the successor's.
            at = world.commit_after(job, launched) or world.idle_after(job, launched)
            if at is not None:
                found.append((launched, at))
            return at is not None

        world.until(back, timeout, f"{job} to commit a batch again", poll=0.1)
        return found[0]

    def _await_job(self, record: Record, known: set[str] | None, *, since: float | None = None) -> None:
        """Wait until the fault's job commits (by a new driver, if `known` are old ones) and is watched."""
        world, job = self.world, record.fault.job
        deadline = time.monotonic() + DEADLINE_S
        if known is None:
            moment = since or max(record.at, time.time() - 0.5)
            world.until(
                lambda: world.commit_after(job, moment) or world.idle_after(job, moment),
                DEADLINE_S,
                f"{job} to commit a batch",
                poll=0.1,
            )
            at = world.commit_after(job, record.at) or world.idle_after(job, record.at) or time.time()
        else:
            launched, at = self._await_batch(job, known, DEADLINE_S)
            record.launched_s = max(launched - record.at, 0.0)
        record.recovery_s = max(at - record.at, 0.0)
        self._await_supervised([job], time.time(), max(deadline - time.monotonic(), 60))
        record.supervised_s = time.time() - record.at

    def _await_supervised(self, jobs: Iterable[str], since: float, timeout: float) -> None:
        waiting = set(jobs)

        def all_watched() -> bool:
            waiting.difference_update([job for job in waiting if self.world.is_supervised(job, since)])
            return not waiting

        try:
            self.world.until(all_watched, timeout, "supervision", poll=0.5)
        except ChaosError as error:
            found = {job: self.world.supervisions(job) for job in waiting}
            raise ChaosError(f"{error}: unsupervised: {found}") from error

    def _stop(self, job: str) -> None:
        world = self.world
        world.mean_all(job)
        run = world.trigger("stop", job=job, reason="a cold start follows")
        world.until(lambda: world.run_state("stop", run) in ("success", "failed"), 180, f"the stop of {job}")
        if world.run_state("stop", run) != "success" or world.seen(job).phase is not Phase.STOPPED:
            raise ChaosError(f"{job} did not stop: {world.seen(job).phase}")
        own = world.run_of(job)
        world.until(lambda: world.run_state(f"job_{job}", own) in ("success", "failed"), 120, f"the run of {job}")

    def _bring_back(self, job: str) -> None:
        """Start a job anew that a fault has left to nobody: that is on record, and the other faults are tried still."""
        with contextlib.suppress(ChaosError, StreamwardenError, psutil.Error, OSError):
            if not self.world.supervisions(job):
                began = time.time()
                self.world.mean_all(job)
                self.world.trigger(f"job_{job}")
                self._await_supervised([job], began, DEADLINE_S)

    def _state(self, job: str) -> str:
        with contextlib.suppress(Exception):
            seen = self.world.seen(job)
            return f"{job}: {seen.incarnation} is {seen.phase} ({seen.reason}); {self.world.supervisions(job)}"
        return f"{job}: unknown"

    _ACTS: ClassVar[dict[Kind, Callable[[Injector, Record, random.Random], None]]] = {
        Kind.DRIVER_BOTH: _drivers,
        Kind.DRIVER_PYTHON: _drivers,
        Kind.DRIVER_JVM: _drivers,
        Kind.DRIVER_SPARES: _drivers,
        Kind.DRIVER_FROZEN: _frozen,
        Kind.DRIVER_WOKEN: _woken,
        Kind.TASK_CLEARED: _cleared,
        Kind.TASK_FAILED: _marked,
        Kind.TASK_SUCCESS: _marked,
        Kind.DAG_PAUSED: _paused,
        Kind.WORKER_KILLED: _worker,
        Kind.TRIGGERER_KILLED: _triggerer_killed,
        Kind.TRIGGERER_STALLED: _stalled,
        Kind.TRIGGERER_SECOND: _second,
        Kind.SCHEDULER_KILLED: _scheduler_killed,
        Kind.API_KILLED: _api_killed,
        Kind.API_AWAY: _api_away,
        Kind.DAG_PROCESSOR_KILLED: _dag_processor_killed,
        Kind.POSTGRES_RESTARTED: _postgres,
    }


@dataclass
class _Rest:
    """Tells whether something has held for so many seconds without a break."""

    seconds: float
    since: float | None = None

    def over(self, holds: bool) -> bool:
        now = time.monotonic()
        self.since = (self.since or now) if holds else None
        return self.since is not None and now - self.since >= self.seconds


def _is_jvm(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        # Not the one that only tells its version.
        return process.name() == "java" and "-version" not in process.cmdline()
    return False


def _is_driver(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return "streamwarden.driver" in words or process.name() == "java"
    return False


def _resume(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        process.resume()
        return True
    return False
