"""Drivers in containers of a real YARN: found again by the tag of their application."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamwarden.store.workspace import Workspace
from tests.launchers.place import LauncherPlace
from tests.yarn.cluster import YarnCluster, is_fetched

__all__ = ["YarnPlace"]


@cache
def _cluster() -> YarnCluster:
    """Return this process's cluster, which is started once: three JVMs."""
    if not is_fetched():
        pytest.skip("YARN is not fetched: run `make yarn-cluster`")
    kept = tempfile.TemporaryDirectory(prefix="streamwarden-yarn-", ignore_cleanup_errors=True)
    made = YarnCluster(Path(kept.name))
    atexit.register(kept.cleanup)
    atexit.register(made.__exit__)
    return made.__enter__()


class YarnPlace(LauncherPlace):
    """Each node has room for three containers of a job: a driver and its executor take two."""

    def __init__(self, folder: Path, store: dict[str, Any]) -> None:
        self.cluster = _cluster()
        super().__init__(folder, store)

    def profile(self, **fields: Any) -> Workspace:
        yarn = {
            "resource_managers": [self.cluster.address],
            "hadoop_conf": str(self.cluster.conf),
            "environment": ["PYTHONPATH"],
        }
        own = {
            "master": "yarn",
            "launcher": "yarn",
            "yarn": yarn,
            # The nodes are this machine.
            "same_image": True,
            "spark": {"spark.yarn.stagingDir": f"file://{self.cluster.folder}/staging"},
        }
        return super().profile(**{**own, **fields})

    def close(self) -> None:
        self.cluster.start()
        self.cluster.end_applications()
        super().close()

    def processes(self, incarnation: str) -> list[psutil.Process]:
        # Without the process that submits, which names the incarnation too.
        inside = self.cluster.containers()
        return [one for one in super().processes(incarnation) if one in inside]

    def kill_hard(self, incarnation: str) -> None:
        """Kill all of the container, as the kernel does when a machine is out of memory."""
        for process in self.processes(incarnation):
            process.kill()

    def restart_all_else(self) -> None:
        self.cluster.kill("rm")
        self.cluster.start()

    @contextmanager
    def take_room(self) -> Iterator[None]:
        self.cluster.kill("node-0")
        self.cluster.kill("node-1")
        self.cluster.until(lambda: not self.cluster.nodes(), "YARN to notice that its nodes are gone")
        yield
        self.cluster.start()
