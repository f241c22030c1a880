"""Time of a driver's start, with and without the archive of Spark's classes (``streamwarden.spark.class_archive``).

Run by ``make bench-start``. A start is a process that creates a session and commits a small new Delta table: the first
step of a recovery, a restore and a rescale. The two alternate; the median of the pairs' ratios counts.

Options: ``--runs``.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import psutil

# A saving of a quarter is worth set-up's minute and 390 MiB of disk; a smaller one is not.
GOAL = 0.75


def main() -> int:
    """Start in turn, print the ratio; exit with status 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description="Starts with and without the archive of Spark's classes.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--one", choices=("with", "without"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return start(given.one)
    ratios = []
    for number in range(given.runs):
        seconds: dict[str, float] = {}
        for which in ("with", "without") if number % 2 == 0 else ("without", "with"):
            began = time.monotonic()
            subprocess.run([sys.executable, __file__, "--one", which], check=True, capture_output=True)
            seconds[which] = time.monotonic() - began
        ratios.append(seconds["with"] / seconds["without"])
        print(
            f"run {number + 1}/{given.runs}: with {seconds['with']:.2f} s, without {seconds['without']:.2f} s,"
            f" ratio {ratios[-1]:.3f}",
            flush=True,
        )
    ratio = statistics.median(ratios)
    memory = psutil.virtual_memory().total / 2**30
    print(f"machine: {platform.machine()}, {psutil.cpu_count()} cores, {memory:.0f} GiB; {given.runs} runs of each")
    print(f"start_to_first_commit {ratio:.3f} {GOAL} {'ok' if ratio <= GOAL else 'short'}")
    return 0 if ratio <= GOAL else 1


def start(which: str) -> int:
    """Create a session and a table."""
    from streamwarden.spark.class_archive import archive_path
    from streamwarden.spark.session import build_session

    assert archive_path().is_file(), "make setup"
    session = build_session("start", master="local[1]", archived=which == "with")
    with tempfile.TemporaryDirectory() as folder:
        session.range(10).write.format("delta").save(f"{folder}/table")
    sys.stdout.flush()
    # An orderly end is not part of the measurement.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
