from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from nyc_taxi.demo.verify import read_table

from streamwarden.model.status import Lease
from streamwarden.runtime.processes import kill
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation, observe

REPOSITORY = Path(__file__).parents[2]
BY = "test"
# What a file system allows, and an address, a shell, a pattern or Java's options read as something else.
ROOT = "My Streams (v1) #2 100%"


class Place:
    """A workspace in a temporary folder, whose drivers are real processes."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "config"
        shutil.copytree(REPOSITORY / "config" / "jobs", self.config / "jobs")
        (self.config / "profiles").mkdir()
        self.profile()

    def profile(self, **fields: Any) -> Workspace:
        content = {
            "name": "test",
            "root": ROOT,
            "heartbeat": "500ms",
            "lease": "30s",
            "jobs": {"interval": "500ms", "partitions": 2, "options": {"card_sessions": {"close_after": "5s"}}},
            **fields,
        }
        (self.config / "profiles" / "test.yaml").write_text(yaml.safe_dump(content))
        self.workspace = open_workspace("test", config=self.config)
        return self.workspace

    def job(self, name: str, **fields: Any) -> None:
        path = self.config / "jobs" / f"{name}.yaml"
        content = yaml.safe_load(path.read_text()) if path.exists() else {"name": name}
        path.write_text(yaml.safe_dump({**content, **fields}))

    def numbers(self, **fields: Any) -> None:
        """Configure the job `numbers` of tests/integration/jobs."""
        self.job(
            "numbers",
            module="tests.integration.jobs.numbers",
            source={"kind": "files", "path": "landing", "max_files_per_batch": 1},
            sinks=[{"table": "numbers", "mode": "append"}],
            **fields,
        )

    def land(self, name: str, content: bytes = b"x") -> None:
        landing = self.workspace.root / "landing"
        landing.mkdir(parents=True, exist_ok=True)
        (landing / f".{name}").write_bytes(content)
        (landing / f".{name}").rename(landing / name)

    def documents(self, job: str) -> JobDocuments:
        return JobDocuments(self.workspace.storage, job)

    def wait(self, job: str, condition: Callable[[Observation], bool], what: str, timeout: float = 300) -> Observation:
        return driver_control.wait_for(self.workspace, job, condition, timeout=timeout, what=what, poll=0.1)

    def released(self, job: str) -> Lease:
        """Wait until a driver that has written its end has given back the lease, and return that."""
        document = self.documents(job).lease
        deadline = time.monotonic() + 60
        while (found := document.read()) is None or not found.released:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    def table(self, name: str) -> pa.Table:
        return read_table(self.workspace, name)

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table(table).to_pylist()
        return found

    def kill_all(self) -> None:
        for job in sorted({key.split("/")[1] for key in self.workspace.storage.list("control")}):
            documents = JobDocuments(self.workspace.storage, job)
            for incarnation in documents.incarnations():
                launch = documents.launch(incarnation).read()
                if launch and launch.process:
                    kill(launch.process)
            lease = documents.lease.read()
            if lease and lease.jvm:
                kill(lease.jvm)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    # Drivers are in UTC, wherever they are started.
    monkeypatch.setenv("TZ", "America/New_York")
    made = Place(tmp_path)
    yield made
    made.kill_all()
    for log in (tmp_path / ROOT).glob("logs/*/*/driver.log"):
        # pytest shows it with a test that failed.
        sys.stdout.write(f"--- {log}\n{log.read_text()[-4000:]}\n")


def log_of(place: Place, job: str) -> str:
    seen = observe(place.workspace, job)
    assert seen.incarnation is not None
    return (place.workspace.log_dir(job, seen.incarnation) / "driver.log").read_text()
