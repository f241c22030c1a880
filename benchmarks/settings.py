"""Cost of small batches under our sessions' settings, beside the defaults of Spark and Delta.

Run by ``make bench-settings``. Two drivers run the same job at the same time, with one core each. The job upserts an
aggregation into a Delta table, with a batch of a hundred rows every two seconds. Only the settings for checkpoints and
Delta's log differ (see ``streamwarden/spark/session.py``). Medians count, without the JVM's first batches. Other load
of the machine affects both.

Options: ``--batches`` (that count for each), ``--runs`` (pairs of drivers).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.keyed_job import KeyedJob, Load
from benchmarks.report import goal_met, let_drivers_import, print_machine
from streamwarden.operations.deploy import deploy_job
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation, observe

# Planning and writing can't be saved; most of the rest can.
GOAL = 0.5
WARM_UP = 15
DEFAULTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
    "spark.delta.logStore.file.impl": "io.delta.storage.HDFSLogStore",
    "spark.databricks.delta.snapshotPartitions": "50",
}
JOBS = ("ours", "defaults")


def main() -> int:
    """Measure; exit with status 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description="Our settings beside the defaults.")
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--runs", type=int, default=2)
    given = parser.parse_args()
    let_drivers_import()
    ratios = []
    for run in range(1, given.runs + 1):
        with tempfile.TemporaryDirectory(prefix="settings-") as folder:
            ours, defaults = _medians(Path(folder), given.batches)
        ratios.append(ours / defaults)
        print(f"run {run}: a batch takes {ours:.0f} ms; under the defaults {defaults:.0f} ms; {ratios[-1]:.3f} of it")
    print_machine(given.runs)
    return 0 if goal_met("batch_time_to_defaults", statistics.median(ratios), GOAL) else 1


def _medians(folder: Path, batches: int) -> list[float]:
    own = {
        name: {
            "sinks": [{"table": f"{name}_out", "mode": "upsert", "keys": ["key"]}],
            "resources": {"cores": 1, "memory": "1g"},
            "spark": DEFAULTS if name == "defaults" else {},
        }
        for name in JOBS
    }
    job = KeyedJob(folder, 1_000, names=JOBS, own=own, partitions=2)
    job.fill()
    for name in JOBS:
        deploy_job(job.workspace, name, by="benchmark")
    needed = WARM_UP + batches

    def enough(seen: Observation) -> bool:
        return not seen.phase.alive or (seen.progress is not None and len(seen.progress.recent) >= needed)

    try:
        with Load(lambda: job.write(job.random.integers(0, job.keys, 100)), every=2):
            for name in JOBS:
                what = f"{needed} batches of {name}"
                driver_control.wait_for(job.workspace, name, enough, timeout=1800, what=what)
        return [_median(job, name, needed) for name in JOBS]
    finally:
        for name in JOBS:
            driver_control.stop(job.workspace, name, by="benchmark")


def _median(job: KeyedJob, name: str, needed: int) -> float:
    seen = observe(job.workspace, name)
    assert seen.phase.alive, seen
    assert seen.incarnation is not None
    progress = JobDocuments(job.workspace.storage, name).progress(seen.incarnation).read()
    assert progress is not None
    return statistics.median(batch.duration_ms for batch in progress.recent[WARM_UP:needed])


if __name__ == "__main__":
    raise SystemExit(main())
