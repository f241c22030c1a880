"""Airflow on one machine, for ``make up``, ``make demo`` and tests: started, waited for, and reliably stopped.

The same four components as ``airflow standalone``, with the LocalExecutor, started one by one: standalone's
own parent orphans them when it is killed, and starts log servers that listen on every interface. Here everything
listens on loopback. Imports no airflow.
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
from streamwarden.errors import StreamwardenError
from streamwarden.model.process_ref import ProcessRef
from streamwarden.runtime.processes import is_alive, process_of

__all__ = ["COMPONENTS", "Standalone", "StandaloneError"]

_HOST = "127.0.0.1"
_USER = "admin"
_PASSWORDS = "simple_auth_manager_passwords.json.generated"

COMPONENTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server", "--host", _HOST),
    # The log servers listen on every interface and can't be told otherwise. On one machine nobody needs them: the API
    # server reads the files.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}
"""What runs, and how it is called."""


class StandaloneError(StreamwardenError):
    """Airflow did not start."""

    def __init__(self, what: str, *, code: str = "AIRFLOW_DID_NOT_START") -> None:
        super().__init__(code, what)


class Standalone:
    """Airflow's four components as processes of this machine.

    As a context manager it stops them on every way out, exceptions, Ctrl-C and SIGTERM included; what an earlier owner
    left behind in the same home, because it was killed, is ended at the next start or stop. Job drivers are not its
    children: they live in sessions of their own, and go on when Airflow ends.

    Not for production: SQLite unless told otherwise, and one user with a generated password.

    Parameters
    ----------
    home
        ``AIRFLOW_HOME``: database, configuration, logs. Made if it is not there; only its owner can read it.
    port
        Of the API server and UI, on loopback; 0 takes a free one at the first start.
    dags
        The DAG folder; default the checkout's.
    env
        More environment, above all ``STREAMWARDEN_PROFILE``, ``_ROOT`` and ``_CONFIG``. ``AIRFLOW__…`` settings here
        win over those made here; those of the caller's own environment are left out. Its connections and variables
        (``AIRFLOW_CONN_…``, ``AIRFLOW_VAR_…``) are not.
    parallelism
        Worker processes. 4, not Airflow's 32, which are all forked at the start.
    database
        SQLAlchemy URL of Airflow's database, which must be there, such as
        :attr:`~tests.postgres.PrivatePostgres.url`; it is neither made nor stopped here. None is an
        SQLite file in `home`.
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
        """The port in use: the one given, or of 0 the one found."""
        if self._port == 0:
            self._port = int(self._read_state().get("port", 0))
        return self._port

    @property
    def url(self) -> str:
        """Of the UI and the API."""
        return f"http://{_HOST}:{self.port}"

    @property
    def user(self) -> str:
        """Who logs in."""
        return _USER

    @property
    def password(self) -> str:
        """The password that Airflow made at the first start."""
        try:
            return str(json.loads((self.home / _PASSWORDS).read_text(encoding="utf-8"))[_USER])
        except (OSError, ValueError, KeyError) as error:
            raise StandaloneError(f"no password in {self.home / _PASSWORDS}: has Airflow started?") from error

    @property
    def client(self) -> AirflowClient:
        """A client, logged in as the one user."""
        if self._client is None:
            self._client = AirflowClient(url=self.url, user=_USER, password=lambda: self.password)
        return self._client

    def recorded_env(self) -> dict[str, str]:
        """Return the ``STREAMWARDEN_…`` environment that the Airflow now running here was given."""
        return dict(self._read_state().get("env", {}))

    def running(self) -> dict[str, bool]:
        """Tell of each component whether its process lives; of no Airflow that ever started here, nothing."""
        return {name: is_alive(process) is True for name, process in self._recorded().items()}

    def processes(self, component: str) -> list[psutil.Process]:
        """Return every living process of a component's session: its own, and all that it forked but for drivers."""
        return self._members({name: ref for name, ref in self._recorded().items() if name == component})

    def log(self, component: str) -> Path:
        """Return a component's log file."""
        return self.home / "logs" / f"{component}.log"

    def environment(self) -> dict[str, str]:
        """Return the environment of the components, and of every task and driver that they start."""
        url = self.url
        ours = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # No DAG of ours runs by itself unless it was given a schedule: none has to be held back.
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(self.parallelism),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / _PASSWORDS),
            # Its own 5 s for a lock are too few while three JVMs start on the same cores.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._database or f"sqlite:///{self.home / 'airflow.db'}?timeout=60",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "AIRFLOW__API__HOST": _HOST,
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            # DAG files change when somebody edits them: every half minute is soon enough, and costs less.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            # A job's run goes on for weeks, and each look of the scheduler at one, every second, costs 3 ms. Airflow's
            # default is to look at 20; with 5 its load stays flat as jobs are added. New runs come first in any case.
            "AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": "5",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }
        # Another Airflow's settings would mix with these. A connection is what a notifier's secrets come from.
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("AIRFLOW") or key.startswith(("AIRFLOW_CONN_", "AIRFLOW_VAR_"))
        }
        # Workers talk to the API server of this machine: a proxy can't reach it.
        no_proxy = ",".join(filter(None, (inherited.get("no_proxy") or inherited.get("NO_PROXY"), _HOST, "localhost")))
        return {**inherited, "no_proxy": no_proxy, "NO_PROXY": no_proxy, **ours, **self._given}

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self, *, timeout: float = 240.0, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start all components and wait until all are healthy.

        Parameters
        ----------
        timeout
            Seconds for all of it.
        progress
            Told in words what is being waited for.

        Raises
        ------
        StandaloneError
            If it does not come up; everything is stopped again.
        """
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
            Of :data:`COMPONENTS`; or a name of its own for a second one.
        kind
            Which of :data:`COMPONENTS` a second one is.
        """
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *COMPONENTS[kind or name]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A session of its own: no Ctrl-C meets it half-way, and all that it forks can be found by it. Tasks
                # have process groups of their own, but the same session.
                start_new_session=True,
                cwd=self.home,
                env=self.environment(),
            )
        self._processes[name] = process
        recorded = self._recorded() | {name: process_of(process.pid)}
        self._write_state(recorded)

    def wait_for_dags(self, names: list[str], *, timeout: float = 180.0) -> None:
        """Wait until DAGs of these ids were parsed.

        Raises
        ------
        StandaloneError
            With the import errors, if they do not come.
        """
        deadline = time.monotonic() + timeout
        while missing := sorted(set(names) - set(self.client.dags())):
            if time.monotonic() >= deadline:
                errors = "; ".join(f"{e['filename']}: {e['stack_trace'][-500:]}" for e in self.client.import_errors())
                raise StandaloneError(f"no DAG {', '.join(missing)} in {self.dags} ({errors or 'no import errors'})")
            time.sleep(0.5)

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, *, grace: float = 10.0) -> None:
        """Stop every component and all that they forked; works on an Airflow that another process started here, too.

        Parameters
        ----------
        grace
            Seconds for an orderly end; then everything is killed. A running task's end is not waited for any longer.
        """
        with _shielded():
            recorded = self._recorded()
            # First: the API server waits for open connections.
            if self._client is not None:
                self._client.close()
                self._client = None
            for name in recorded:
                self.stop_component(name, grace=0)
            deadline = time.monotonic() + grace
            members = self._members(recorded)
            while members and time.monotonic() < deadline:
                time.sleep(0.1)
                members = self._members(recorded)
            self._kill(recorded)
            for process in self._processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
            self._processes.clear()
            self._state.unlink(missing_ok=True)

    def stop_component(self, name: str, *, grace: float = 10.0, how: signal.Signals = signal.SIGTERM) -> None:
        """Signal one component; after `grace` seconds kill what is left of it. With 0 it is signalled only.

        Parameters
        ----------
        how
            SIGKILL for a test of how the others take it.
        """
        recorded = {key: value for key, value in self._recorded().items() if key == name}
        for process in recorded.values():
            if is_alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, how)
        if grace <= 0:
            return
        deadline = time.monotonic() + grace
        while self._members(recorded) and time.monotonic() < deadline:
            if name in self._processes:
                self._processes[name].poll()
            time.sleep(0.1)
        self._kill(recorded)

    # -- context manager ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # SIGTERM would end this process without a word, and leave Airflow behind.
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
        # Of a database elsewhere it isn't known whether it is still the one that was made.
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
        """Return which components are not healthy, as the API server sees it; all of them if it doesn't answer."""
        try:
            health = self.client.health()
        except (httpx.HTTPError, AirflowRequestFailed, ValueError):
            return ["api-server"]
        names = {"scheduler": "scheduler", "triggerer": "triggerer", "dag_processor": "dag-processor"}
        return [name for key, name in names.items() if (health.get(key) or {}).get("status") != "healthy"]

    def _members(self, recorded: Mapping[str, ProcessRef]) -> list[psutil.Process]:
        """Return every living process of the components' sessions."""
        sessions = {process.pid: process.started for process in recorded.values()}
        found = []
        for pid in psutil.pids():
            try:
                session = os.getsid(pid)
                if session not in sessions:
                    continue
                member = psutil.Process(pid)
                # A session's id is its first process's, and may be another's by now, if all of ours are long gone.
                if process_of(pid).started >= sessions[session] - 1 and member.status() != psutil.STATUS_ZOMBIE:
                    found.append(member)
            except (ProcessLookupError, PermissionError, psutil.Error):
                continue
        return found

    def _kill(self, recorded: Mapping[str, ProcessRef]) -> None:
        # Again until nothing is left: what is killed may have forked a moment before.
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
        # So that another process can stop what this one started.
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
    """Hold Ctrl-C and SIGTERM back: a second one while everything is being stopped must not leave half of it."""
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
