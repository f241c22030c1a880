"""Cost of savepoints for some sizes of state: take (hot, and with a stop), verify, restore; and the time they save.

Run by ``make bench-savepoint``. A real driver runs an aggregation with one state row for each key; a batch of 5,000
rows comes each second, or as fast as the driver can. The same run measures ``cp -r`` of the checkpoint followed by
``sha256sum``, and the job without a checkpoint, which reads all input again. Takes and copies alternate; the median
counts. Batch times with and without hot takes come from one driver, in alternating turns of some batches; in turns with
takes each batch has a take.

Options: ``--keys`` (several), ``--runs`` (takes, and turns of the load).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.keyed_job import JOB, LOAD_ROWS, KeyedJob, Load, timed
from benchmarks.report import goal_met, let_drivers_import, print_machine
from streamwarden.model.progress import BatchProgress
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.restore import restore
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.savepoints.with_stop import savepoint_and_stop
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe

TAKE_GOAL = 1.5
BATCH_GOAL = 1.1
FRESH = "keyed_counts_fresh"
TURN_BATCHES = 12
_WAITING = 4


def main() -> int:
    """Measure each size; exit with status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Savepoints beside cp, sha256sum and reprocessing.")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    let_drivers_import()
    ratios: dict[int, tuple[float, float]] = {}
    for keys in given.keys:
        with tempfile.TemporaryDirectory(prefix="savepoint-") as folder:
            ratios[keys] = Measurement(Path(folder), keys, given.runs).run()
    print_machine(given.runs)
    largest = max(ratios)
    take_ratio, batch_ratio = ratios[largest]
    met = [
        goal_met(f"take_to_cp_and_sha256sum_at_{largest}_keys", take_ratio, TAKE_GOAL),
        goal_met(f"batch_time_during_hot_take_at_{largest}_keys", batch_ratio, BATCH_GOAL),
    ]
    return 0 if all(met) else 1


class Measurement:
    """Measurement of one size of state."""

    def __init__(self, folder: Path, keys: int, runs: int) -> None:
        self.keys, self.runs = keys, runs
        # A job that reads everything again takes the default number of files in each batch.
        source = {"kind": "delta", "table": "rows"}
        self.job = KeyedJob(folder, keys, names=(JOB, FRESH), own={FRESH: {"source": source}})
        self.workspace = self.job.workspace
        self.documents = JobDocuments(self.workspace.storage, JOB)
        self.scratch = folder / "cp"

    def run(self) -> tuple[float, float]:
        """Measure everything, print a line, and return the two ratios with goals: of takes, and of batch times."""
        self.job.fill()
        deploy_job(self.workspace, JOB, by="benchmark")
        self.job.await_rows(JOB, self.keys)
        with Load(self._write_some):
            batch_ratio, hot = self._load_turns()
        self.job.await_rows(JOB, self.job.written)
        stopped, stop_s = timed(lambda: savepoint_and_stop(self.workspace, JOB, by="benchmark"))
        takes, copies = [], []
        for number in range(self.runs):
            for what in ("take", "copy") if number % 2 == 0 else ("copy", "take"):
                if what == "take":
                    takes.append(timed(self._take)[1])
                else:
                    copies.append(self._copy(stopped))
        take_ratio = statistics.median(a / b for a, b in zip(takes, copies, strict=True))
        found = catalog.find(self.workspace, JOB, stopped.id)
        verdict, verify_s = timed(lambda: verify(self.workspace, [found], by="benchmark")[stopped.id])
        assert verdict.verdict == "verified", verdict
        self.job.write_some()
        _, restore_s = timed(lambda: restore(self.workspace, JOB, savepoint=stopped.id, by="benchmark"))
        driver_control.stop(self.workspace, JOB, by="benchmark")
        _, fresh_s = timed(self._reprocess)
        print(
            f"{self.keys:>9,} keys: savepoint {stopped.bytes / 2**20:.1f} MiB, {len(stopped.files)} files;"
            f" take {statistics.median(takes):.3f} s (hot {hot:.3f} s, with stop {stop_s:.1f} s),"
            f" cp -r + sha256sum {statistics.median(copies):.3f} s, ratio {take_ratio:.2f};"
            f" verify {verify_s:.1f} s; restore to first batch {restore_s:.1f} s, from scratch {fresh_s:.1f} s;"
            f" batch time during hot takes {batch_ratio:.2f}",
            flush=True,
        )
        return take_ratio, batch_ratio

    def _write_some(self) -> None:
        """Write the load's rows, unless some batches' input waits: otherwise slow batches would build a backlog."""
        totals = self.documents.current_totals()
        if totals is None or self.job.written - totals.rows_in < _WAITING * LOAD_ROWS:
            self.job.write_some()

    def _take(self) -> Manifest:
        return take(self.workspace, JOB, origin=Origin.MANUAL, by="benchmark")

    def _copy(self, made: Manifest) -> float:
        checkpoint = self.workspace.root / made.checkpoint
        subprocess.run(["rm", "-rf", str(self.scratch)], check=True)
        command = f"cp -r {checkpoint} {self.scratch} && find {self.scratch} -type f -print0 | xargs -0 sha256sum"
        return timed(lambda: subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.DEVNULL))[1]

    def _load_turns(self) -> tuple[float, float]:
        """Return the ratio of batch times with hot takes to those without, and the median time of a hot take."""
        ratios, hot = [], []
        self._batches(TURN_BATCHES)
        for number in range(self.runs):
            times: dict[bool, float] = {}
            for taking in (True, False) if number % 2 == 0 else (False, True):
                done = threading.Event()
                made: list[str] = []
                taker = threading.Thread(target=self._take_in_each_batch, args=(done, made, hot)) if taking else None
                if taker:
                    taker.start()
                times[taking] = statistics.median(batch.duration_ms for batch in self._batches(TURN_BATCHES))
                done.set()
                if taker:
                    taker.join()
                for savepoint in made:
                    catalog.delete(self.workspace, JOB, savepoint, force=True)
            ratios.append(times[True] / times[False])
        return statistics.median(ratios), statistics.median(hot)

    def _take_in_each_batch(self, done: threading.Event, made: list[str], hot: list[float]) -> None:
        """Take a savepoint after each commit, while the next batch runs."""
        seen = observe(self.workspace, JOB)
        assert seen.incarnation is not None
        document, before = self.documents.progress(seen.incarnation), None
        while not done.wait(0.05):
            progress = document.read()
            if progress is None or progress.last == before:
                continue
            before = progress.last
            savepoint, seconds = timed(self._take)
            made.append(savepoint.id)
            hot.append(seconds)

    def _batches(self, number: int) -> list[BatchProgress]:
        """Wait for a number of further batches with rows, and return them."""
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

    def _reprocess(self) -> None:
        deploy_job(self.workspace, FRESH, by="benchmark")
        self.job.await_rows(FRESH, self.job.written)
        driver_control.stop(self.workspace, FRESH, by="benchmark")


if __name__ == "__main__":
    sys.exit(main())
