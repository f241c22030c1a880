"""A private Postgres for an Airflow of one machine: made in a folder, started, restarted and removed with it."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg2

from streamwarden.errors import StreamwardenError

__all__ = ["PrivatePostgres", "find_programs"]

_HOST = "127.0.0.1"
_NAME = "airflow"
_DEBIAN = Path("/usr/lib/postgresql")
# Debian makes the first at installation; the second is on every Unix.
_USERS = ("postgres", "nobody")

_SETTINGS = {
    "listen_addresses": _HOST,
    # Else it would want a folder of the system's to put a socket in.
    "unix_socket_directories": "",
    # Airflow's components keep pools: the default of 100 is reached while two triggerers run.
    "max_connections": "200",
    # It outlives every end of a process. That the machine itself loses power is of no concern to what is thrown away.
    "fsync": "off",
}


def find_programs() -> Path:
    """Return the folder of Postgres's server programs: that of PATH, or Debian's newest.

    Raises
    ------
    StreamwardenError
        ``POSTGRES_MISSING``.
    """
    found = shutil.which("postgres")
    candidates = [Path(found).resolve().parent] if found else []
    if _DEBIAN.is_dir():
        versions = [folder for folder in _DEBIAN.iterdir() if folder.name.split(".")[0].isdigit()]
        newest = sorted(versions, key=lambda folder: int(folder.name.split(".")[0]), reverse=True)
        candidates += [folder / "bin" for folder in newest]
    for folder in candidates:
        if all((folder / name).is_file() for name in ("initdb", "postgres")):
            return folder
    raise StreamwardenError("POSTGRES_MISSING", f"neither on PATH nor below {_DEBIAN}")


class PrivatePostgres:
    """One Postgres cluster with one database, on loopback, for one owner.

    As a context manager it is stopped and removed on every way out. What an earlier owner left in the folder, because
    it was killed, is ended and removed at the next start. Nothing of it is kept: not for data that matters, and it does
    not survive the machine's own crash (``fsync`` is off).

    Postgres refuses to run as root. Started by root it runs as the user ``postgres``, or ``nobody`` where that one
    is not there.

    Parameters
    ----------
    folder
        Of the cluster; made, and removed with all that is in it. Must not exist, or hold such a cluster. The user that
        Postgres runs as must be able to reach it: root's own home won't do.
    port
        On loopback; 0 takes a free one at the first start.
    """

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.folder = folder.absolute()
        self._port = port
        self._password = secrets.token_urlsafe(18)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port in use."""
        return self._port

    @property
    def url(self) -> str:
        """Address of the database, password included, as SQLAlchemy and Airflow take it."""
        return f"postgresql+psycopg2://{_NAME}:{self._password}@{_HOST}:{self._port}/{_NAME}"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "server.log"

    def connect(self, *, timeout: int = 5) -> Any:
        """Return a new connection to the database, that commits each statement by itself.

        Parameters
        ----------
        timeout
            Seconds to wait for it.
        """
        made = psycopg2.connect(
            host=_HOST, port=self._port, user=_NAME, password=self._password, dbname=_NAME, connect_timeout=timeout
        )
        made.autocommit = True
        return made

    def start(self, *, timeout: float = 60.0) -> None:
        """Make the cluster and start it.

        Parameters
        ----------
        timeout
            Seconds for it to answer.

        Raises
        ------
        StreamwardenError
            ``POSTGRES_MISSING`` or ``POSTGRES_DID_NOT_START``; nothing of it is left then.
        """
        programs = find_programs()
        self.remove()
        try:
            self._make(programs)
            self._launch(programs, timeout, database="postgres")
            self._create_database()
        except BaseException:
            self.remove()
            raise

    def restart(self, *, immediate: bool = False, down: float = 0.0, timeout: float = 60.0) -> None:
        """Stop the server and start it again on what it has.

        Parameters
        ----------
        immediate
            Let every connection break at once and recover from the log at the start, as after a crash; otherwise
            transactions are broken off in order.
        down
            Seconds to leave it away in between.
        timeout
            Seconds for it to answer again.
        """
        self._end(signal.SIGQUIT if immediate else signal.SIGINT)
        time.sleep(down)
        self._launch(find_programs(), timeout)

    def remove(self) -> None:
        """Stop the server, if it runs, and remove the cluster; works on one that another process left here, too."""
        self._end(signal.SIGQUIT)
        if not self.folder.exists():
            return
        if self.folder.is_symlink() or not (self.folder / ".streamwarden").exists():
            raise StreamwardenError("POSTGRES_DID_NOT_START", f"{self.folder} is there and is no cluster of ours")
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _make(self, programs: Path) -> None:
        # The marker first: it identifies our folder even if the following steps fail.
        self.folder.mkdir(parents=True, mode=0o700)
        (self.folder / ".streamwarden").touch()
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self._password, encoding="utf-8")
        account = _account()
        if "user" in account:
            for path in (self.folder, secret):
                os.chown(path, account["user"], account["group"])
        command = [str(programs / "initdb"), "--pgdata", str(self._data), "--username", _NAME, "--pwfile", str(secret)]
        command += ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
        made = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", check=False, **account
        )
        secret.unlink()
        if made.returncode != 0:
            said = (made.stderr or made.stdout).strip()
            raise StreamwardenError("POSTGRES_DID_NOT_START", f"initdb ended with {made.returncode}: {said[-1000:]}")

    def _launch(self, programs: Path, timeout: float, database: str = _NAME) -> None:
        if self._port == 0:
            with socket.socket() as probe:
                probe.bind((_HOST, 0))
                self._port = int(probe.getsockname()[1])
        settings = [f"--{name}={value}" for name, value in {**_SETTINGS, "port": str(self._port)}.items()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(programs / "postgres"), "-D", str(self._data), *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is its owner's to handle.
                start_new_session=True,
                cwd="/",
                **_account(),
            )
        deadline = time.monotonic() + timeout
        while True:
            if self._process.poll() is not None:
                raise StreamwardenError(
                    "POSTGRES_DID_NOT_START", f"postgres ended with {self._process.returncode}:\n{self._last_words()}"
                )
            try:
                psycopg2.connect(
                    host=_HOST, port=self._port, user=_NAME, password=self._password, dbname=database, connect_timeout=5
                ).close()
                return
            except psycopg2.OperationalError as error:
                if time.monotonic() >= deadline:
                    said = f"{str(error).strip()}\n{self._last_words()}"
                    raise StreamwardenError(
                        "POSTGRES_DID_NOT_START", f"no answer in {timeout:.0f} s: {said}"
                    ) from error
            time.sleep(0.1)

    def _create_database(self) -> None:
        made = psycopg2.connect(
            host=_HOST, port=self._port, user=_NAME, password=self._password, dbname="postgres", connect_timeout=5
        )
        try:
            made.autocommit = True
            with made.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {_NAME}")
        finally:
            made.close()

    def _end(self, how: signal.Signals) -> None:
        """Signal the server and wait for it and its children; after a time kill them."""
        server = self._server()
        if server is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            members = [server, *server.children(recursive=True)]
            server.send_signal(how)
            _, left = psutil.wait_procs(members, timeout=15)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=5)
        if self._process is not None:
            self._process.wait(timeout=5)
            self._process = None

    def _server(self) -> psutil.Process | None:
        """Return the server of this folder, also one that an earlier owner started."""
        try:
            pid = int((self._data / "postmaster.pid").read_text(encoding="utf-8").split()[0])
            found = psutil.Process(pid)
            # A pid file outlives a kill, and its number may be somebody else's by now.
            if str(self._data) in found.cmdline():
                return found
        except (OSError, ValueError, IndexError, psutil.Error):
            pass
        if self._process is not None and self._process.poll() is None:
            return psutil.Process(self._process.pid)
        return None

    def _last_words(self) -> str:
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        except OSError:
            return ""


def _account() -> dict[str, Any]:
    """Return whom Postgres runs as, as arguments of subprocess: nothing to say but for root."""
    if os.geteuid() != 0:
        return {}
    for name in _USERS:
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise StreamwardenError(
        "POSTGRES_DID_NOT_START", f"root may not run it, and there is no user {' or '.join(_USERS)}"
    )
