"""What the faults are injected into: Airflow on a private Postgres, the three jobs, and trips that keep landing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import psycopg2
import yaml
from nyc_taxi.demo.trips import densest_week
from nyc_taxi.trips.generator import GeneratorOptions, InvalidRows, generate
from nyc_taxi.trips.replay import Replay, ReplayOptions
from nyc_taxi.trips.tlc import read_tlc

from streamwarden.devserver.rest import AirflowClient, AirflowRequestFailed, new_run_id
from streamwarden.devserver.standalone import COMPONENTS, Standalone
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.spark.java_options import SHORT_LIVED
from streamwarden.store.config import config_dir
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.chaos.liveness import HUNG_S, Liveness
from tests.chaos.plan import JOBS
from tests.postgres import PrivatePostgres

T = TypeVar("T")

TABLES = ("trips", "trips_quarantine", "zone_windows", "card_sessions")
LEASE_S = 10.0
INTERVAL_S = 30
TRIGGERER_THRESHOLD_S = 30.0
"""Airflow's own default, said here because a stall must last longer."""

_PROBE_S = 5.0
"""How often Airflow is asked for the health of its components, so that one that hangs is seen."""

# Event seconds a second, and the event time of a file: one every half minute, for as long as a long run takes. Oftener,
# three jobs' batches take more of two cores than the starts, of which there are hundreds.
_SPEED = 180
_FILE_EVERY = timedelta(minutes=90)
_WEEKS = 8

_PROFILE: dict[str, Any] = {
    "name": "chaos",
    "root": "data",
    "lease": f"{LEASE_S:.0f}s",
    "heartbeat": "1s",
    "jobs": {
        "interval": f"{INTERVAL_S}s",
        "partitions": 2,
        "resources": {"cores": 1, "memory": "640m"},
        "options": {"card_sessions": {"close_after": "10s"}},
    },
    "spark": {"spark.driver.extraJavaOptions": SHORT_LIVED},
}
# A production budget is there to give up; this run is there to go on, and back-off is not what is measured.
_RESTARTS = {"max": 1000, "backoff": "200ms", "backoff_max": "500ms"}

_REPOSITORY = Path(__file__).parents[2]
_FLEET_DRIVER = "tests.chaos.fleet_driver"
_DRIVERS = frozenset({"streamwarden.driver", _FLEET_DRIVER})

_LIVE = ("deferred", "running", "queued", "scheduled", "up_for_retry", "restarting")


class ChaosError(Exception):
    """The harness itself cannot go on, or something did not come in time."""


@dataclass(frozen=True)
class Supervision:
    """A supervise task that has not ended, as Airflow's database has it.

    Parameters
    ----------
    run, state, attempt
        Its DAG run, state and try.
    heard
        The last heartbeat of the triggerer that has its trigger, seconds since the epoch; 0 if none has.
    """

    run: str
    state: str
    attempt: int
    heard: float


class World:
    """All of it, started and stopped together.

    Parameters
    ----------
    folder
        Of this run; emptied at the start.
    say
        Told in words what goes on.
    standins
        How many further jobs there are, whose drivers are stand-ins without Spark. Configured, but not deployed.
    trips
        A TLC file; None generates trips, dirt included.
    """

    def __init__(
        self, folder: Path, say: Callable[[str], None], *, standins: int = 0, trips: Path | None = None
    ) -> None:
        self.folder = folder.resolve()
        self.say = say
        self.trips = trips
        self.standins = [f"standin_{number:02}" for number in range(1, standins + 1)]
        # Short, and where Postgres's own user gets to when root runs this.
        name = hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]
        self.postgres = PrivatePostgres(Path(tempfile.gettempdir()) / f"streamwarden-chaos-{name}")
        self.config = self.folder / "config"
        self.workspace: Workspace
        self.airflow: Standalone
        self.client: AirflowClient
        self.meant: set[str] = set()
        """Incarnations that a fault is, or was, meant to end."""
        self.meant_runs: set[str] = set()
        """Who launches for runs of jobs' DAGs whose supervise task a fault has ended by hand."""
        self.ended_by_itself: list[str] = []
        """Airflow's components that ended without having been killed, and were started again."""
        self.hung: list[str] = []
        """Those of them that hung, and were killed for that."""
        self.over = threading.Event()
        self.airflow_lock = threading.RLock()
        self._held: set[str] = set()
        self._components = threading.Lock()
        self._feed_stop = threading.Event()
        self._feeding: threading.Thread | None = None
        self._database = threading.Lock()
        self._connection: Any = None

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start Postgres, Airflow, the trips and the three jobs, and wait until each has committed a batch."""
        self._make_folder()
        self.say("making a private Postgres")
        self.postgres.start()
        env = {
            "STREAMWARDEN_PROFILE": "chaos",
            "STREAMWARDEN_CONFIG": str(self.config),
            "STREAMWARDEN_ROOT": str(self.workspace.root),
            "STREAMWARDEN_HOUSEKEEPING_SCHEDULE": "",
            "STREAMWARDEN_SPARES": "1",
            "STREAMWARDEN_WATCH_SCHEDULE": "",
            # What weeks do to a thousand retries, one lost try does to two: a fresh run takes over.
            "STREAMWARDEN_SUPERVISE_RETRIES": "2",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": f"{TRIGGERER_THRESHOLD_S:.0f}",
            # Airflow's own 300 s is how long it takes to miss a task whose worker was killed. Nobody wants to wait.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
            # No DAG file changes.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        }
        if self.standins:
            env["STREAMWARDEN_DRIVER_MODULE"] = _FLEET_DRIVER
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH"))))
        home = self.folder / "airflow"
        self.airflow = Standalone(home=home, port=0, env=env, database=self.postgres.url)
        self.airflow.start(progress=self.say, timeout=300)
        self.client = self.airflow.client
        self.airflow.wait_for_dags([f"job_{job}" for job in (*JOBS, *self.standins)] + ["stop"], timeout=120)
        for keeper in (self._keep_components, self._end_what_hangs):
            threading.Thread(target=keeper, name=keeper.__name__, daemon=True).start()
        self.start_feed()
        self.say("deploying the three jobs by their DAGs")
        for job in JOBS:
            self.trigger(f"job_{job}")
        for job in JOBS:
            self.until(lambda job=job: self.commit_after(job, 0.0) is not None, 300, f"{job}: a first batch")  # type: ignore[misc]

    def stop(self) -> None:
        """Stop and remove all that runs, whatever state it is in."""
        self.over.set()
        self.stop_feed()
        if hasattr(self, "airflow"):
            # A stalled component does not hear SIGTERM.
            for name in self.airflow.running():
                for process in self.airflow.processes(name):
                    with contextlib.suppress(psutil.Error):
                        process.resume()
            with self._components:
                self.airflow.stop()
        for process in self.processes_of_run():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.postgres.remove()

    def start_feed(self) -> None:
        """Let trips land, file by file, until :meth:`stop_feed`."""
        if self.trips is not None:
            start = densest_week(read_tlc([self.trips])).replace(day=1)
            # Of that month alone: a trip of the month before is a week late, and its window long gone.
            trips = read_tlc([self.trips], start=start)
        else:
            start = datetime(2023, 3, 6)
            wrong = InvalidRows.each(_WEEKS * 25)
            trips = generate(GeneratorOptions(start=start, end=start + timedelta(weeks=_WEEKS), seed=1, invalid=wrong))
        self.say(f"{trips.num_rows:,} {'real' if self.trips else 'generated'} trips, {_SPEED} times their pace")
        options = ReplayOptions(
            speed=_SPEED,
            late_share=0.05,
            # Less than the watermark of zone_windows: nothing is dropped.
            late_max=timedelta(minutes=90),
            file_every=_FILE_EVERY,
            # Without the few of years ago, before which the replay would pause for minutes.
            start=start,
        )
        replay = Replay(trips, self.workspace.root / "landing", options)
        self._feeding = threading.Thread(target=replay.run, kwargs={"stop": self._feed_stop}, name="feed", daemon=True)
        self._feeding.start()

    def stop_feed(self) -> None:
        """End the stream of trips; a file that is not complete does not land."""
        self._feed_stop.set()
        if self._feeding is not None:
            self._feeding.join(timeout=30)

    def processes_of_run(self) -> list[psutil.Process]:
        """Return every driver and JVM of this run's folder that lives."""
        root = str(self.workspace.root) if hasattr(self, "workspace") else str(self.folder / "data")
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            ours = any(root in word for word in words)
            if ours and (not _DRIVERS.isdisjoint(words) or Path(words[0]).name == "java"):
                found.append(process)
        return found

    # -- the jobs ----------------------------------------------------------------------------------------------------

    def documents(self, job: str) -> JobDocuments:
        """Return a job's control documents."""
        return JobDocuments(self.workspace.storage, job)

    def seen(self, job: str) -> Observation:
        """Observe a job."""
        return observe(self.workspace, job)

    def checkpoint(self, job: str) -> CheckpointReader:
        """Return a reader of the checkpoint in force."""
        reference = self.documents(job).checkpoint.read()
        return CheckpointReader(self.workspace.storage, reference.path if reference else "checkpoints/none")

    def commit_after(self, job: str, moment: float) -> float | None:
        """Return when the first batch after a moment was committed, seconds since the epoch; None if none was."""
        reference = self.documents(job).checkpoint.read()
        if reference is None:
            return None
        times = []
        for path in (self.workspace.root / reference.path / "commits").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                written = path.stat().st_mtime
                if written > moment:
                    times.append(written)
        return min(times, default=None)

    def idle_after(self, job: str, moment: float) -> float | None:
        """Return when a running driver last found nothing to do, if that was after a moment."""
        heartbeat = self.seen(job).heartbeat
        if heartbeat is None or not heartbeat.idle or heartbeat.idle_at is None:
            return None
        at = heartbeat.idle_at.timestamp()
        return at if at > moment else None

    def finds_nothing(self, job: str) -> bool:
        """Tell whether a job has read all there is: idle, or with batches without rows where timers make some."""
        progress = self.seen(job).progress
        now = time.time()
        since = now - 2 * INTERVAL_S - 10
        newest = [batch for batch in progress.recent[-2:] if batch.at.timestamp() > since] if progress else []
        return self.idle_after(job, now - INTERVAL_S - 10) is not None or (
            len(newest) == 2 and all(batch.rows_in == 0 for batch in newest)
        )

    def driver(self, job: str) -> list[psutil.Process]:
        """Return the current driver's processes, Python first, then its JVM and workers."""
        seen = self.seen(job)
        process = seen.heartbeat.process if seen.heartbeat else seen.launch.process if seen.launch else None
        if process is None:
            return []
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def mean_all(self, job: str) -> None:
        """Say that every driver of a job up to now was meant to end."""
        self.meant |= set(self.documents(job).incarnations())

    def mean_run(self, job: str, run: str) -> None:
        """Say that every driver of a job up to now, and whatever a run of its DAG launches yet, is meant to end.

        A task that is marked while it launches a successor stops that one, too.
        """
        self.mean_all(job)
        self.meant_runs.add(f"airflow:job_{job}/{run}")

    def is_meant(self, job: str, incarnation: str) -> bool:
        """Tell whether a fault is, or was, meant to end a driver."""
        if incarnation in self.meant:
            return True
        launch = self.documents(job).launch(incarnation).read()
        return launch is not None and launch.by in self.meant_runs

    # -- Airflow -----------------------------------------------------------------------------------------------------

    def trigger(self, dag: str, **params: Any) -> str:
        """Start a run of a DAG, as a person does, and return its id; one run, however often the API has to be asked."""
        run = new_run_id()
        return self.api(lambda client: client.trigger_dag(dag, params, run=run))

    def run_of(self, job: str) -> str:
        """Return the run of a job's DAG that goes on, of several the first, or else the newest: one may be relieved."""
        rows = self.query(
            "SELECT run_id, state IN ('queued', 'running') AS goes_on FROM dag_run WHERE dag_id = %s"
            " ORDER BY goes_on DESC, CASE WHEN state IN ('queued', 'running') THEN id ELSE -id END",
            f"job_{job}",
        )
        return str(rows[0][0])

    def reliefs(self) -> int:
        """Return how many runs have relieved others, whose supervise tasks had few tries left."""
        return int(self.query("SELECT count(*) FROM dag_run WHERE run_id LIKE %s", "relief%")[0][0])

    def api(self, call: Callable[[AirflowClient], T], *, timeout: float = 150.0) -> T:
        """Ask Airflow's API, again and again while its server is away, as a person does."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return call(self.client)
            except (httpx.HTTPError, AirflowRequestFailed) as error:
                refused = isinstance(error, AirflowRequestFailed) and ": 5" not in str(error)
                if refused or time.monotonic() >= deadline or self.over.is_set():
                    raise
                time.sleep(0.5)

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Ask Airflow's database; while it is away, until it is back. Cheaper than the API, and there without it."""
        deadline = time.monotonic() + 90
        with self._database:
            while True:
                try:
                    if self._connection is None:
                        self._connection = self.postgres.connect()
                    with self._connection.cursor() as cursor:
                        cursor.execute(statement, parameters)
                        return list(cursor.fetchall())
                except psycopg2.Error:
                    self._connection = None
                    if time.monotonic() >= deadline or self.over.is_set():
                        raise
                    time.sleep(0.2)

    def supervisions(self, job: str) -> list[Supervision]:
        """Return the supervise tasks of a job's DAG that have not ended."""
        rows = self.query(
            "SELECT ti.run_id, ti.state, ti.try_number, extract(epoch FROM j.latest_heartbeat)"
            " FROM task_instance ti LEFT JOIN trigger t ON t.id = ti.trigger_id"
            " LEFT JOIN job j ON j.id = t.triggerer_id"
            " WHERE ti.dag_id = %s AND ti.task_id = 'supervise' AND ti.state IN %s",
            f"job_{job}",
            _LIVE,
        )
        return [Supervision(run, state, attempt, float(heard or 0)) for run, state, attempt, heard in rows]

    def is_supervised(self, job: str, since: float) -> bool:
        """Tell whether exactly one task watches a job, in a triggerer that was heard of since a moment."""
        found = self.supervisions(job)
        return len(found) == 1 and found[0].state == "deferred" and found[0].heard > since

    def task_state(self, dag: str, run: str, task: str) -> str | None:
        """Return a task's state."""
        rows = self.query(
            "SELECT state FROM task_instance WHERE dag_id = %s AND run_id = %s AND task_id = %s", dag, run, task
        )
        return rows[0][0] if rows else None

    def run_state(self, dag: str, run: str) -> str | None:
        """Return a DAG run's state."""
        rows = self.query("SELECT state FROM dag_run WHERE dag_id = %s AND run_id = %s", dag, run)
        return rows[0][0] if rows else None

    def kill_component(self, name: str) -> None:
        """Kill a component and all that it forked at once, as the end of its container does."""
        with self._components:
            self._held.add(name)
            self.airflow.stop_component(name, how=signal.SIGKILL, grace=0.2)

    def start_component(self, name: str, kind: str | None = None) -> None:
        """Start a component, and see to it that it goes on."""
        with self._components:
            self.airflow.start_component(name, kind=kind)
            self._held.discard(name)

    def hold(self, name: str) -> None:
        """Leave a component alone, though it may end."""
        self._held.add(name)

    def let_go(self, name: str) -> None:
        """Supervise a component again."""
        self._held.discard(name)

    def airflow_is_healthy(self) -> bool:
        """Return whether the API server answers that every component is healthy."""
        return not self.airflow.unhealthy()

    # -- waiting -----------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], object], timeout: float, what: str, *, poll: float = 0.2) -> None:
        """Wait for a condition.

        Raises
        ------
        ChaosError
            If it does not come in time, or the run is over.
        """
        deadline = time.monotonic() + timeout
        while not condition():
            if self.over.is_set():
                raise ChaosError("the run was ended")
            if time.monotonic() >= deadline:
                raise ChaosError(f"waited {timeout:.0f} s for {what}")
            time.sleep(poll)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the run's end."""
        if self.over.wait(seconds):
            raise ChaosError("the run was ended")

    @contextlib.contextmanager
    def airflow_to_itself(self) -> Iterator[None]:
        """Keep other faults of Airflow's own parts away."""
        while not self.airflow_lock.acquire(timeout=0.5):
            if self.over.is_set():
                raise ChaosError("the run was ended")
        try:
            yield
        finally:
            self.airflow_lock.release()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _make_folder(self) -> None:
        left = self.folder / "airflow"
        if left.exists():
            Standalone(home=left).stop()
        for process in self.processes_of_run():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(config_dir() / "jobs", self.config / "jobs")
        (self.config / "profiles").mkdir()
        (self.config / "profiles" / "chaos.yaml").write_text(yaml.safe_dump(_PROFILE), encoding="utf-8")
        for job in JOBS:
            path = self.config / "jobs" / f"{job}.yaml"
            spec = yaml.safe_load(path.read_text(encoding="utf-8"))
            path.write_text(yaml.safe_dump({**spec, "restarts": _RESTARTS}), encoding="utf-8")
        for job in self.standins:
            spec = {
                "name": job,
                "module": "spark_jobs.none",
                "source": {"kind": "files", "path": "landing"},
                "sinks": [{"table": job, "mode": "append"}],
                # A twelfth of the jobs' own interval. What stand-ins use slows what is measured beside them.
                "options": {"standin_batch_s": 5},
            }
            (self.config / "jobs" / f"{job}.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
        self.workspace = open_workspace("chaos", config=self.config)

    def _keep_components(self) -> None:
        """Start components again that end, as systemd or a container's restart policy does."""
        while not self.over.wait(1.0):
            with self._components:
                for name, alive in self._kept().items():
                    if not alive and not self.over.is_set():
                        self.ended_by_itself.append(name)
                        self.say(f"{name} ended by itself; started again")
                        self.airflow.start_component(name)

    def _end_what_hangs(self) -> None:
        """Kill components that are unhealthy for long, as a liveness probe does; they are started again afterwards.

        A scheduler whose database has crashed may wait for ever for a worker that waits for it (Airflow 3.3.2,
        ``LocalExecutor.end``).
        """
        liveness = Liveness()
        while not self.over.wait(_PROBE_S):
            unwell = self.airflow.unhealthy()
            if "api-server" in unwell:
                # Without its answer, the others' health is unknown.
                continue
            with self._components:
                alive = [name for name, lives in self._kept().items() if lives]
                for name in liveness.hung(unwell, alive, time.monotonic()):
                    self.hung.append(name)
                    self.say(f"{name} lives, and has been unwell for {HUNG_S:.0f} s: killed")
                    self.airflow.stop_component(name, how=signal.SIGKILL, grace=0.2)

    def _kept(self) -> dict[str, bool]:
        """Return whether each supervised component is alive."""
        running = self.airflow.running().items()
        return {name: alive for name, alive in running if name in COMPONENTS and name not in self._held}


def some_time(chance: random.Random, low: float, high: float) -> float:
    """Return a delay within bounds, in seconds."""
    return round(chance.uniform(low, high), 2)


def now_text() -> str:
    """Return the time for the log."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def is_running(seen: Observation) -> bool:
    """Tell whether a job's driver does its work."""
    return seen.phase is Phase.RUNNING
