"""Streamwarden's overhead: its driver against a bare PySpark script, with the same query and input, to Delta.

Run by ``make bench-overhead``. The query is ``zone_windows``: hourly windows by zone, upserted by MERGE. The bare
script is a minimal Spark program: no lease, no transaction ids, no progress documents. One runs after the other, with
one Spark core each. Rates are rows by time in batches, for batches in which each was warm. The result is the median of
the runs' ratios. (Both at the same time would compare a warm driver with a script that still warms up.)

Options: ``--rows`` (input rows), ``--batches``, ``--runs``.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import yaml

from streamwarden.operations.deploy import deploy_job
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control

GOAL = 1.0
# Batches excluded at the beginning of both: about a minute, in which the JVM still compiles. Jobs run for weeks.
WARM_UP = 20
INTERVAL_MS = 100
PARTITIONS = 2
CORES = 1
MEMORY = "1g"
REPOSITORY = Path(__file__).parents[1]


def main() -> int:
    """Create the input, run both, print the ratio; exit with status 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description="Streamwarden's driver against a bare PySpark script.")
    parser.add_argument("--rows", type=int, default=900_000)
    parser.add_argument("--batches", type=int, default=45)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bare", nargs=2, metavar=("ROOT", "BATCHES"), help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=3, metavar=("TABLE", "ROWS", "FILES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.batches <= WARM_UP:
        parser.error(f"--batches: more than the first {WARM_UP}, which are not measured")
    if given.make:
        return make_input(Path(given.make[0]), int(given.make[1]), int(given.make[2]))
    if given.bare:
        return bare(Path(given.bare[0]), int(given.bare[1]))
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        source = Path(folder) / "trips"
        script = [sys.executable, __file__]
        subprocess.run([*script, "--make", str(source), str(given.rows), str(given.batches)], check=True)
        ratios = []
        for number in range(given.runs):
            rates = one_by_one(Path(folder) / str(number), source, given.batches)
            ratios.append(rates["driver"] / rates["bare"])
            print(
                f"run {number + 1}/{given.runs}: driver {rates['driver']:,.0f} rows/s,"
                f" bare {rates['bare']:,.0f} rows/s, ratio {ratios[-1]:.3f}",
                flush=True,
            )
    ratio = statistics.median(ratios)
    memory = psutil.virtual_memory().total / 2**30
    print(f"machine: {platform.machine()}, {psutil.cpu_count()} cores, {memory:.0f} GiB; {given.runs} runs of each")
    print(f"driver_rows_per_second_to_bare {ratio:.3f} {GOAL} {'ok' if ratio >= GOAL else 'short'}")
    return 0 if ratio >= GOAL else 1


def make_input(table: Path, rows: int, files: int) -> int:
    """Write generated trips as a Delta table, one commit for each batch, in the order of their pickups."""
    from nyc_taxi.trips.generator import GeneratorOptions, generate
    from pyspark.sql import functions as F

    from streamwarden.spark.session import build_session

    days = 4 * files
    start = datetime(2023, 3, 6)
    options = GeneratorOptions(start=start, end=start + timedelta(days=days), trips=rows, dirt=False)
    trips = generate(options).sort_by("lpep_pickup_datetime")
    session = build_session("make input", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    with tempfile.TemporaryDirectory() as folder:
        import pyarrow.parquet as pq

        pq.write_table(trips, f"{folder}/trips.parquet")
        frame = session.read.parquet(f"{folder}/trips.parquet")
        pickup = F.col("lpep_pickup_datetime").cast("timestamp")
        frame = frame.withColumn("lpep_pickup_datetime", pickup)
        for number in range(files):
            # With a zone: a literal without a zone is in this machine's local time.
            low, high = ((start + timedelta(days=4 * n)).replace(tzinfo=UTC) for n in (number, number + 1))
            part = frame.where((pickup >= F.lit(low)) & (pickup < F.lit(high))).coalesce(1)
            part.write.format("delta").mode("append").save(str(table))
    session.stop()
    return 0


@dataclass(frozen=True)
class Batch:
    """One batch with rows: start and end in seconds since the epoch, and the number of rows."""

    start: float
    end: float
    rows: int


def one_by_one(folder: Path, source: Path, batches: int) -> dict[str, float]:
    """Run both over the input, one after the other; return the rows a second of each."""
    roots = {who: folder / who for who in ("driver", "bare")}
    for root in roots.values():
        (root / "tables").mkdir(parents=True)
        (root / "tables" / "trips").symlink_to(source)
    script = [sys.executable, __file__, "--bare", str(roots["bare"]), str(batches)]
    said = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    done = {
        "driver": driver(roots["driver"], batches),
        "bare": [Batch(*one) for one in json.loads(said.splitlines()[-1])],
    }
    shutil.rmtree(folder)
    warm = {who: found[WARM_UP:] for who, found in done.items()}
    return {
        who: sum(one.rows for one in found) / sum(one.end - one.start for one in found) for who, found in warm.items()
    }


def driver(root: Path, batches: int) -> list[Batch]:
    """Run Streamwarden's driver over the input, and return its batches."""
    config = root / "config"
    (config / "jobs").mkdir(parents=True)
    (config / "profiles").mkdir()
    job = yaml.safe_load((REPOSITORY / "config" / "jobs" / "zone_windows.yaml").read_text())
    job["source"]["max_files_per_batch"] = 1
    # The bare script marks no final rows either, so both do the same work on the same table.
    del job["sinks"][0]["final_when_passed"]
    job["sinks"][0].pop("reconcile", None)
    (config / "jobs" / "zone_windows.yaml").write_text(yaml.safe_dump(job))
    pace = {
        "interval": f"{INTERVAL_MS}ms",
        "partitions": PARTITIONS,
        "resources": {"cores": CORES, "memory": MEMORY},
    }
    profile = {"name": "bench", "root": str(root), "jobs": pace, "spares": 0}
    (config / "profiles" / "bench.yaml").write_text(yaml.safe_dump(profile))
    workspace = open_workspace("bench", config=config)
    deploy_job(workspace, "zone_windows", by="benchmark")
    driver_control.wait_for(
        workspace,
        "zone_windows",
        lambda seen: not seen.phase.alive or _batches_done(workspace) >= batches,
        timeout=900,
        what="the input to be read",
        # Supervisors poll no more often than this.
        poll=2.0,
    )
    seen = driver_control.stop(workspace, "zone_windows", by="benchmark")
    assert seen.progress is not None, seen
    return [
        Batch(one.at.timestamp() - one.duration_ms / 1000, one.at.timestamp(), one.rows_in)
        for one in seen.progress.recent
        if one.rows_in
    ]


def _batches_done(workspace: Workspace) -> int:
    totals = JobDocuments(workspace.storage, "zone_windows").current_totals()
    return totals.batches if totals else 0


def bare(root: Path, batches: int) -> int:
    """Run the query without Streamwarden's driver, and print its batches."""
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from streamwarden.spark.session import build_session

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    session = build_session("bare", master=f"local[{CORES}]", memory=MEMORY, settings=settings)
    session.sparkContext.setLogLevel("ERROR")
    table = str(root / "tables" / "zone_windows")
    (
        DeltaTable.createIfNotExists(session)
        .location(table)
        .addColumn("window_start", "TIMESTAMP")
        .addColumn("window_end", "TIMESTAMP")
        .addColumn("zone_id", "INT")
        .addColumn("trips", "BIGINT")
        .addColumn("revenue", "DECIMAL(18,2)")
        .addColumn("average_fare", "DOUBLE")
        .execute()
    )

    def upsert(rows: DataFrame, _: int) -> None:
        (
            DeltaTable.forPath(rows.sparkSession, table)
            .alias("t")
            .merge(rows.alias("s"), "t.window_start = s.window_start AND t.zone_id = s.zone_id")
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )

    def cents(name: str) -> object:
        return F.coalesce(F.round(F.col(name) * 100).cast("long"), F.lit(0))

    query = (
        session.readStream.format("delta")
        .option("maxFilesPerTrigger", 1)
        .load(str(root / "tables" / "trips"))
        .withWatermark("lpep_pickup_datetime", "2 hours")
        .groupBy(F.window("lpep_pickup_datetime", "1 hour").alias("w"), F.col("PULocationID").alias("zone_id"))
        .agg(
            F.count(F.lit(1)).alias("trips"),
            (F.sum(cents("total_amount")) / 100).cast("decimal(18,2)").alias("revenue"),
            (F.sum(cents("fare_amount")) / (F.count("fare_amount") * 100.0)).alias("average_fare"),
        )
        .select(
            F.col("w.start").alias("window_start"),
            F.col("w.end").alias("window_end"),
            "zone_id",
            "trips",
            "revenue",
            "average_fare",
        )
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(processingTime=f"{INTERVAL_MS} milliseconds")
        .foreachBatch(upsert)
        .start()
    )
    while query.isActive and sum(1 for one in query.recentProgress if one["numInputRows"]) < batches:
        query.awaitTermination(1)
    query.stop()
    found = []
    for one in query.recentProgress:
        if one["numInputRows"]:
            start = datetime.fromisoformat(one["timestamp"]).timestamp()
            found.append((start, start + one["durationMs"]["triggerExecution"] / 1000, one["numInputRows"]))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
