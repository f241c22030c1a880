"""What a batch's commits cost: their share, their growth with the table, a batch's fixed cost, and an idle driver.

Run by ``make bench-commits``. Queries run with the driver's writer and sinks, in a process each, one after the other,
with two cores and two state partitions:

- ``sessions``: ``card_sessions`` at 50,000 cards, 250,000 rows a batch, a tenth of them late. About 100,000 rows
  of its table change in each. What counts is the sink's share of a batch's time, as the median of the later half.
- ``sessions_50x``: the same, into a table that has fifty times as many rows of earlier days.
- ``windows``: ``zone_windows`` over the same rows, with 250,000 and with a million rows a batch. The line through both
  tells the fixed cost, which a batch without rows would have.
- ``idle``: the CPU time of a driver of ``zone_windows`` that finds nothing new every five seconds, as a share of a
  core.

Options: ``--runs``; ``--scale`` (share of the rows and cards, for a trial); ``--only``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks import state_python
from benchmarks.report import REPOSITORY, goal_met, print_machine

LOAD = state_python.Load(50_000, 250_000, 8)
WINDOW_BATCHES = 24
TIMES = 50
IDLE_S, SETTLE_S = 60, 30
"""Seconds of the measurement of an idle driver, and from its first empty tick to it: Java compiles for a while."""
START_S = 180
NAMES = ("sessions", "sessions_50x", "windows", "idle")


def main() -> int:
    """Measure, and print a line for each goal; exit with status 1 if one is missed."""
    parser = argparse.ArgumentParser(description="What a batch's commits cost.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("--one", nargs=3, metavar=("NAME", "INPUT", "SCALE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, folder, scale = given.one
        print(json.dumps(_ONE[name](Path(folder), float(scale))))
        return 0
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="commits-") as folder:
        for run in range(given.runs):
            for name in given.only:
                source = _input(Path(folder), name, given.scale)
                command = [sys.executable, "-m", "benchmarks.commits", "--one", name, str(source), str(given.scale)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                figures = json.loads(done.stdout.splitlines()[-1])
                found.setdefault(name, []).append(figures)
                said = ", ".join(f"{what} {value:,.3f}" for what, value in figures.items())
                print(f"run {run + 1}/{given.runs}: {name}: {said}", flush=True)
    print_machine(given.runs)

    def median(name: str, what: str) -> float:
        return statistics.median(one[what] for one in found[name])

    met = []
    if "sessions" in found:
        met.append(goal_met("sink_share_of_batch", median("sessions", "sink_share"), 0.3))
    if {"sessions", "sessions_50x"} <= found.keys():
        # Flat within the noise of a quarter.
        growth = median("sessions_50x", "sink_s") / median("sessions", "sink_s")
        met.append(goal_met("sink_time_at_50_times_the_table", growth, 1.25))
    if "windows" in found:
        met.append(goal_met("fixed_s_of_a_batch", median("windows", "fixed_s"), 0.5))
    if "idle" in found:
        met.append(goal_met("idle_share_of_a_core", median("idle", "cores"), 0.01))
    return 0 if all(met) else 1


def _input(folder: Path, name: str, scale: float) -> Path:
    batches = WINDOW_BATCHES if name == "windows" else LOAD.batches
    load = state_python.Load(math.ceil(LOAD.cards * scale), math.ceil(LOAD.rows * scale), batches)
    source = folder / f"{batches}"
    return source if source.exists() else state_python.write_input(source, load)


def _spec(name: str) -> Any:
    from streamwarden.store.config import load_job

    spec = load_job(name, config=REPOSITORY / "config")
    return spec.model_copy(update={"trigger": spec.trigger.model_copy(update={"min_pause": timedelta(0)})})


def _run(name: str, source: Path, files: int, work: Path, table: Path) -> tuple[list[float], list[float]]:
    """Run a job over the input; return the seconds of each batch, and of its commits."""
    from streamwarden.driver.pipeline.batches import BatchWriter
    from streamwarden.driver.pipeline.module import load_module, settings_for
    from streamwarden.driver.pipeline.sink import DeltaSink
    from streamwarden.formats.checkpoint import CheckpointReader
    from streamwarden.storage.local import LocalStorage

    spec = _spec(name)
    module = load_module(spec)
    spark = state_python._session(work)
    sink = DeltaSink(spark, str(table), spec.sinks[0], module.OUTPUTS["main"], "benchmark")
    writer = BatchWriter(spec, module, {"main": sink}, CheckpointReader(LocalStorage(work), "checkpoint"), lambda: None)
    schema = spark.read.parquet(str(source)).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(source))
    rows = rows.selectExpr("*", "total_amount AS fare_amount")
    query = (
        module.transform(rows, settings_for(spec, module))
        .writeStream.foreachBatch(writer)
        .outputMode("update")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [one for one in query.recentProgress if one.numInputRows]
    sinks = [writer.counts(one.batchId) for one in done]
    spark.stop()
    seconds = [one.durationMs["triggerExecution"] / 1000 for one in done]
    return seconds, [one.sink_ms / 1000 for one in sinks if one is not None]


def _later(values: list[float]) -> float:
    return statistics.median(values[len(values) // 2 :])


def _sessions(source: Path, scale: float, *, times: int = 0) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="commits-run-") as folder:
        work = Path(folder)
        table = work / "table"
        if times:
            _fill(work, table, times, math.ceil(LOAD.rows * LOAD.batches * scale))
        seconds, sinks = _run("card_sessions", source, 2, work, table)
    share = statistics.median(a / b for a, b in list(zip(sinks, seconds, strict=True))[len(sinks) // 2 :])
    rows = math.ceil(LOAD.rows * scale)
    return {
        "batch_s": _later(seconds),
        "sink_s": _later(sinks),
        "sink_share": share,
        "rows_per_s": rows / _later(seconds),
    }


def _fill(work: Path, table: Path, times: int, rows: int) -> None:
    """Make the table with sessions of earlier days, by their time, as its batches would have left them."""
    import numpy as np
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    from streamwarden.driver.pipeline.sink import DeltaSink

    spec = _spec("card_sessions")
    from spark_jobs import card_sessions

    (work / "fill").mkdir()
    spark = state_python._session(work / "fill")
    DeltaSink(spark, str(table), spec.sinks[0], card_sessions.OUTPUTS["main"], "fill")
    spark.stop()
    schema = pa.schema(DeltaTable(str(table)).schema())
    random = np.random.default_rng(1)
    # A third of the rows: about as many sessions as trips make.
    number = rows // 3
    for part in range(times):
        first = state_python.BASE_US - (times - part) * LOAD.batches * state_python.BATCH_US
        starts = np.sort(first + random.integers(0, LOAD.batches * state_python.BATCH_US, number))
        cards = np.char.add("c", np.char.zfill(random.integers(0, LOAD.cards, number).astype("U15"), 15))
        given = {
            "card_id": pa.array(cards),
            "session_start": pa.array(starts, pa.timestamp("us", "UTC")),
            "session_end": pa.array(starts + 600_000_000, pa.timestamp("us", "UTC")),
        }
        columns = [given.get(one.name, pa.nulls(number, one.type)) for one in schema]
        write_deltalake(str(table), pa.table(columns, schema=schema), mode="append", target_file_size=16 * 2**20)


def _windows(source: Path, scale: float) -> dict[str, float]:
    found = {}
    for files in (2, 8):
        with tempfile.TemporaryDirectory(prefix="commits-run-") as folder:
            seconds, _ = _run("zone_windows", source, files, Path(folder), Path(folder) / "table")
        found[files] = _later(seconds)
    # The line through (2, t) and (8, u), at 0.
    fixed = found[2] - (found[8] - found[2]) / (8 - 2) * 2
    rows = math.ceil(LOAD.rows * scale) * 4
    return {"few_s": found[2], "many_s": found[8], "fixed_s": fixed, "rows_per_s": rows / found[8]}


def _idle(source: Path, _: float) -> dict[str, float]:
    from streamwarden.operations.deploy import deploy_job
    from streamwarden.store.workspace import open_workspace
    from streamwarden.supervision import driver_control
    from streamwarden.supervision.observe import observe

    with tempfile.TemporaryDirectory(prefix="commits-idle-") as folder:
        config = Path(folder) / "config"
        (config / "jobs").mkdir(parents=True)
        (config / "profiles").mkdir()
        job = yaml.safe_load((REPOSITORY / "config" / "jobs" / "zone_windows.yaml").read_text())
        (config / "jobs" / "zone_windows.yaml").write_text(yaml.safe_dump(job))
        profile = {"name": "idle", "root": f"{folder}/root", "jobs": {"interval": "5s"}, "spares": 0}
        (config / "profiles" / "idle.yaml").write_text(yaml.safe_dump(profile))
        workspace = open_workspace("idle", config=config)
        _trips(Path(workspace.table("trips")), source)
        deploy_job(workspace, "zone_windows", by="benchmark")
        deadline = time.monotonic() + START_S
        while (beat := observe(workspace, "zone_windows").heartbeat) is None or not beat.idle:
            assert time.monotonic() < deadline, beat
            time.sleep(1)
        time.sleep(SETTLE_S)
        processes = psutil.Process(beat.process.pid)
        every = [processes, *processes.children(recursive=True)]
        before = sum(_cpu(one) for one in every)
        time.sleep(IDLE_S)
        spent = sum(_cpu(one) for one in every) - before
        driver_control.stop(workspace, "zone_windows", by="benchmark")
    return {"cores": spent / IDLE_S}


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _trips(table: Path, source: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import write_deltalake

    rows = pq.read_table(sorted(source.glob("*.parquet"))[0]).slice(0, 1000)
    write_deltalake(str(table), rows.append_column("fare_amount", rows["total_amount"].cast(pa.float64())))


_ONE: dict[str, Any] = {
    "sessions": _sessions,
    "sessions_50x": lambda source, scale: _sessions(source, scale, times=TIMES),
    "windows": _windows,
    "idle": _idle,
}


if __name__ == "__main__":
    sys.exit(main())
