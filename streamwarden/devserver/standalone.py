"""Airflow on one machine, for ``make up``, ``make demo`` and tests: start, wait until healthy, stop reliably.

The same four components as ``airflow standalone``, with the LocalExecutor, started one by one. When the standalone
parent is killed, it orphans them, and its log servers listen on every interface. Here all listen on loopback. This
module imports no airflow.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import httpx
import psutil

from streamwarden.devserver.rest import AirflowClient, AirflowRequestFailed
from streamwarden.errors import ErrorCode, StreamwardenError, require_extra
from streamwarden.model.process_ref import ProcessRef
from streamwarden.runtime.polling import Deadline
from streamwarden.runtime.processes import is_alive, process_of

__all__ = ["COMPONENTS", "Standalone", "StandaloneError"]

_HOST = "127.0.0.1"
_USER = "admin"
_PASSWORDS = "simple_auth_manager_passwords.json.generated"

COMPONENTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server", "--host", _HOST),
    # The log servers listen on every interface, and no setting changes that. On one machine they are not needed: the
    # API server reads the files.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}
"""The components, with their commands."""


class StandaloneError(StreamwardenError):
    """Airflow did not start."""

    def __init__(self, what: str, *, code: ErrorCode = "AIRFLOW_DID_NOT_START") -> None:
        super().__init__(code, what)


class Standalone:
    """Airflow's four components as processes of this machine.

    As a context manager it stops the components on every exit: exceptions, Ctrl-C and SIGTERM. If an earlier owner in
    the same home was killed, the next start or stop ends its processes. Job drivers are not children of Airflow: they
    have their own sessions, and survive a stop.

    Not for production: SQLite by default, and one user with a generated password.

    Parameters
    ----------
    home
        ``AIRFLOW_HOME``: database, configuration, logs. Created if missing; readable by its owner only.
    port
        Port of API server and UI, on loopback; 0 takes a free port at the first start.
    dags
        The DAG folder; default the checkout's.
    env
        More environment, above all ``STREAMWARDEN_PROFILE``, ``_ROOT`` and ``_CONFIG``. ``AIRFLOW__…`` settings here
        override this class's; those of the caller's environment are ignored, except connections and variables
        (``AIRFLOW_CONN_…``, ``AIRFLOW_VAR_…``).
    parallelism
        Worker processes. 4, not Airflow's 32, all of which are forked at the start.
    database
        SQLAlchemy URL of an existing database for Airflow, such as :attr:`~tests.postgres.PrivatePostgres.url`. This
        class neither creates nor stops it. None is an SQLite file in `home`.
    """

    def __init__(
        self,
        *,
        home: Path,
        port: int = 8080,
        dags: Path | None = None,
        env: Mapping[str, str] | None = None,
        parallelism: int = 4,
        database: str | None = None,
    ) -> None:
        self.home = home.resolve()
        self.dags = (dags or Path(__file__).resolve().parents[2] / "dags").resolve()
        self.parallelism = parallelism
        self._database = database
        self._port = port
        self._given = dict(env or {})
        self._state = self.home / "standalone.json"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._client: AirflowClient | None = None
        self._sigterm: Any = None

    # -- what there is to know ---------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port in use: the given port, or the free port found for 0."""
        if self._port == 0:
            self._port = int(self._read_state().get("port", 0))
        return self._port

    @property
    def url(self) -> str:
        """URL of the UI and the API."""
        return f"http://{_HOST}:{self.port}"

    @property
    def user(self) -> str:
        """The user's name."""
        return _USER

    @property
    def password(self) -> str:
        """The password that Airflow created at the first start."""
        try:
            return str(json.loads((self.home / _PASSWORDS).read_text(encoding="utf-8"))[_USER])
        except (OSError, ValueError, KeyError) as error:
            raise StandaloneError(f"no password in {self.home / _PASSWORDS}: has Airflow started?") from error

    @property
    def client(self) -> AirflowClient:
        """A client, logged in as the only user."""
        if self._client is None:
            self._client = AirflowClient(url=self.url, user=_USER, password=lambda: self.password)
        return self._client

    def recorded_env(self) -> dict[str, str]:
        """Return the ``STREAMWARDEN_…`` environment of the Airflow now running here."""
        return dict(self._read_state().get("env", {}))

    def running(self) -> dict[str, bool]:
        """Return for each component whether its process is alive; empty if no Airflow ever started here."""
        return {name: is_alive(process) is True for name, process in self._recorded().items()}

    def processes(self, component: str) -> list[psutil.Process]:
        """Return all live processes of a component's session: its own and its children, except drivers."""
        return self._members({name: ref for name, ref in self._recorded().items() if name == component})

    def log(self, component: str) -> Path:
        """Return a component's log file."""
        return self.home / "logs" / f"{component}.log"

    def environment(self) -> dict[str, str]:
        """Return the environment of the components, and of all tasks and drivers that they start."""
        url = self.url
        ours = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            # The pages; another folder of DAGs may have no such neighbour.
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.dags.parent / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # None of our DAGs runs without an explicit schedule, so none has to be paused.
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(self.parallelism),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / _PASSWORDS),
            # The default of 5 s for a lock is too short while three JVMs start on the same cores.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._database or f"sqlite:///{self.home / 'airflow.db'}?timeout=60",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "AIRFLOW__API__HOST": _HOST,
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            # DAG files change only when somebody edits them: every 30 s is soon enough, and costs less.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            # A job's run lasts for weeks, and each check of a run by the scheduler, once a second, costs 3 ms. The
            # default is 20 runs in a loop; with 5 the load stays flat as jobs are added. New runs come first.
            "AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": "5",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }
        # Other Airflow settings would mix with these. Connections stay, because notifiers read their secrets from them.
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("AIRFLOW") or key.startswith(("AIRFLOW_CONN_", "AIRFLOW_VAR_"))
        }
        # Workers connect to the API server of this machine, which a proxy can't reach.
        no_proxy = ",".join(filter(None, (inherited.get("no_proxy") or inherited.get("NO_PROXY"), _HOST, "localhost")))
        return {**inherited, "no_proxy": no_proxy, "NO_PROXY": no_proxy, **ours, **self._given}

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self, *, timeout: float = 240.0, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start all components, and wait until all are healthy.

        Parameters
        ----------
        timeout
            Seconds for the whole start.
        progress
            Called with a description of each wait.

        Raises
        ------
        StandaloneError
            If it does not become healthy; everything is stopped again.
        StreamwardenError
            ``EXTRA_MISSING`` if Airflow is not installed.
        """
        require_extra("airflow", "airflow")
        deadline = time.monotonic() + timeout
        self.stop()
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        (self.home / "logs").mkdir(exist_ok=True)
        self._claim_port()
        try:
            self._migrate(deadline, progress)
            progress("starting Airflow's components")
            for name in COMPONENTS:
                self.start_component(name)
            self._await_health(deadline, progress)
        except BaseException:
            self.stop()
            raise

    def start_component(self, name: str, *, kind: str | None = None) -> None:
        """Start one component, without waiting for it.

        Parameters
        ----------
        name
            A name of :data:`COMPONENTS`, or another name for a second instance.
        kind
            Which of :data:`COMPONENTS` a second instance is.
        """
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *COMPONENTS[kind or name]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Own session: Ctrl-C does not reach the component, and the session identifies all its children. Tasks
                # have their own process groups, but the same session.
                start_new_session=True,
                cwd=self.home,
                env=self.environment(),
            )
        self._processes[name] = process
        recorded = self._recorded() | {name: process_of(process.pid)}
        self._write_state(recorded)

    def wait_for_dags(self, names: list[str], *, timeout: float = 180.0) -> None:
        """Wait until DAGs with these ids are parsed.

        Raises
        ------
        StandaloneError
            With the import errors, if the DAGs do not appear.
        """
        deadline = Deadline(timeout)
        while missing := sorted(set(names) - set(self.client.dags())):
            if not deadline.pause(0.5):
                errors = "; ".join(f"{e['filename']}: {e['stack_trace'][-500:]}" for e in self.client.import_errors())
                raise StandaloneError(f"no DAG {', '.join(missing)} in {self.dags} ({errors or 'no import errors'})")

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, *, grace: float = 10.0) -> None:
        """Stop every component and its children; also works for an Airflow that another process started here.

        Parameters
        ----------
        grace
            Seconds for an orderly end, then all are killed. Running tasks get no more time.
        """
        with _shielded():
            recorded = self._recorded()
            # First, because the API server waits for open connections.
            if self._client is not None:
                self._client.close()
                self._client = None
            for name in recorded:
                self.stop_component(name, grace=0)
            deadline = Deadline(grace)
            while self._members(recorded) and deadline.pause(0.1):
                pass
            self._kill(recorded)
            for process in self._processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
            self._processes.clear()
            self._state.unlink(missing_ok=True)

    def stop_component(self, name: str, *, grace: float = 10.0, how: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to one component; after `grace` seconds kill the rest of it. With 0, only send the signal.

        Parameters
        ----------
        how
            SIGKILL for tests of the other components' reaction.
        """
        recorded = {key: value for key, value in self._recorded().items() if key == name}
        for process in recorded.values():
            if is_alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, how)
        if grace <= 0:
            return
        deadline = Deadline(grace)
        while self._members(recorded) and deadline.pause(0.1):
            if name in self._processes:
                self._processes[name].poll()
        self._kill(recorded)

    # -- context manager ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # An unhandled SIGTERM would end this process at once, and leave Airflow running.
            self._sigterm = signal.signal(signal.SIGTERM, _exit_by_signal)
        try:
            self.start()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._restore()

    def _restore(self) -> None:
        if self._sigterm is not None:
            signal.signal(signal.SIGTERM, self._sigterm)
            self._sigterm = None

    # -- inside ------------------------------------------------------------------------------------------------------

    def _claim_port(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, self._port))
            except OSError as error:
                raise StandaloneError(
                    f"port {self._port} is taken ({error.strerror})", code="AIRFLOW_PORT_TAKEN"
                ) from error
            self._port = int(probe.getsockname()[1])
        self._write_state({})

    def _migrate(self, deadline: float, progress: Callable[[str], None]) -> None:
        version = importlib.metadata.version("apache-airflow")
        done = self.home / f".database-{version}"
        # An external database may have been replaced, so it is always migrated.
        if self._database is None and done.exists() and (self.home / "airflow.db").exists():
            return
        progress("making Airflow's database")
        with self.log("migrate").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "db", "migrate"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.home,
                env=self.environment(),
            )
        self._processes["migrate"] = process
        self._write_state({"migrate": process_of(process.pid)})
        try:
            code = process.wait(timeout=max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired as error:
            raise StandaloneError(f"the database was not made in time; see {self.log('migrate')}") from error
        if code != 0:
            raise StandaloneError(f"`airflow db migrate` ended with {code}:\n{_tail(self.log('migrate'))}")
        del self._processes["migrate"]
        self._write_state({})
        done.touch()

    def _await_health(self, deadline: float, progress: Callable[[str], None]) -> None:
        said = ""
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise StandaloneError(f"{name} ended with {process.returncode}:\n{_tail(self.log(name))}")
            waiting = self.unhealthy()
            if not waiting:
                return
            if time.monotonic() >= deadline:
                raise StandaloneError(
                    f"not healthy in time: {', '.join(waiting)}; their logs are in {self.home / 'logs'}"
                )
            if (now := "waiting for " + ", ".join(waiting)) != said:
                progress(now)
                said = now
            time.sleep(0.3)

    def unhealthy(self) -> list[str]:
        """Return the unhealthy components, as the API server reports them; all if it doesn't answer."""
        try:
            health = self.client.health()
        except (httpx.HTTPError, AirflowRequestFailed, ValueError):
            return ["api-server"]
        names = {"scheduler": "scheduler", "triggerer": "triggerer", "dag_processor": "dag-processor"}
        return [name for key, name in names.items() if (health.get(key) or {}).get("status") != "healthy"]

    def _members(self, recorded: Mapping[str, ProcessRef]) -> list[psutil.Process]:
        """Return all live processes of the components' sessions."""
        sessions = {process.pid: process.started for process in recorded.values()}
        found = []
        for pid in psutil.pids():
            try:
                session = os.getsid(pid)
                if session not in sessions:
                    continue
                member = psutil.Process(pid)
                # A session's id is its first process's id, which may be reused once our processes are gone.
                if process_of(pid).started >= sessions[session] - 1 and member.status() != psutil.STATUS_ZOMBIE:
                    found.append(member)
            except (ProcessLookupError, PermissionError, psutil.Error):
                continue
        return found

    def _kill(self, recorded: Mapping[str, ProcessRef]) -> None:
        # Repeat until no process is left: a killed process may have forked a moment before.
        for _ in range(50):
            members = self._members(recorded)
            if not members:
                return
            for member in members:
                with contextlib.suppress(psutil.Error):
                    member.kill()
            for process in self._processes.values():
                process.poll()
            time.sleep(0.1)

    def _recorded(self) -> dict[str, ProcessRef]:
        found = self._read_state().get("processes", {})
        return {name: ProcessRef.model_validate(value) for name, value in found.items()}

    def _read_state(self) -> dict[str, Any]:
        try:
            found = json.loads(self._state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write_state(self, processes: Mapping[str, ProcessRef]) -> None:
        # Recorded so that another process can stop the components.
        found = {
            "port": self._port,
            "env": {key: value for key, value in self._given.items() if key.startswith("STREAMWARDEN_")},
            "processes": {name: ref.model_dump() for name, ref in processes.items()},
        }
        temporary = self._state.with_suffix(".new")
        temporary.write_text(json.dumps(found), encoding="utf-8")
        temporary.replace(self._state)


def _exit_by_signal(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _shielded() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM: a second signal must not interrupt the stop half-way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tail(path: Path, lines: int = 30) -> str:
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return f"(no {path})"
