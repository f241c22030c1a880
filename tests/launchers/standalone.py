"""Drivers whose executors are Spark standalone's: a real master and two workers of pyspark's own jars, on loopback.

The driver itself is a process of this machine, as for :mod:`tests.launchers.local`: standalone starts no drivers in
Python.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from streamwarden.spark.jars import spark_folder
from streamwarden.store.workspace import Workspace
from tests.launchers.place import LauncherPlace, until
from tests.ports import free_ports

__all__ = ["SparkCluster", "StandalonePlace", "cluster"]

WORKERS = 2
_ENDPOINT = "AWS_ENDPOINT_URL_S3"


class SparkCluster:
    """A master and workers. The master remembers its workers and applications in a folder, as in docker-compose.yml."""

    def __init__(self, folder: Path, *, cores: int = 2, memory: str = "2g") -> None:
        self._folder, self._cores, self._memory = folder, cores, memory
        self._home = spark_folder()
        self._port, self._page = free_ports(2)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._endpoint: str | None = None
        self.log = folder / "daemons.log"

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def state(self) -> dict[str, Any]:
        """Return what the master says of workers and applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def start(self) -> None:
        """Start the daemons that do not run. For another S3 server start all anew: executors have their environment."""
        if self._endpoint != (endpoint := os.environ.get(_ENDPOINT)):
            self.end()
            self._endpoint = endpoint
        if "master" not in self._daemons:
            self.start_master()
        for number in range(WORKERS):
            if f"worker{number}" not in self._daemons:
                self.start_worker(number)
        until(lambda: self._alive() == WORKERS, "the workers at the master", timeout=180)

    def end(self) -> None:
        for name in list(self._daemons):
            self.kill(name)

    def start_master(self) -> None:
        options = "-Dspark.deploy.recoveryMode=FILESYSTEM"
        options += f" -Dspark.deploy.recoveryDirectory={self._folder}/master -Dspark.deploy.maxExecutorRetries=-1"
        arguments = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page)]
        self._daemon("master", "org.apache.spark.deploy.master.Master", arguments, options)

    def start_worker(self, number: int) -> None:
        arguments = ["--host", "127.0.0.1", "--cores", str(self._cores), "--memory", self._memory, "--webui-port", "0"]
        arguments += ["--work-dir", str(self._folder / f"work{number}"), self.url]
        self._daemon(f"worker{number}", "org.apache.spark.deploy.worker.Worker", arguments, "")

    def kill(self, name: str) -> None:
        """Kill a daemon; with a worker its executors, as a machine would."""
        process = self._daemons.pop(name)
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        for one in below:
            if one.is_running():
                one.kill()
        process.wait(30)

    def kill_executors(self) -> int:
        """Kill every executor's process, and nothing else; return how many there were."""
        below = self._executors()
        for one in below:
            one.kill()
        return len(below)

    def executors(self) -> int:
        return len(self._executors())

    def kill_worker_without_executors(self) -> None:
        (idle,) = [name for name, below in self._by_worker().items() if not below]
        self.kill(idle)

    def _by_worker(self) -> dict[str, list[psutil.Process]]:
        workers = {name: process for name, process in self._daemons.items() if name.startswith("worker")}
        return {name: _java_below(one.pid) for name, one in workers.items()}

    def _executors(self) -> list[psutil.Process]:
        return [one for below in self._by_worker().values() for one in below]

    def _alive(self) -> int:
        try:
            return sum(one["state"] == "ALIVE" for one in self.state()["workers"])
        except (OSError, KeyError, json.JSONDecodeError):
            # A master that is starting answers before it has its pages.
            return -1

    def _daemon(self, name: str, module: str, arguments: list[str], options: str) -> None:
        with self.log.open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [str(self._home / "bin" / "spark-class"), module, *arguments],
                env={
                    **os.environ,
                    "SPARK_HOME": str(self._home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_DAEMON_MEMORY": "192m",
                    "SPARK_MASTER_OPTS": options,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _java_below(pid: int) -> list[psutil.Process]:
    """Return a worker's executors, without the shells that Hadoop starts now and then, and leaves as zombies."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.name() == "java":
                found.append(child)
    return found


@cache
def cluster() -> SparkCluster:
    """Return this process's cluster, which is started once: three JVMs."""
    kept = tempfile.TemporaryDirectory(prefix="streamwarden-spark-")
    made = SparkCluster(Path(kept.name))
    atexit.register(kept.cleanup)
    atexit.register(made.end)
    made.start()
    return made


class StandalonePlace(LauncherPlace):
    """Executors on the cluster; a worker has two cores, and memory for one executor."""

    ROW_MS = 10

    def __init__(self, folder: Path, store: dict[str, Any]) -> None:
        self.cluster = cluster()
        self.cluster.start()
        super().__init__(folder, store)

    def profile(self, **fields: Any) -> Workspace:
        # The workers run from the drivers' installation.
        jobs = {"interval": "500ms", "partitions": 2, "resources": {"cores": 1, "memory": "1200m"}}
        return super().profile(**{"master": self.cluster.url, "same_image": True, "jobs": jobs, **fields})

    def close(self) -> None:
        super().close()
        self.cluster.start()
        # The next test's slots.
        until(lambda: not self.cluster.state()["activeapps"], "the end of its applications", timeout=90)

    def in_task(self) -> None:
        """Wait until an executor works on a batch. It needs 5 s for 500 rows."""
        batches = self.batches()
        until(lambda: batches.last_offset() != batches.last_commit(), "a batch that is begun")
        time.sleep(1.5)

    def restart_all_else(self) -> None:
        self.cluster.kill("master")
        self.cluster.start()

    @contextmanager
    def take_room(self) -> Iterator[None]:
        for number in range(WORKERS):
            self.cluster.kill(f"worker{number}")
        yield
        self.cluster.start()
