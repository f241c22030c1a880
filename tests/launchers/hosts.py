"""Drivers that driver hosts start: found again by their request, which names the host and the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from streamwarden.model.record import utc_now
from streamwarden.runtime.launchers.hosts import driver_hosts
from streamwarden.store.workspace import Workspace
from tests.integration.conftest import REPOSITORY
from tests.launchers.place import LauncherPlace, until

__all__ = ["HostPlace", "HostsOnS3"]


class HostPlace(LauncherPlace):
    """One driver host, on the folder that it shares with the tests."""

    NAMES: ClassVar[tuple[str, ...]] = ("h1",)

    def __init__(self, folder: Path, store: dict[str, Any]) -> None:
        super().__init__(folder, store)
        self.hosts: dict[str, subprocess.Popen[bytes]] = {}

    def profile(self, **fields: Any) -> Workspace:
        return super().profile(**{"launcher": "host", **fields})

    def open(self) -> None:
        for name in self.NAMES:
            self.start_host(name)

    def close(self) -> None:
        for name in list(self.hosts):
            self.end_host(name)
        super().close()

    def restart_all_else(self) -> None:
        for name in self.NAMES:
            self.end_host(name)
            self.start_host(name)

    @contextmanager
    def take_room(self) -> Iterator[None]:
        for name in self.NAMES:
            self.end_host(name)
        yield
        for name in self.NAMES:
            self.start_host(name)

    def start_host(self, name: str, *before: str, root: Path | None = None, config: Path | None = None) -> None:
        command = [*before, sys.executable, "-m", "streamwarden.cli", "host", "--name", name, "--profile", "test"]
        began = utc_now()
        self.hosts[name] = subprocess.Popen(
            [*command, "--root", str(root or self.workspace.root)],
            env={**os.environ, "STREAMWARDEN_CONFIG": str(config or self.config)},
            cwd=REPOSITORY,
        )

        def lives() -> bool:
            process = self.hosts[name]
            assert process.poll() is None, f"driver host {name} ended with {process.returncode}"
            return any(one.name == name and one.since >= began for one in driver_hosts(self.workspace))

        until(lives, f"driver host {name}")

    def end_host(self, name: str) -> None:
        process = self.hosts.pop(name)
        process.kill()
        process.wait()


class HostsOnS3(HostPlace):
    """Two driver hosts, each with a folder and a configuration of its own: they share S3 alone."""

    NAMES = ("h1", "h2")

    def __init__(self, folder: Path, store: dict[str, Any]) -> None:
        self.folder = folder
        super().__init__(folder, store)

    def start_host(self, name: str, *before: str, root: Path | None = None, config: Path | None = None) -> None:
        root, config = root or self.folder / name / "disk", config or self.folder / name / "config"
        # As on another machine: the configuration is the same, and no file is.
        shutil.copytree(self.config, config, dirs_exist_ok=True)
        super().start_host(name, *before, root=root, config=config)

    def log(self, incarnation: str) -> str:
        (found,) = self.folder.glob(f"h*/disk/logs/*/{incarnation}/driver.log")
        return found.read_text()
