"""The container engine: Docker where ``docker info`` answers, else podman on its Docker-compatible socket.

Podman is for a machine where root can do little: no systemd, no registry. Its storage and Compose are below
``.tools/compose``, made by :mod:`tests.compose.stand_in`. It is served for the time of a test only.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["CONTAINERS_CONF", "FOLDER", "IMAGE", "REPOSITORY", "Engine", "EngineError", "Podman", "find_engine"]

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / ".tools" / "compose"
IMAGE = "streamwarden:0.1.0"
CONTAINERS_CONF = Path(__file__).parent / "images" / "containers.conf"

_LOOK_S = 10.0
"""Seconds between two health checks of a starting container. Their own intervals are a matter of systemd's timers."""

_ALL_EACH = 6
"""Each so many times what is healthy is checked, too: a dozen checks at once fill two cores for seconds."""


class EngineError(Exception):
    """What is missing or went wrong, and what to do."""


class Engine(ABC):
    """What a stack needs of an engine."""

    @property
    @abstractmethod
    def compose(self) -> list[str]:
        """The command of Compose."""

    @property
    @abstractmethod
    def command(self) -> list[str]:
        """The engine's own command."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of both commands."""
        return os.environ

    @property
    def monitoring(self) -> list[str]:
        """The services of the profile ``monitoring`` that have images here."""
        return ["metrics-targets", "prometheus", "grafana"]

    @abstractmethod
    def build(self) -> None:
        """Build the image of docker-compose.yml."""

    @contextmanager
    def served(self, project: str) -> Iterator[None]:
        """Have the engine run, with health checks of a project's containers."""
        yield


class Docker(Engine):
    """Docker with its Compose plugin."""

    @property
    def command(self) -> list[str]:
        return ["docker"]

    @property
    def compose(self) -> list[str]:
        return ["docker", "compose"]

    def build(self) -> None:
        subprocess.run([*self.compose, "build"], cwd=REPOSITORY, env={**os.environ, **_no_secrets()}, check=True)


class Podman(Engine):
    """Podman with its storage below :data:`FOLDER`."""

    def __init__(self) -> None:
        # A socket's path may have a hundred bytes; and two checkouts must not meet.
        self.run = Path("/run") / f"swc-{hashlib.sha256(str(FOLDER).encode()).hexdigest()[:8]}"

    @property
    def command(self) -> list[str]:
        return ["podman", "--root", str(FOLDER / "storage"), "--runroot", str(self.run)]

    @property
    def compose(self) -> list[str]:
        return [str(FOLDER / "docker-compose")]

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "CONTAINERS_CONF": str(CONTAINERS_CONF),
            "DOCKER_HOST": f"unix://{self.run}/podman.sock",
            # Without systemd podman may not make timers of health checks.
            "DISABLE_HC_SYSTEMD": "true",
        }

    @property
    def monitoring(self) -> list[str]:
        # Debian has no package of Grafana.
        return ["metrics-targets", "prometheus"]

    def build(self) -> None:
        # Through the socket no layer is found again.
        build = [*self.command, "build", "--tag", f"docker.io/library/{IMAGE}", "--file", "docker/Dockerfile", "."]
        subprocess.run(build, cwd=REPOSITORY, env=self.environment, check=True)

    @contextmanager
    def served(self, project: str) -> Iterator[None]:
        self.run.mkdir(mode=0o700, exist_ok=True)
        log = (FOLDER / "service.log").open("ab")
        service = [*self.command, "system", "service", "--time=0", f"unix://{self.run}/podman.sock"]
        process = subprocess.Popen(service, env=self.environment, stdout=log, stderr=log)
        ended = threading.Event()
        checks = threading.Thread(target=self._check, args=(project, ended), daemon=True)
        try:
            deadline = time.monotonic() + 60
            while not (self.run / "podman.sock").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise EngineError(f"podman does not serve its socket: {FOLDER / 'service.log'}")
                time.sleep(0.2)
            checks.start()
            yield
        finally:
            ended.set()
            process.terminate()
            process.wait()
            if checks.is_alive():
                checks.join()
            log.close()
            (self.run / "podman.sock").unlink(missing_ok=True)

    def _check(self, project: str, ended: threading.Event) -> None:
        """Run every container's health check, as systemd's timers would."""
        label = f"label=com.docker.compose.project={project}"
        listing = [*self.command, "ps", "--filter", label, "--filter", "status=running", "--format", "{{.Names}}"]
        rounds = itertools.count()
        while not ended.wait(_LOOK_S):
            those = [] if next(rounds) % _ALL_EACH == 0 else ["--filter", "health=starting"]
            look = [*listing, *those]
            names = subprocess.run(look, env=self.environment, capture_output=True, text=True, check=False)
            running = [
                subprocess.Popen(
                    [*self.command, "healthcheck", "run", name],
                    env=self.environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for name in names.stdout.split()
            ]
            for check in running:
                check.wait()


def find_engine() -> Engine:
    """Return Docker if it answers, else podman.

    Raises
    ------
    EngineError
        If neither is ready.
    """
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        return Docker()
    if shutil.which("podman") and (FOLDER / "docker-compose").is_file():
        return Podman()
    raise EngineError(
        "no container engine: `docker info` fails, and podman is not set up.\n"
        "  What to do: start Docker; or on a Debian machine of your own, as root, run `make compose-engine`."
    )


def _no_secrets() -> dict[str, str]:
    """Return values for what docker-compose.yml requires: a build uses none of them."""
    text = (REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8")
    names = {part.split(":?")[0] for part in text.split("${")[1:] if ":?" in part.split("}")[0]}
    return dict.fromkeys(names, "unused")
