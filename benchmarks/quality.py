"""The gate's decisions: how soon after a commit, in tables of what size, and beside a check of all by Spark.

Run by ``make bench-quality``. The table is ``trips`` with its shipped suite. Its rows are one month of trips, real or
generated, repeated in later and later months. A process of its own runs the gate, as the DAG does; this one writes.

Options: ``--trips FILE``, a month of green trips as the TLC publishes them. Default: generated ones. ``--commits`` and
``--rows`` of the first part. ``--times``: how much larger the large table is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pyarrow as pa
from deltalake import write_deltalake
from nyc_taxi.trips.cards import add_card_ids
from nyc_taxi.trips.generator import GeneratorOptions, generate
from nyc_taxi.trips.tlc import read_tlc
from pyspark.sql.pandas.types import to_arrow_schema

from benchmarks.report import REPOSITORY, goal_met, print_machine
from spark_jobs.schemas import TRIPS
from streamwarden.formats.published_log import PublishedLog
from streamwarden.model.gate import Verdict
from streamwarden.quality.gate import Gate
from streamwarden.quality.runner import check
from streamwarden.spark.session import build_session
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import Workspace, open_workspace

EXPECTATIONS = REPOSITORY / "expectations"
KEY = ["VendorID", "lpep_pickup_datetime", "lpep_dropoff_datetime", "PULocationID", "DOLocationID", "total_amount"]
MONTH = timedelta(days=31)


def main() -> int:
    """Measure, and print a line for each goal; exit with status 1 if one is missed."""
    parser = argparse.ArgumentParser(description="Decisions of the gate.")
    parser.add_argument("--trips", type=Path)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=100)
    given = parser.parse_args()
    month = _month(given.trips)
    print(f"a month has {month.num_rows:,} trips", flush=True)
    goals = [*_soon(month, given.commits, given.rows), *_by_size(month, given.times)]
    print_machine(1)
    met = [goal_met(name, value, goal, at_least=at_least) for name, value, goal, at_least in goals]
    return 0 if all(met) else 1


def _soon(month: pa.Table, commits: int, rows: int) -> list[tuple[str, float, float, bool]]:
    """Measure the time from each commit to its decision, by a gate of its own process."""
    with tempfile.TemporaryDirectory(prefix="quality-") as folder:
        workspace = open_workspace("local", root=folder)
        log = PublishedLog(workspace, "trips")
        environment = {**os.environ, "STREAMWARDEN_ROOT": folder, "STREAMWARDEN_PROFILE": "local"}
        command = [sys.executable, "-m", "streamwarden.cli", "gate", "watch"]
        gate = subprocess.Popen(command, env=environment, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
        peak, stop = [0], threading.Event()
        watcher = threading.Thread(target=_memory, args=(gate.pid, peak, stop))
        watcher.start()
        took: list[float] = []
        try:
            for number in range(commits + 1):
                part = _repeated(month, number, rows)
                write_deltalake(workspace.table("trips"), part, mode="append")
                began = time.monotonic()
                while not (workspace.root / f"{log.folder}/{number:020d}.json").exists():
                    if time.monotonic() - began > 120 or gate.poll() is not None:
                        raise SystemExit(f"commit {number} was not decided")
                    time.sleep(0.01)
                took.append(time.monotonic() - began)
                print(f"commit {number}: {part.num_rows:,} rows, published after {took[-1]:.2f} s", flush=True)
        finally:
            stop.set()
            watcher.join()
            gate.send_signal(signal.SIGTERM)
            gate.wait(60)
    print(f"first decision {took[0]:.1f} s, with the process's start; peak memory {peak[0] / 2**30:.2f} GiB")
    p95 = float(np.quantile(took[1:], 0.95))
    return [("commit_to_decision_p95_s", p95, 5.0, False), ("gate_memory_gib", peak[0] / 2**30, 4.0, False)]


def _by_size(month: pa.Table, times: int) -> list[tuple[str, float, float, bool]]:
    """Measure a decision about one month in a table of one, and of many, beside a check of all by Spark."""
    with tempfile.TemporaryDirectory(prefix="quality-") as folder:
        workspace = open_workspace("local", root=folder)
        gate = Gate(workspace, EXPECTATIONS)
        small = _decisions(workspace, gate, month, 0)
        for number in range(4, times):
            write_deltalake(workspace.table("trips"), _repeated(month, number, month.num_rows), mode="append")
        began = time.monotonic()
        gate.decide("trips", anew=True)
        print(f"the gate's decision about all rows anew: {time.monotonic() - began:.1f} s", flush=True)
        large = _decisions(workspace, gate, month, times)
        print(f"a month of {month.num_rows:,} rows: {small:.2f} s in a table of one, {large:.2f} s of {times}")
        # In a process of its own: a JVM keeps the heap that it was started with.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
            started, took = other.submit(_by_spark, folder).result()
        print(f"the whole table by Spark: {took:.1f} s, after {started:.1f} s for its start")
    return [
        (f"check_growth_{times}x", large / small, 1.2, False),
        (f"faster_than_spark_{times}x", took / large, 10.0, True),
    ]


def _decisions(workspace: Workspace, gate: Gate, month: pa.Table, begin: int) -> float:
    """Return the median of three decisions; the first of a gate is not counted."""
    took = []
    for number in range(begin, begin + 4):
        write_deltalake(workspace.table("trips"), _repeated(month, number, month.num_rows), mode="append")
        began = time.monotonic()
        decision = gate.decide("trips")
        took.append(time.monotonic() - began)
        assert decision is not None and decision.verdict is Verdict.PUBLISHED, decision
    return statistics.median(took[1:])


def _month(path: Path | None) -> pa.Table:
    """Return trips as `ingest_trips` writes them: each once, and only valid ones."""
    schema = to_arrow_schema(TRIPS, timezone="UTC")
    raw = read_tlc([path]) if path is not None else generate(GeneratorOptions(trips=60_000))
    found = add_card_ids(raw)
    rows = pl.from_arrow(found)
    assert isinstance(rows, pl.DataFrame)
    rows = rows.unique(KEY, keep="first", maintain_order=True).filter(
        pl.col("lpep_dropoff_datetime") >= pl.col("lpep_pickup_datetime")
    )
    rows = rows.with_columns(source_file=pl.lit("trips-0.parquet"), source_row=pl.int_range(pl.len()))
    missing = [name for name in schema.names if name not in rows.columns]
    rows = rows.with_columns(**{name: pl.lit(None) for name in missing})
    table = rows.select(schema.names).to_arrow()
    columns = []
    for field in schema:
        column = table[field.name]
        if pa.types.is_timestamp(field.type) and column.type.tz is None:
            column = column.cast(pa.timestamp("us")).cast(field.type)
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=schema)


def _repeated(month: pa.Table, number: int, rows: int) -> pa.Table:
    """Return as many rows of the month, in later months: those after what smaller numbers have."""
    parts = []
    left, copy = rows, 0
    months = -(-rows // month.num_rows)
    while left > 0:
        part = month.slice(0, left)
        shift = MONTH * (number * months + copy)
        for name in ("lpep_pickup_datetime", "lpep_dropoff_datetime"):
            index = part.schema.names.index(name)
            moved = pa.array(part[name].to_numpy() + np.timedelta64(shift), pa.timestamp("us", "UTC"))
            part = part.set_column(index, part.schema.field(name), moved)
        file = pa.array([f"trips-{number}-{copy}.parquet"] * part.num_rows)
        part = part.set_column(part.schema.names.index("source_file"), part.schema.field("source_file"), file)
        parts.append(part)
        left, copy = left - part.num_rows, copy + 1
    return pa.concat_tables(parts)


def _by_spark(root: str) -> tuple[float, float]:
    """Check the whole table by Spark; return the seconds of its start, and of the check."""
    workspace = open_workspace("local", root=root)
    began = time.monotonic()
    spark = build_session("bench-quality", master="local[2]", memory="4g")
    started = time.monotonic() - began
    run = check(
        tables_dir=workspace.tables,
        expectations_dir=EXPECTATIONS,
        results_dir=workspace.root / QUALITY,
        tables=["trips"],
        # Without it, a table that fits is checked in memory.
        spark=spark,
    )
    spark.stop()
    return started, run.seconds


def _memory(pid: int, peak: list[int], stop: threading.Event) -> None:
    process = psutil.Process(pid)
    while not stop.wait(0.1):
        try:
            peak[0] = max(peak[0], process.memory_info().rss)
        except psutil.NoSuchProcess:
            return


if __name__ == "__main__":
    sys.exit(main())
