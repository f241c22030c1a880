"""The job `keyed_counts`, its input and a load, for the benchmarks of savepoints and rescales."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import yaml
from deltalake import write_deltalake

from streamwarden.runtime import spares
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import SPARES
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation

JOB = "keyed_counts"
LOAD_ROWS = 5_000
CORES = 2
MEMORY = "2g"
_ROWS_A_FILE = 250_000
T = TypeVar("T")


class KeyedJob:
    """A workspace, and a job with one state row for each key.

    Parameters
    ----------
    folder
        An empty folder.
    keys
        Number of keys in the state.
    names
        The jobs' names, for several equal jobs.
    own
        Further fields of a job's YAML, by job name.
    partitions
        Initial number of partitions.
    files
        Maximum files of a batch.
    interval
        Seconds between the starts of two batches.
    profile
        Further fields of the profile.
    """

    def __init__(
        self,
        folder: Path,
        keys: int,
        *,
        names: Iterable[str] = (JOB,),
        own: Mapping[str, Mapping[str, Any]] | None = None,
        partitions: int = 4,
        files: int = 1,
        interval: float = 0.1,
        profile: Mapping[str, Any] | None = None,
    ) -> None:
        self.keys = keys
        self.written = 0
        job = {
            "module": "benchmarks.keyed_counts",
            "source": {"kind": "delta", "table": "rows", "max_files_per_batch": files},
            "trigger": {"interval": f"{round(interval * 1000)}ms"},
            "state": {"partitions": partitions},
            "resources": {"cores": CORES, "memory": MEMORY},
        }
        jobs = {name: {**job, **(own or {}).get(name, {})} for name in names}
        self.workspace = _workspace(folder, jobs, profile or {})
        self.random = np.random.default_rng(keys)

    def fill(self) -> None:
        """Write a row for each key."""
        for start in range(0, self.keys, _ROWS_A_FILE):
            self.write(np.arange(start, min(start + _ROWS_A_FILE, self.keys)))

    def write_some(self) -> None:
        """Write the load's rows, with random keys."""
        self.write(self.random.integers(0, self.keys, LOAD_ROWS))

    def write(self, keys: np.ndarray) -> None:
        """Write a row for each of these keys."""
        # Incompressible keys and sums: a state of zeros would be copied and hashed in no time.
        names = pa.array([hashlib.blake2b(str(key).encode(), digest_size=32).hexdigest() for key in keys])
        rows = pa.table({"key": names, "amount": self.random.random(len(keys))})
        write_deltalake(self.workspace.table("rows"), rows, mode="append")
        self.written += len(keys)

    def await_rows(self, job: str, rows: int) -> None:
        """Wait until a job has read this number of rows."""
        documents = JobDocuments(self.workspace.storage, job)

        def read(seen: Observation) -> bool:
            totals = documents.current_totals()
            return not seen.phase.alive or (totals is not None and totals.rows_in >= rows)

        seen = driver_control.wait_for(self.workspace, job, read, timeout=1800, what=f"{rows} rows to be read")
        assert seen.phase.alive, seen


class Load:
    """Writes a file every second, or every `every` seconds, within the context."""

    def __init__(self, write: Callable[[], None], every: float = 1.0) -> None:
        self._write = write
        self._every = every
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._done.wait(self._every):
            self._write()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def await_spare(workspace: Workspace) -> None:
    """Wait until a warm spare has rehearsed."""
    deadline = time.monotonic() + 300
    place = workspace.scratch / SPARES
    while not any((place / spare.id / spares.REHEARSED).exists() for spare in spares.living(workspace)):
        assert time.monotonic() < deadline, "no spare has rehearsed"
        time.sleep(0.2)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the function's result and its duration in seconds."""
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def _workspace(folder: Path, jobs: Mapping[str, Mapping[str, Any]], profile: Mapping[str, Any]) -> Workspace:
    config = folder / "config"
    (config / "jobs").mkdir(parents=True)
    (config / "profiles").mkdir()
    for name, job in jobs.items():
        spec = {"name": name, "sinks": [{"table": f"{name}_out", "mode": "append"}], **job}
        (config / "jobs" / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    fields = {"name": "bench", "root": str(folder / "root"), **profile}
    (config / "profiles" / "bench.yaml").write_text(yaml.safe_dump(fields))
    return open_workspace("bench", config=config)
