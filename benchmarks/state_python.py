"""Keyed state for Python against plain transformWithState and against native session_window.

Run by ``make bench-state-python``. The job is ``card_sessions``, and for one rate ``card_velocity``, without their
tables: batches go to Spark's noop sink.
The input is files of trips in the order of their arrival. A batch has two hours of event time, and a tenth of its trips
are up to four hours late. Each measurement is a session of its own, one after the other, with two cores and two state
partitions. A rate is input rows by the time of a batch, the median of the later half of the batches. Before, each form
computes a small input, and its result is compared with a batch computation.

Options: ``--runs``; ``--scale`` (share of the rows and cards, for a trial); ``--only`` (names of measurements).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import goal_met, print_machine

BASE_US = 1_704_067_200_000_000
HOUR_US = 3_600_000_000
BATCH_US = 2 * HOUR_US
LATE_S = 4 * 3600
GAP, CLOSE_AFTER, TTL = timedelta(minutes=30), timedelta(minutes=45), timedelta(hours=24)
BUCKETS = 64


@dataclass(frozen=True)
class Load:
    """What arrives: so many cards; rows of a batch; batches; and whether a first batch brings every card once."""

    cards: int
    rows: int
    batches: int
    primed: bool = False


@dataclass(frozen=True)
class Measurement:
    """One form of the job under one load."""

    form: str
    load: Load


_50K, _1M = Load(50_000, 250_000, 8), Load(1_000_000, 250_000, 6, primed=True)
MEASUREMENTS = {
    "keyed_50k": Measurement("keyed", _50K),
    "plain_50k": Measurement("plain", Load(50_000, 250_000, 2)),
    "window_50k": Measurement("window", _50K),
    "keyed_1m": Measurement("keyed", _1M),
    "window_1m": Measurement("window", _1M),
    "velocity_50k": Measurement("velocity", _50K),
    "keyed_sparse": Measurement("keyed", Load(1_000_000, 2_000, 10, primed=True)),
    # Not primed: its time depends on the touched keys only, and a million cards would take it a quarter of an hour.
    "plain_sparse": Measurement("plain", Load(1_000_000, 2_000, 6)),
    "keyed_touched_50k": Measurement("keyed", Load(50_000, 20_000, 40, primed=True)),
    "keyed_touched_5m": Measurement("keyed", Load(5_000_000, 20_000, 40, primed=True)),
}


def main() -> int:
    """Measure, and print a line for each goal; exit with status 1 if one is missed."""
    parser = argparse.ArgumentParser(description="Keyed state for Python against plain forms.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--one", nargs=3, metavar=("FORM", "INPUT", "BUCKETS"), help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        form, folder, buckets = given.one
        print(json.dumps(check(form, Path(folder)) if given.check else measure(form, Path(folder), int(buckets))))
        return 0
    found: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="state-python-") as folder:
        small = write_input(Path(folder) / "small", Load(2_000, 6_000, 4))
        for form in _FORMS:
            print(f"{form}: {_apart(form, small, check=True)}", flush=True)
        for run in range(given.runs):
            for name in given.only:
                one = MEASUREMENTS[name]
                load = _scaled(one.load, given.scale)
                source = Path(folder) / f"{load.cards}-{load.rows}-{load.batches}-{load.primed}"
                if not source.exists():
                    write_input(source, load)
                seconds: Any = _apart(one.form, source)
                found.setdefault(name, []).append(seconds)
                half = statistics.median(seconds[len(seconds) // 2 :])
                print(
                    f"run {run + 1}/{given.runs}: {name}: {half:.2f} s a batch, {load.rows / half:,.0f} rows/s;"
                    f" all batches {', '.join(f'{one:.2f}' for one in seconds)}",
                    flush=True,
                )
    print_machine(given.runs)
    return 0 if all(goals(found)) else 1


def goals(found: dict[str, list[list[float]]]) -> list[bool]:
    """Print a line for each goal whose measurements are there; return whether each is met."""

    def rate(name: str) -> float:
        load = MEASUREMENTS[name].load
        return load.rows / statistics.median(statistics.median(run[len(run) // 2 :]) for run in found[name])

    def p99(name: str) -> float:
        # Without the first batch, which brings every card, and the next three, in which the JVM and the workers' bases
        # are cold: both come once after a start.
        return statistics.median(float(np.quantile(run[4:], 0.99)) for run in found[name])

    met = []
    for name, above, below, goal in (
        ("keyed_to_plain_50k", "keyed_50k", "plain_50k", 20),
        ("keyed_to_session_window_50k", "keyed_50k", "window_50k", 2),
        ("keyed_to_session_window_1m", "keyed_1m", "window_1m", 2),
    ):
        if {above, below} <= found.keys():
            met.append(goal_met(name, rate(above) / rate(below), goal, at_least=True))
    if "velocity_50k" in found:
        met.append(goal_met("velocity_rows_per_s", rate("velocity_50k"), 150_000, at_least=True))
    if {"keyed_sparse", "plain_sparse"} <= found.keys():
        met.append(goal_met("keyed_time_to_plain_sparse", rate("plain_sparse") / rate("keyed_sparse"), 1.0))
    if {"keyed_touched_50k", "keyed_touched_5m"} <= found.keys():
        met.append(goal_met("p99_growth_50k_to_5m", p99("keyed_touched_5m") / p99("keyed_touched_50k"), 2.0))
    return met


def write_input(folder: Path, load: Load) -> Path:
    """Write a file of trips for each batch."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    for batch in range(load.batches + load.primed):
        first = load.primed and batch == 0
        cards = random.permutation(load.cards) if first else random.integers(0, load.cards, load.rows)
        rows = len(cards)
        pickup = BASE_US + batch * BATCH_US + random.integers(0, BATCH_US // 1_000_000, rows) * 1_000_000
        # One trip in a hundred is followed by four more of its card within three minutes.
        burst = np.flatnonzero(random.random(rows - 4) < (0 if first else 0.01))
        for trip in range(1, 5):
            cards[burst + trip] = cards[burst]
            pickup[burst + trip] = pickup[burst] + 40_000_000 * trip
        late = random.random(rows) < 0.1
        pickup = np.where(late, pickup - random.integers(0, LATE_S, rows) * 1_000_000, pickup)
        order = np.argsort(pickup + random.integers(0, 600, rows) * 1_000_000, kind="stable")
        zones = [pa.array(random.integers(1, 266, rows).astype("int32")) for _ in range(2)]
        table = pa.table(
            {
                "card_id": pa.array(np.char.add("c", np.char.zfill(cards[order].astype("U15"), 15))),
                "lpep_pickup_datetime": pa.array(pickup[order], pa.timestamp("us", "UTC")),
                "total_amount": pa.array(random.integers(300, 9000, rows) / 100),
                "PULocationID": zones[0],
                "DOLocationID": zones[1],
            }
        )
        # Two files a batch: one for each core.
        for part, rows_of in enumerate((table.slice(0, rows // 2), table.slice(rows // 2))):
            pq.write_table(rows_of, folder / f"{batch:04d}-{part}.parquet")
    return folder


def measure(form: str, source: Path, buckets: int) -> list[float]:
    """Run a form over an input; return the seconds of each batch."""
    with tempfile.TemporaryDirectory(prefix="state-python-run-") as work:
        spark = _session(Path(work))
        query = _writer(form, spark, source, buckets, Path(work)).format("noop").start()
        query.awaitTermination()
        done = [one for one in query.recentProgress if one.numInputRows]
        spark.stop()
    return [one.durationMs["triggerExecution"] / 1000 for one in done]


def check(form: str, source: Path) -> str:
    """Run a form over an input, and compare its result with a batch computation in DuckDB."""
    return _check_velocity(source) if form == "velocity" else _check_sessions(form, source)


def _check_velocity(source: Path) -> str:
    from spark_jobs import card_velocity

    windows: dict[tuple[str, Any], Any] = {}
    alerts: list[pa.Table] = []

    def keep(batch: Any, _: int) -> None:
        split = card_velocity.outputs(batch)
        alerts.append(split["main"].toArrow())
        windows.update({(row["card_id"], row["window_start"]): row for row in split["windows"].toArrow().to_pylist()})

    with tempfile.TemporaryDirectory(prefix="state-python-check-") as work:
        spark = _session(Path(work))
        _writer("velocity", spark, source, 32, Path(work)).foreachBatch(keep).start().awaitTermination()
        spark.stop()
    from nyc_taxi.demo.velocity import compare_card_alerts, compare_card_velocity, expected_card_velocity

    trips = pq.read_table(source)
    found = pa.Table.from_pylist(list(windows.values()))
    compared = (
        compare_card_velocity(expected_card_velocity(trips), found),
        compare_card_alerts(trips, pa.concat_tables(alerts)),
    )
    if not all(one.equal for one in compared):
        raise SystemExit("\n".join(map(str, compared)))
    return "; ".join(map(str, compared))


def _check_sessions(form: str, source: Path) -> str:
    found: dict[tuple[str, Any], tuple[Any, ...]] = {}

    def keep(batch: Any, _: int) -> None:
        for row in batch.collect():
            key = (row.card_id, row.session_start)
            if row["_deleted"]:
                found.pop(key, None)
            else:
                found[key] = (row.session_end, row.trips, row.total_amount, tuple(row.zones))

    with tempfile.TemporaryDirectory(prefix="state-python-check-") as work:
        spark = _session(Path(work))
        query = _writer(form, spark, source, 32, Path(work)).foreachBatch(keep).start()
        query.awaitTermination()
        spark.stop()
    from nyc_taxi.demo.batch import expected_card_sessions

    trips = pq.read_table(source)
    expected = {
        (row["card_id"], row["session_start"]): (
            row["session_end"],
            row["trips"],
            row["total_amount"],
            tuple(row["zones"]),
        )
        for row in expected_card_sessions(trips).to_pylist()
    }
    if form == "window":
        # Only windows that the watermark has passed come out.
        assert found, "no window was closed"
        expected = {key: expected.get(key, ()) for key in found}
    if found != expected:
        raise SystemExit(f"{form}: {len(found)} sessions, {len(expected)} expected; they differ")
    return f"{len(found)} sessions equal to batch"


def _session(work: Path) -> Any:
    from streamwarden.spark.session import build_session

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = build_session(
        "state-python",
        master="local[2]",
        memory="3g",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.providerClass": provider,
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
            # Otherwise a query with timers in processing time never ends by itself.
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        },
        java_options=f"-Djava.io.tmpdir={work}",
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _writer(form: str, spark: Any, source: Path, buckets: int, work: Path) -> Any:
    schema = spark.read.parquet(str(source)).schema
    trips = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(source))
    rows = _FORMS[form](trips, buckets)
    writer = rows.writeStream.option("checkpointLocation", str(work / "checkpoint"))
    return writer.outputMode("append" if form == "window" else "update").trigger(availableNow=True)


def _keyed(trips: Any, buckets: int) -> Any:
    from spark_jobs import card_sessions

    return card_sessions.transform(trips, _settings(buckets))


def _plain(trips: Any, buckets: int) -> Any:
    from spark_jobs import card_sessions_plain

    return card_sessions_plain.transform(trips, _settings(buckets))


def _velocity(trips: Any, buckets: int) -> Any:
    from spark_jobs import card_velocity
    from streamwarden.driver.job_api import JobSettings

    # Ten minutes more than the latest trip: none is dropped, so that a batch computation has the same trips.
    watermark = timedelta(seconds=LATE_S, minutes=10)
    settings = JobSettings(watermark=watermark, ttl=None, options=card_velocity.Options(), buckets=buckets)
    return card_velocity.transform(trips, settings)


def _window(trips: Any, _: int) -> Any:
    """Spark's own session window, with the same sums and zones; it emits closed sessions only."""
    from pyspark.sql import functions as F

    pickup = F.col("lpep_pickup_datetime")
    sessions = (
        trips.withWatermark("lpep_pickup_datetime", f"{LATE_S} seconds")
        # A window ends a gap after its last trip, exclusive: a trip at exactly the gap begins another.
        .groupBy("card_id", F.session_window(pickup, f"{GAP.seconds * 1_000_000 + 1} microseconds").alias("window"))
        .agg(
            F.count(F.lit(1)).alias("trips"),
            F.sum(F.round(F.col("total_amount") * 100).cast("bigint")).alias("cents"),
            F.max(pickup).alias("session_end"),
            F.collect_set("PULocationID").alias("pickups"),
            F.collect_set("DOLocationID").alias("dropoffs"),
        )
    )
    return sessions.select(
        "card_id",
        F.col("window.start").alias("session_start"),
        "session_end",
        "trips",
        (F.col("cents").cast("decimal(18,0)") / 100).cast("decimal(18,2)").alias("total_amount"),
        F.array_sort(F.array_union("pickups", "dropoffs")).alias("zones"),
        F.lit(False).alias("_deleted"),
    )


_FORMS: dict[str, Callable[[Any, int], Any]] = {
    "keyed": _keyed,
    "plain": _plain,
    "window": _window,
    "velocity": _velocity,
}


def _settings(buckets: int) -> Any:
    from spark_jobs.card_sessions import Options
    from streamwarden.driver.job_api import JobSettings

    options = Options(gap=GAP, close_after=CLOSE_AFTER)
    return JobSettings(watermark=None, ttl=TTL, options=options, buckets=buckets)


def _apart(form: str, source: Path, *, check: bool = False) -> Any:
    """Run in a process of its own: a JVM that has run one form is warm for the next."""
    command = [sys.executable, "-m", "benchmarks.state_python", "--one", form, str(source), str(BUCKETS)]
    done = subprocess.run([*command, *(["--check"] if check else [])], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _scaled(load: Load, scale: float) -> Load:
    return Load(math.ceil(load.cards * scale), math.ceil(load.rows * scale), load.batches, load.primed)


if __name__ == "__main__":
    sys.exit(main())
