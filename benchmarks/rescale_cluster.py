"""Downtime of a rescale on Spark standalone: a real master and two workers on this machine.

Run by ``make bench-rescale-cluster``. The job and the load are those of :mod:`benchmarks.rescale`: 5,000 rows each
trigger interval of 5 s. The workers have slots for the old and the new driver, so ``online`` finds free ones.

Options: ``--keys`` (several), ``--runs``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.keyed_job import CORES, JOB, KeyedJob, Load
from benchmarks.report import goal_met, let_drivers_import, print_machine
from benchmarks.rescale import FAST_GOAL_S, INTERVAL_S, PARALLELISMS, settle, tell
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.rescale import Mode, rescale
from streamwarden.supervision import driver_control
from tests.launchers.standalone import SparkCluster

MODES: tuple[Mode, Mode] = ("online", "offline")


def main() -> int:
    """Measure each size; exit with status 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description="A rescale's downtime on a standalone cluster with free slots.")
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    let_drivers_import()
    away: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="spark-") as folder:
        cluster = SparkCluster(Path(folder), cores=CORES, memory="4g")
        try:
            cluster.start()
            for keys in given.keys:
                with tempfile.TemporaryDirectory(prefix="rescale-") as place:
                    away[keys] = measure(cluster, Path(place), keys, given.runs)
        finally:
            cluster.end()
    print_machine(given.runs)
    largest = max(away)
    return 0 if goal_met(f"cluster_online_downtime_s_at_{largest}_keys", away[largest], FAST_GOAL_S) else 1


def measure(cluster: SparkCluster, folder: Path, keys: int, runs: int) -> float:
    """Rescale in both modes in turn; return the median downtime of online in seconds."""
    profile = {"master": cluster.url, "same_image": True}
    job = KeyedJob(folder, keys, partitions=PARALLELISMS[-1], files=16, interval=INTERVAL_S, profile=profile)
    job.fill()
    deploy_job(job.workspace, JOB, by="benchmark")
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    try:
        job.await_rows(JOB, keys)
        with Load(job.write_some, INTERVAL_S):
            for _ in range(runs):
                for mode, parallelism in zip(MODES, PARALLELISMS, strict=True):
                    settle(job.workspace)
                    done = rescale(job.workspace, JOB, partitions=parallelism, mode=mode, by="benchmark")
                    assert not (mode == "online" and done.plan.offline), done.plan.offline
                    found[mode].append(done.plan.downtime_s or 0.0)
                    tell(keys, mode, parallelism, done)
    finally:
        driver_control.stop(job.workspace, JOB, by="benchmark", kill=True)
    medians = {mode: statistics.median(times) for mode, times in found.items()}
    print(f"{keys:>9,} keys: downtime online {medians['online']:.1f} s, offline {medians['offline']:.1f} s", flush=True)
    return medians["online"]


if __name__ == "__main__":
    sys.exit(main())
