"""Record a real job's batches under a load with steps and a spike, for the tests of the advisor.

Run by ``make record-load``: once with one core and once with two, under the same load, 12 minutes each. The load is
relative to one core's capacity, which is measured first. The driver's report of each batch is written to
``tests/unit/autoscaler/recorded_load/CORES-cores.json``, with load and machine. Run nothing else meanwhile.

Options: ``--out`` (the folder).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.keyed_job import KeyedJob
from benchmarks.report import REPOSITORY, let_drivers_import
from streamwarden.autoscaler.advise import batches_seen
from streamwarden.autoscaler.load import BatchSeen
from streamwarden.model.record import utc_now
from streamwarden.operations.deploy import deploy_job
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe

JOB = "costly_counts"
INTERVAL_S = 3.0
LOAD: tuple[tuple[str, float, float], ...] = (
    ("low", 130.0, 0.15),
    ("high", 180.0, 0.85),
    ("low again", 300.0, 0.15),
    ("spike", 6.0, 1.6),
    ("low after the spike", 100.0, 0.15),
)
"""Name, seconds, and rows a second relative to one idle core's capacity. High: with the fixed cost of a batch, it
exceeds one core and not two."""

_BURSTS = (5_000, 10_000, 10_000)
"""Rows of the batches that measure the capacity; the last known batch counts."""

_KEYS = 20_000
_SECONDS_A_FILE = 1.0


def main() -> int:
    """Record both, and write the files."""
    parser = argparse.ArgumentParser(description="Record a job's batches under a changing load.")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "tests" / "unit" / "control" / "recorded_load")
    out: Path = parser.parse_args().out
    out.mkdir(exist_ok=True)
    let_drivers_import()
    capacity: float | None = None
    for cores in (1, 2):
        with tempfile.TemporaryDirectory(prefix="load-") as folder:
            recorded = record(Path(folder), cores, capacity)
        capacity = recorded["capacity"]
        path = out / f"{cores}-cores.json"
        path.write_text(json.dumps(recorded, indent=1) + "\n")
        print(f"{len(recorded['batches'])} batches: {path}", flush=True)
    return 0


def record(folder: Path, cores: int, capacity: float | None) -> dict[str, Any]:
    """Run the job under the load; return its batches and the load's phases.

    Parameters
    ----------
    folder
        An empty folder.
    cores
        The job's cores.
    capacity
        Rows a second that one core can process; None: measure it.
    """
    own = {JOB: {"module": "benchmarks.costly_counts", "resources": {"cores": cores, "memory": "1g"}}}
    job = KeyedJob(folder, _KEYS, names=(JOB,), own=own, partitions=4, files=64, interval=INTERVAL_S)
    # The source must exist, and the driver must be warm, before the measurement.
    job.write(np.arange(1_000))
    deploy_job(job.workspace, JOB, by="benchmark")
    job.await_rows(JOB, job.written)
    for rows in _BURSTS:
        job.write(job.random.integers(0, _KEYS, rows))
        job.await_rows(JOB, job.written)
    last = [one for one in _batches(job) if one.rows == _BURSTS[-1]][-1]
    capacity = capacity or last.rows / last.seconds
    print(f"{cores} cores: {last.rows / last.seconds:.0f} rows/s", flush=True)
    phases = [{"name": name, "from": began, "rows_per_second": rows} for name, began, rows in _feed(job, capacity)]
    job.await_rows(JOB, job.written)
    driver_control.stop(job.workspace, JOB, by="benchmark")
    return {
        "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
        "capacity": round(capacity),
        "cores": cores,
        "partitions": 4,
        "interval_s": INTERVAL_S,
        "phases": phases,
        "batches": [{**asdict(one), "at": one.at.isoformat()} for one in _batches(job)],
    }


def _batches(job: KeyedJob) -> list[BatchSeen]:
    seen = observe(job.workspace, JOB)
    assert seen.desired is not None
    return batches_seen(job.workspace, JOB, seen.desired.spec, seen)


def _feed(job: KeyedJob, capacity: float) -> list[tuple[str, str, int]]:
    """Write a file each second by the load, in real time; return the start of each phase."""
    told: list[tuple[str, str, int]] = []
    clock = time.monotonic()
    for name, seconds, share in LOAD:
        rows = round(share * capacity)
        told.append((name, utc_now().isoformat(), rows))
        print(f"{name}: {rows} rows/s for {seconds:.0f} s", flush=True)
        end = clock + seconds
        while clock < end:
            job.write(job.random.integers(0, _KEYS, round(rows * _SECONDS_A_FILE)))
            clock += _SECONDS_A_FILE
            time.sleep(max(clock - time.monotonic(), 0.0))
    told.append(("end", utc_now().isoformat(), 0))
    return told


if __name__ == "__main__":
    sys.exit(main())
