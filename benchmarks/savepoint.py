"""What savepoints cost, for some sizes of state: take (hot, with a stop), verify, restore; and what they save.

Run by ``make bench-savepoint``. A real driver holds a running aggregation with one state row a key, while a batch of
5,000 rows comes each second. Beside it, in the same run: ``cp -r`` of the checkpoint followed by ``sha256sum`` over the
copy, and the same job started without a checkpoint, which reads everything again. Takes and copies are in turn; of
each the median counts. The batch times with and without hot takes are of the same driver, in turns of some batches.

Options: ``--keys`` (several), ``--runs`` (takes, and turns of the load).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
import pyarrow as pa
import yaml
from deltalake import write_deltalake

from streamwarden.control import operations
from streamwarden.control.documents import BatchProgress, JobDocuments
from streamwarden.control.savepoints import catalogue
from streamwarden.control.savepoints.manifest import Manifest, Origin
from streamwarden.control.savepoints.restore import restore
from streamwarden.control.savepoints.take import savepoint_and_stop, take
from streamwarden.control.savepoints.verify import verify
from streamwarden.control.supervision import Observation, observe
from streamwarden.control.workspace import Workspace, open_workspace

TAKE_GOAL = 1.5
BATCH_GOAL = 1.1
JOB, FRESH = "keyed_counts", "keyed_counts_fresh"
ROWS_A_FILE = 250_000
LOAD_ROWS = 5_000
TURN_BATCHES = 12
REPOSITORY = Path(__file__).parents[1]
T = TypeVar("T")


def main() -> int:
    """Measure each size; leave with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Savepoints beside cp, sha256sum and reprocessing.")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ratios: dict[int, tuple[float, float]] = {}
    for keys in given.keys:
        with tempfile.TemporaryDirectory(prefix="savepoint-") as folder:
            ratios[keys] = Measurement(Path(folder), keys, given.runs).run()
    memory = psutil.virtual_memory().total / 2**30
    print(f"machine: {platform.machine()}, {psutil.cpu_count()} cores, {memory:.0f} GiB; {given.runs} runs of each")
    largest = max(ratios)
    take_ratio, batch_ratio = ratios[largest]
    met = [
        _goal(f"take_to_cp_and_sha256sum_at_{largest}_keys", take_ratio, TAKE_GOAL),
        _goal(f"batch_time_during_hot_take_at_{largest}_keys", batch_ratio, BATCH_GOAL),
    ]
    return 0 if all(met) else 1


class Measurement:
    """One size of state."""

    def __init__(self, folder: Path, keys: int, runs: int) -> None:
        self.keys, self.runs = keys, runs
        self.workspace = _workspace(folder)
        self.table = self.workspace.table("rows")
        self.documents = JobDocuments(self.workspace.storage, JOB)
        self.random = np.random.default_rng(keys)
        self.scratch = folder / "cp"

    def run(self) -> tuple[float, float]:
        """Measure all of it, print a line, and return the two ratios that goals are for: takes', batch times'."""
        for start in range(0, self.keys, ROWS_A_FILE):
            self._write(np.arange(start, min(start + ROWS_A_FILE, self.keys)))
        operations.deploy(self.workspace, JOB, by="benchmark")
        self._await_rows(JOB, self.keys)
        load = Load(lambda: self._write(self.random.integers(0, self.keys, LOAD_ROWS)))
        with load:
            batch_ratio, hot = self._load_turns()
        self._await_rows(JOB, self.keys + load.files * LOAD_ROWS)
        stopped, stop_s = _timed(lambda: savepoint_and_stop(self.workspace, JOB, by="benchmark"))
        takes, copies = [], []
        for number in range(self.runs):
            for what in ("take", "copy") if number % 2 == 0 else ("copy", "take"):
                if what == "take":
                    takes.append(_timed(self._take)[1])
                else:
                    copies.append(self._copy(stopped))
        take_ratio = statistics.median(a / b for a, b in zip(takes, copies, strict=True))
        found = catalogue.find(self.workspace, JOB, stopped.id)
        verdict, verify_s = _timed(lambda: verify(self.workspace, [found], by="benchmark")[stopped.id])
        assert verdict.verdict == "verified", verdict
        self._write(self.random.integers(0, self.keys, LOAD_ROWS))
        _, restore_s = _timed(lambda: restore(self.workspace, JOB, savepoint=stopped.id, by="benchmark"))
        operations.stop(self.workspace, JOB, by="benchmark")
        total = self.keys + (load.files + 1) * LOAD_ROWS
        _, fresh_s = _timed(lambda: self._reprocess(total))
        print(
            f"{self.keys:>9,} keys: savepoint {stopped.bytes / 2**20:.1f} MiB, {len(stopped.files)} files;"
            f" take {statistics.median(takes):.3f} s (hot {hot:.3f} s, with stop {stop_s:.1f} s),"
            f" cp -r + sha256sum {statistics.median(copies):.3f} s, ratio {take_ratio:.2f};"
            f" verify {verify_s:.1f} s; restore to first batch {restore_s:.1f} s, from scratch {fresh_s:.1f} s;"
            f" batch time during hot takes {batch_ratio:.2f}",
            flush=True,
        )
        return take_ratio, batch_ratio

    def _take(self) -> Manifest:
        return take(self.workspace, JOB, origin=Origin.MANUAL, by="benchmark")

    def _copy(self, made: Manifest) -> float:
        checkpoint = self.workspace.root / made.checkpoint
        subprocess.run(["rm", "-rf", str(self.scratch)], check=True)
        command = f"cp -r {checkpoint} {self.scratch} && find {self.scratch} -type f -print0 | xargs -0 sha256sum"
        return _timed(lambda: subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.DEVNULL))[1]

    def _load_turns(self) -> tuple[float, float]:
        """Return the ratio of batch times with to without hot takes, and the median time of a hot take."""
        ratios, hot = [], []
        self._batches(TURN_BATCHES)
        for number in range(self.runs):
            times: dict[bool, float] = {}
            for taking in (True, False) if number % 2 == 0 else (False, True):
                done = threading.Event()
                taker = threading.Thread(target=self._take_until, args=(done, hot)) if taking else None
                if taker:
                    taker.start()
                times[taking] = statistics.median(batch.duration_ms for batch in self._batches(TURN_BATCHES))
                done.set()
                if taker:
                    taker.join()
            ratios.append(times[True] / times[False])
        return statistics.median(ratios), statistics.median(hot)

    def _take_until(self, done: threading.Event, hot: list[float]) -> None:
        # One after the other with a pause of a batch: about every other batch has a take in it.
        while not done.is_set():
            made, seconds = _timed(self._take)
            hot.append(seconds)
            catalogue.delete(self.workspace, JOB, made.id, force=True)
            done.wait(1.0)

    def _batches(self, number: int) -> list[BatchProgress]:
        """Wait for so many further batches with rows, and return them."""
        seen = observe(self.workspace, JOB)
        assert seen.incarnation is not None
        document = self.documents.progress(seen.incarnation)
        first = document.read()
        start = first.last.batch if first and first.last else -1
        while True:
            progress = document.read()
            found = [one for one in (progress.recent if progress else []) if one.batch > start and one.rows_in]
            if len(found) >= number:
                return found[:number]
            time.sleep(0.2)

    def _reprocess(self, rows: int) -> None:
        operations.deploy(self.workspace, FRESH, by="benchmark")
        self._await_rows(FRESH, rows)
        operations.stop(self.workspace, FRESH, by="benchmark")

    def _await_rows(self, job: str, rows: int) -> None:
        documents = JobDocuments(self.workspace.storage, job)

        def read(seen: Observation) -> bool:
            totals = documents.totals.read()
            return not seen.phase.alive or (totals is not None and totals.rows_in >= rows)

        seen = operations.wait_for(self.workspace, job, read, timeout=1800, what=f"{rows} rows to be read")
        assert seen.phase.alive, seen

    def _write(self, keys: np.ndarray) -> None:
        # Keys and sums that do not compress: a state of zeros would be copied and hashed in no time.
        names = pa.array([hashlib.blake2b(str(key).encode(), digest_size=32).hexdigest() for key in keys])
        write_deltalake(self.table, pa.table({"key": names, "amount": self.random.random(len(keys))}), mode="append")


class Load:
    """A file each second, until left."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.files = 0

    def _run(self) -> None:
        while not self._done.wait(1.0):
            self._write()
            self.files += 1

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def _workspace(folder: Path) -> Workspace:
    config = folder / "config"
    (config / "jobs").mkdir(parents=True)
    (config / "profiles").mkdir()
    for name in (JOB, FRESH):
        job = {
            "name": name,
            "module": "benchmarks.keyed_counts",
            "source": {"kind": "delta", "table": "rows", "max_files_per_batch": 1},
            "sinks": [{"table": f"{name}_out", "mode": "append"}],
            "trigger": {"interval": "100ms"},
            "state": {"partitions": 4},
            "resources": {"cores": 2, "memory": "2g"},
        }
        (config / "jobs" / f"{name}.yaml").write_text(yaml.safe_dump(job))
    (config / "profiles" / "bench.yaml").write_text(yaml.safe_dump({"name": "bench", "root": str(folder / "root")}))
    return open_workspace("bench", config=config)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def _goal(name: str, value: float, goal: float) -> bool:
    print(f"{name} {value:.3f} {goal} {'ok' if value <= goal else 'short'}")
    return value <= goal


if __name__ == "__main__":
    sys.exit(main())
