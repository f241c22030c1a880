"""Downtime of a rescale for some sizes of state, beside the same without Streamwarden.

Run by ``make bench-rescale``. A real driver runs an aggregation with one state row for each key; each trigger interval
of 5 s brings a batch of 5,000 rows. Its state partitions change between 4 and 8, in turn:

- ``online`` and ``offline``: our rescale, under the load. Downtime is from the last commit before it to the first
  after it.
- ``bare``: the job is stopped, under the same load. An open session copies and repartitions the checkpoint, and runs
  a batch.
- ``scratch``: a new checkpoint, which reads all input again. Once for each size.

Medians count. ``offline`` is compared with ``bare`` by its time from the stop to the first batch, because an earlier
pause between batches belongs to the load.

Options: ``--keys`` (several), ``--runs``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from benchmarks.keyed_job import CORES, JOB, MEMORY, KeyedJob, Load, timed
from benchmarks.report import REPOSITORY, goal_met, let_drivers_import, print_machine
from streamwarden.model.operation import Operation
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.rescale import Mode, rescale
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe

INTERVAL_S = 5.0
FAST_GOAL_S = 2 * INTERVAL_S
PLAIN_GOAL = 1.3
PARALLELISMS = (8, 4)
SCRATCH = "keyed_counts_scratch"
_SETTLED = 8
"""Batches of a driver before the next measurement: its first batches take several times as long as later ones."""


def main() -> int:
    """Measure each size; exit with status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="A rescale's downtime, beside the bare one's and a new start's.")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bare", nargs=4, metavar=("CHECKPOINT", "ROWS", "OUT", "PARTITIONS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        checkpoint, rows, out, partitions = given.bare
        print(json.dumps(bare(Path(checkpoint), rows, Path(out), int(partitions))))
        return 0
    let_drivers_import()
    figures: dict[int, tuple[float, float]] = {}
    for keys in given.keys:
        with tempfile.TemporaryDirectory(prefix="rescale-") as folder:
            figures[keys] = Measurement(Path(folder), keys).run(given.runs)
    print_machine(given.runs)
    largest = max(figures)
    away, ratio = figures[largest]
    met = [
        goal_met(f"fast_downtime_s_at_{largest}_keys", away, FAST_GOAL_S),
        goal_met(f"plain_to_bare_at_{largest}_keys", ratio, PLAIN_GOAL),
    ]
    return 0 if all(met) else 1


class Measurement:
    """Measurement of one size of state."""

    def __init__(self, folder: Path, keys: int) -> None:
        names = (JOB, SCRATCH)
        self.job = KeyedJob(folder, keys, names=names, partitions=PARALLELISMS[-1], files=16, interval=INTERVAL_S)
        self.workspace = self.job.workspace
        self.documents = JobDocuments(self.workspace.storage, JOB)
        self.folder = folder

    def run(self, runs: int) -> tuple[float, float]:
        """Measure all in turn; return the downtime of online in seconds, and the ratio of offline to bare."""
        self.job.fill()
        deploy_job(self.workspace, JOB, by="benchmark")
        self.job.await_rows(JOB, self.job.keys)
        found: dict[str, list[float]] = {"online": [], "offline": [], "bare": []}
        plain = []
        for number in range(runs):
            modes: tuple[Mode, Mode] = ("online", "offline") if number % 2 == 0 else ("offline", "online")
            with Load(self.job.write_some, INTERVAL_S):
                for mode, parallelism in zip(modes, PARALLELISMS, strict=True):
                    settle(self.workspace)
                    done = rescale(self.workspace, JOB, partitions=parallelism, mode=mode, by="benchmark")
                    found[mode].append(done.plan.downtime_s or 0.0)
                    if mode == "offline":
                        plain.append(_from_stop(done))
                    tell(self.job.keys, mode, parallelism, done)
                settle(self.workspace)
                driver_control.stop(self.workspace, JOB, by="benchmark")
                found["bare"].append(self._bare(PARALLELISMS[0]))
            if number == runs - 1:
                scratch = self._from_scratch()
            else:
                driver_control.start(self.workspace, JOB, by="benchmark")
        ratio = statistics.median(a / b for a, b in zip(plain, found["bare"], strict=True))
        medians = {what: statistics.median(times) for what, times in found.items()}
        print(
            f"{self.job.keys:>9,} keys: downtime online {medians['online']:.1f} s, offline {medians['offline']:.1f} s"
            f" ({statistics.median(plain):.1f} s from the stop; bare {medians['bare']:.1f} s, ratio {ratio:.2f}),"
            f" from scratch {scratch:.1f} s",
            flush=True,
        )
        return medians["online"], ratio

    def _bare(self, partitions: int) -> float:
        reference = self.documents.checkpoint.read()
        assert reference is not None
        checkpoint, out = self.workspace.root / reference.path, self.folder / "bare"
        arguments = ["--bare", str(checkpoint), self.workspace.table("rows"), str(out), str(partitions)]
        command = [sys.executable, "-m", "benchmarks.rescale", *arguments]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        shutil.rmtree(out)
        steps: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        _say(self.job.keys, "bare", f"{sum(steps.values()):5.1f} s, to {partitions} partitions", steps)
        return sum(steps.values())

    def _from_scratch(self) -> float:
        rows = self.job.written
        _, took = timed(lambda: deploy_job(self.workspace, SCRATCH, by="benchmark"))
        _, reading = timed(lambda: self.job.await_rows(SCRATCH, rows))
        driver_control.stop(self.workspace, SCRATCH, by="benchmark")
        _say(self.job.keys, "scratch", f"{took + reading:5.1f} s", {"deploy": took, f"read {rows} rows": reading})
        return took + reading


def settle(workspace: Workspace) -> None:
    """Wait for some batches of the running driver, so that measurements begin alike."""
    incarnation = observe(workspace, JOB).incarnation
    driver_control.wait_for(
        workspace,
        JOB,
        lambda seen: seen.incarnation == incarnation and bool(seen.progress and len(seen.progress.recent) >= _SETTLED),
        timeout=300,
        what="some batches",
    )


def bare(checkpoint: Path, rows: str, out: Path, partitions: int) -> dict[str, float]:
    """Repartition a copy of a stopped query's checkpoint and run one batch; return the seconds of each step."""
    from benchmarks.keyed_counts import transform
    from streamwarden.driver.job_session import PROVIDERS
    from streamwarden.formats.checkpoint_files import repartitioned
    from streamwarden.spark.session import build_session

    settings = {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.providerClass": PROVIDERS["rocksdb"],
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    session = build_session("bare", master=f"local[{CORES}]", memory=MEMORY, settings=settings)
    session.sparkContext.setLogLevel("ERROR")
    # Creates the coordinator of state stores; without it the repartition fails at once.
    _ = session.streams.active
    copy = out / "checkpoint"
    steps = {"copy": timed(lambda: shutil.copytree(checkpoint, copy))[1]}
    steps["repartition"] = timed(lambda: session._streamingCheckpointManager.repartition(str(copy), partitions))[1]
    last = max(int(path.name) for path in (copy / "offsets").iterdir() if path.name.isdigit())
    for metadata in copy.glob("state/*/_metadata/metadata"):
        metadata.write_bytes(repartitioned(metadata.read_bytes(), partitions))

    def first_batch() -> None:
        source = session.readStream.format("delta").option("maxFilesPerTrigger", 16).load(rows)
        query = (
            transform(source, None)  # type: ignore[arg-type]
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(copy))
            .trigger(once=True)
            .foreachBatch(lambda batch, _: batch.write.format("delta").mode("append").save(str(out / "table")))
            .start()
        )
        query.awaitTermination()
        progress = query.lastProgress
        assert progress is not None and progress.batchId == last + 1 and progress.numInputRows > 0, progress

    steps["first batch"] = timed(first_batch)[1]
    session.stop()
    return steps


def _from_stop(done: Operation) -> float:
    """Return the seconds from the end of the stop to the end of the first batch."""
    ended = {step.name: step.ended_at for step in done.steps}
    return _seconds(ended["stop"], ended["first batch"])


def tell(keys: int, way: str, parallelism: int, done: Operation) -> None:
    """Print a rescale's downtime and the seconds of its steps."""
    followed = next((f"; {step.detail}" for step in done.steps if step.name == "follow"), "")
    away = f"{done.plan.downtime_s or 0.0:5.1f} s, to {parallelism} partitions{followed}"
    _say(keys, way, away, seconds_of_steps(done))


def seconds_of_steps(done: Operation) -> dict[str, float]:
    """Return the seconds of each step of a rescale."""
    steps: dict[str, float] = {}
    for step in done.steps:
        # Some steps occur twice, if a copy could not keep up.
        name = step.name if step.name not in steps else f"{step.name} again"
        steps[name] = _seconds(step.started_at, step.ended_at)
    return steps


def in_words(steps: dict[str, float]) -> str:
    """Return the steps' seconds on one line."""
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in steps.items())


def _say(keys: int, what: str, away: str, steps: dict[str, float]) -> None:
    print(f"{keys:>9,} keys {what:8} {away}: {in_words(steps)}", flush=True)


def _seconds(start: datetime | None, end: datetime | None) -> float:
    return (end - start).total_seconds() if start is not None and end is not None else 0.0


if __name__ == "__main__":
    sys.exit(main())
