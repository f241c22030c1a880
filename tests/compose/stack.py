"""One stack of docker-compose.yml: fresh volumes, secrets and ports, and nothing left of it afterwards."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from streamwarden.devserver.rest import AirflowClient, AirflowRequestFailed
from tests.compose.engine import REPOSITORY, Engine
from tests.ports import free_ports

__all__ = ["JOBS", "Stack", "StackError"]

JOBS = ("ingest_trips", "zone_windows", "card_sessions")
_HERE = Path(__file__).parent
_FILES = ["--file", str(REPOSITORY / "docker-compose.yml"), "--file", str(_HERE / "override.yml")]
_PORTS = ("AIRFLOW_PORT", "SPARK_MASTER_PORT", "S3_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")


class StackError(Exception):
    """The stack does not do what it should."""


class Stack:
    """A running stack, as a context manager.

    Parameters
    ----------
    engine
        Serves already.
    profile
        ``cluster`` or ``compose_s3``.
    keep
        Leave everything up at the end until Ctrl-C, to look at.
    small_volume
        Have the place on 2 GB of memory, which can be filled.
    """

    def __init__(
        self, engine: Engine, *, profile: str = "cluster", keep: bool = False, small_volume: bool = False
    ) -> None:
        self.engine = engine
        self.project = f"swtest-{secrets.token_hex(3)}"
        self._keep = keep
        self._files = [*_FILES, *(["--file", str(_HERE / "small_volume.yml")] if small_volume else [])]
        self._folder = ""
        self.began = time.monotonic()
        self.profile = profile
        self.client: AirflowClient

    # -- its life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Bring it up, and wait until it is healthy."""
        self._folder = tempfile.mkdtemp(prefix="swtest-")
        env = Path(self._folder) / ".env"
        subprocess.run(
            [sys.executable, REPOSITORY / "scripts" / "make_env.py", env], check=True, stdout=subprocess.DEVNULL
        )
        lines = [f"{name}={port}" for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)]
        lines.append(f"STREAMWARDEN_PROFILE={self.profile}")
        profile = Path(self._folder) / "profile.yaml"
        profile.write_text(paced(self.profile), encoding="utf-8")
        profile.chmod(0o644)
        lines.append(f"STREAMWARDEN_TEST_PROFILE={profile}")
        with env.open("a", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
        self._given = given = dict(
            line.split("=", 1) for line in env.read_text().splitlines() if "=" in line and line[0] != "#"
        )
        self.client = AirflowClient(
            url=f"http://127.0.0.1:{given['AIRFLOW_PORT']}", user="admin", password=given["AIRFLOW_ADMIN_PASSWORD"]
        )
        try:
            self.compose("up", "--detach", "--wait", "--no-build", "--quiet-pull", timeout=900)
        except BaseException:
            self.say(self._logs())
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take it down, with its volumes."""
        self.client.close()
        if self._keep:
            self.say(f"kept until Ctrl-C: {self.client.url}, project {self.project}, secrets in {self._folder}/.env")
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    time.sleep(60)
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "20", "--remove-orphans", timeout=300)
        shutil.rmtree(self._folder)

    # -- what is done to it ------------------------------------------------------------------------------------------

    def compose(self, *arguments: str, timeout: float = 300, stdin: str | None = None) -> str:
        """Run Compose, and return what it printed.

        Raises
        ------
        StackError
            With its messages, if it fails.
        """
        env_file = str(Path(self._folder) / ".env")
        command = [*self.engine.compose, "--project-name", self.project, "--project-directory", str(REPOSITORY)]
        command += ["--env-file", env_file, "--progress", "quiet", *self._files, *arguments]
        # The environment would go before the file.
        clean = {name: value for name, value in self.engine.environment.items() if name not in self._given}
        done = subprocess.run(
            command, env=clean, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise StackError(f"compose {' '.join(arguments)}: {(done.stderr + done.stdout)[-3000:]}")
        return done.stdout

    def container(self, action: str, *services: str) -> None:
        """Have the engine itself do something to services' containers.

        Raises
        ------
        StackError
            With its message, if it fails.
        """
        command = [*self.engine.command, action, *(f"{self.project}-{service}-1" for service in services)]
        done = subprocess.run(
            command, env=self.engine.environment, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise StackError(f"{action} {' '.join(services)}: {done.stderr[-3000:]}")

    def prometheus(self, path: str, **given: str) -> dict[str, Any]:
        """Ask Prometheus, and return the data of its answer."""
        url = f"http://127.0.0.1:{self._given['PROMETHEUS_PORT']}/api/v1/{path}"
        answer = httpx.get(url, params=given, timeout=30).raise_for_status()
        data: dict[str, Any] = answer.json()["data"]
        return data

    def ask(self, what: str) -> dict[str, Any]:
        """Run one of the commands of ``inside.py`` where the volume is seen."""
        text = (_HERE / "inside.py").read_text(encoding="utf-8")
        said = self.compose("exec", "-T", "looker", "python", "-", what, stdin=text)
        found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
        return found

    def say(self, what: str) -> None:
        """Print a line with the time since the start."""
        print(f"{time.monotonic() - self.began:7.1f} s  {what}", flush=True)  # noqa: T201

    def until(self, condition: Callable[[], bool], timeout: float, what: str, poll: float = 2.0) -> float:
        """Wait for a condition, and return the seconds that it took."""
        began = time.monotonic()
        while True:
            try:
                if condition():
                    return time.monotonic() - began
                last = ""
            except (AirflowRequestFailed, httpx.HTTPError, OSError, StackError) as error:
                # What is asked may be what is down.
                last = f"; last: {str(error)[:300]}"
            if time.monotonic() - began > timeout:
                raise StackError(f"waited {timeout:.0f} s for {what}{last}\n{self.describe()}")
            time.sleep(poll)

    def describe(self) -> str:
        """Tell how the containers and the jobs are."""
        parts = []
        for look in (
            lambda: self.compose("ps", "--all", "--format", "{{.Service}} {{.Status}}"),
            lambda: json.dumps(self.ask("state"), indent=1),
        ):
            try:
                parts.append(look())
            except (StackError, subprocess.TimeoutExpired) as error:
                parts.append(str(error))
        return "\n".join(parts)

    def _logs(self) -> str:
        try:
            return self.compose("logs", "--tail", "25")
        except (StackError, subprocess.TimeoutExpired) as error:
            return str(error)

    def versions(self) -> dict[str, int]:
        """Return the newest version of each job's table; -1 for one that is not there."""
        found: dict[str, int] = self.ask("state")["tables"]
        return found

    def all_commit(self, before: dict[str, int], timeout: float, by: int = 1) -> float:
        """Wait until each table has so many new versions; return the seconds."""

        def done() -> bool:
            now = self.versions()
            return all(now[table] >= version + by for table, version in before.items())

        return self.until(done, timeout, "each job to commit")


def paced(profile: str) -> str:
    """Return a shipped profile with the pace of a test."""
    shipped = yaml.safe_load((REPOSITORY / "config" / "profiles" / f"{profile}.yaml").read_text(encoding="utf-8"))
    pace = yaml.safe_load((_HERE / "pace.yaml").read_text(encoding="utf-8"))
    return yaml.safe_dump({**shipped, "jobs": {**shipped.get("jobs", {}), **pace}})
