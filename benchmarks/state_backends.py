"""A native job's state in memory and in RocksDB, with and without a changelog, by the number of keys.

Run by ``make bench-state``. The job counts and sums by key (`benchmarks.keyed_counts`), with two cores and four state
partitions, in a session with the settings that a driver would have. A first batch brings every key once. Then each
batch brings 100,000 rows of random keys. Rows go to Spark's noop sink. Each measurement is a process of its own. Commit
times are those of the state stores, summed over the partitions' tasks by Spark and divided by their number.

Options: ``--keys`` (several), ``--batches``, ``--only`` (forms), ``--memory`` (heap).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import goal_met, print_machine
from streamwarden.model.spec import JobSpec, StateSpec

ROWS, PARTITIONS = 100_000, 4
FORMS = {
    "memory": {"backend": "memory"},
    "rocksdb": {"backend": "rocksdb", "changelog": False},
    "rocksdb_changelog": {"backend": "rocksdb", "changelog": True},
}
KEYS = (10_000, 100_000, 1_000_000, 5_000_000)


def main() -> int:
    """Measure, and print a table and a line for each goal; exit with status 1 if one is missed."""
    parser = argparse.ArgumentParser(description="State backends by the number of keys.")
    parser.add_argument("--keys", nargs="*", type=int, default=list(KEYS))
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--only", nargs="*", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--memory", default="6g")
    parser.add_argument("--one", nargs=2, metavar=("FORM", "INPUT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], Path(given.one[1]), given.memory)))
        return 0
    found: dict[tuple[int, str], dict[str, Any]] = {}
    print("keys        form               rows/s  commit p50/p99 ms  checkpoint MiB  memory GiB")
    for keys in given.keys:
        with tempfile.TemporaryDirectory(prefix="state-") as folder:
            source = _input(Path(folder) / "input", keys, given.batches)
            for form in given.only:
                command = [sys.executable, "-m", "benchmarks.state_backends", "--one", form, str(source)]
                command += ["--memory", given.memory]
                done = subprocess.run(
                    command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
                )
                if done.returncode:
                    print(f"{keys:<11,} {form:17} ended with status {done.returncode}", flush=True)
                    continue
                one = found[keys, form] = json.loads(done.stdout.splitlines()[-1])
                print(
                    f"{keys:<11,} {form:17} {one['rate']:7,.0f}  {one['p50']:8.0f} /{one['p99']:6.0f}"
                    f"  {one['checkpoint'] / 2**20:14.1f}  {one['memory'] / 2**30:10.2f}",
                    flush=True,
                )
    print_machine(1)
    met = []
    for keys in given.keys:
        # The default must not be the wrong choice where state is largest.
        if {(keys, "memory"), (keys, "rocksdb_changelog")} <= set(found) and keys == max(given.keys):
            default, memory = found[keys, "rocksdb_changelog"], found[keys, "memory"]
            met.append(goal_met(f"default_rate_to_memory_{keys}", default["rate"] / memory["rate"], 1.0, at_least=True))
            met.append(goal_met(f"default_process_memory_to_memory_{keys}", default["memory"] / memory["memory"], 0.5))
    return 0 if all(met) else 1


def _input(folder: Path, keys: int, batches: int) -> Path:
    """Write a file for each batch: first every key once, then random ones."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(1)
    for number in range(batches + 1):
        chosen = np.arange(keys) if number == 0 else draw.integers(0, keys, ROWS)
        names = pa.array([f"key-{key:09d}" for key in chosen])
        rows = pa.table({"key": names, "amount": draw.random(len(chosen))})
        pq.write_table(rows, folder / f"{number:06d}.parquet")
    return folder


def measure(form: str, source: Path, memory: str) -> dict[str, Any]:
    """Run the job over the files; return its figures over the later half of the batches."""
    from benchmarks import keyed_counts
    from streamwarden.driver.job_api import JobSettings
    from streamwarden.driver.job_session import checkpoint_session
    from streamwarden.store.workspace import open_workspace

    with tempfile.TemporaryDirectory(prefix=f"{form}-") as folder:
        spec = JobSpec.model_validate(
            {
                "name": "bench",
                "module": "benchmarks.keyed_counts",
                "source": {"kind": "delta", "table": "events"},
                "sinks": [{"table": "counts", "mode": "upsert", "keys": ["key"]}],
                "trigger": {"interval": "1s"},
                "resources": {"cores": 2, "memory": memory},
                "state": StateSpec.model_validate({"partitions": PARTITIONS, **FORMS[form]}).model_dump(mode="json"),
            }
        )
        workspace = open_workspace("local", root=folder)
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        session = checkpoint_session(workspace, spec, scratch)
        peak, stop = [0], threading.Event()
        watcher = threading.Thread(target=_memory, args=(peak, stop))
        watcher.start()
        files = session.readStream.schema("key string, amount double").option("maxFilesPerTrigger", 1)
        rows = keyed_counts.transform(files.parquet(str(source)), JobSettings(watermark=None, ttl=None, options=None))
        checkpoint = Path(folder) / "checkpoint"
        query = (
            rows.writeStream.outputMode("update")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(lambda batch, _: batch.write.format("noop").mode("overwrite").save())
            .start()
        )
        query.awaitTermination()
        done = [one for one in query.recentProgress if one.numInputRows]
        session.stop()
        stop.set()
        watcher.join()
        late = done[1 + (len(done) - 1) // 2 :]
        commits = [one.stateOperators[0].commitTimeMs / PARTITIONS for one in late]
        seconds = float(np.median([one.durationMs["triggerExecution"] for one in late])) / 1000
        return {
            "rate": ROWS / seconds,
            "p50": float(np.quantile(commits, 0.5)),
            "p99": float(np.quantile(commits, 0.99)),
            "checkpoint": sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file()),
            "memory": peak[0],
        }


def _memory(peak: list[int], stop: threading.Event) -> None:
    """Keep the most memory of this process's JVM."""
    while not stop.wait(0.2):
        for child in psutil.Process().children(recursive=True):
            try:
                peak[0] = max(peak[0], child.memory_info().rss)
            except psutil.NoSuchProcess:
                continue


if __name__ == "__main__":
    sys.exit(main())
