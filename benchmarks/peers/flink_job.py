"""One job on PyFlink, in an environment of its own; called by ``benchmarks.peers.run``. Imports nothing of ours.

The input is Parquet files in event order, one for each slot; the output CSV files, exactly once. The state is in
RocksDB with incremental checkpoints every ten seconds, as Flink's documentation says for large state.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

GAP_MS, TTL_H = 1_800_000, 24
WITHIN_MS, BURST = 180_000, 5


def main() -> None:
    """Run the job to the end of its input, and print how long it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=("windows", "statistics", "sessions", "velocity"))
    parser.add_argument("form", choices=("sql", "process", "thread"))
    parser.add_argument("input")
    parser.add_argument("work")
    parser.add_argument("--jars", nargs="+", required=True)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--from-checkpoint")
    given = parser.parse_args()
    table = _environment(given)
    table.execute_sql(f"""
        CREATE TABLE trips (
            card_id STRING, pickup_ms BIGINT, cents BIGINT, PULocationID INT, DOLocationID INT,
            ts AS TO_TIMESTAMP_LTZ(pickup_ms, 3), WATERMARK FOR ts AS ts - INTERVAL '15' MINUTE
        ) WITH ('connector' = 'filesystem', 'path' = 'file://{given.input}', 'format' = 'parquet')""")
    began = time.time()
    (_python if given.form != "sql" else _sql)(table, given)
    print(json.dumps({"seconds": time.time() - began}), flush=True)


def _environment(given: argparse.Namespace) -> Any:
    from pyflink.common import Configuration
    from pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
    from pyflink.table import StreamTableEnvironment

    Path(given.work).mkdir(parents=True, exist_ok=True)
    settings = {
        "pipeline.jars": ";".join(f"file://{jar}" for jar in given.jars),
        "parallelism.default": str(given.slots),
        "pipeline.max-parallelism": "128",
        "taskmanager.numberOfTaskSlots": str(given.slots),
        "taskmanager.memory.process.size": "3g",
        "taskmanager.memory.managed.size": "512m",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": "10s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{given.work}/checkpoints",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "restart-strategy.type": "disable",
        "table.local-time-zone": "UTC",
        # Tuning that Flink's pages name: fewer copies, fewer accesses to the state, larger bundles.
        "pipeline.object-reuse": "true",
        # Not before functions in Python: without an aggregation its markers are watermarks in processing time.
        "table.exec.mini-batch.enabled": str(given.form == "sql").lower(),
        "table.exec.mini-batch.allow-latency": "2s",
        "table.exec.mini-batch.size": "50000",
        "python.execution-mode": given.form if given.form != "sql" else "process",
        "python.fn-execution.bundle.size": "100000",
        "python.state.cache-size": "100000",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "rest.bind-address": "127.0.0.1",
        "rest.address": "127.0.0.1",
        "jobmanager.rpc.address": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
    }
    if given.from_checkpoint:
        settings["execution.state-recovery.path"] = f"file://{given.from_checkpoint}"
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    return StreamTableEnvironment.create(environment)


def _sink(table: Any, given: argparse.Namespace, columns: str) -> None:
    place = f"'connector' = 'filesystem', 'path' = 'file://{given.work}/out', 'format' = 'csv'"
    if given.job == "statistics" and given.form == "sql":
        # Files take no updates.
        place = "'connector' = 'print'"
    table.execute_sql(f"CREATE TABLE found_rows ({columns}) WITH ({place})")


_SQL = {
    "windows": (
        "start_ms BIGINT, zone INT, trips BIGINT, cents BIGINT",
        """SELECT 1000 * UNIX_TIMESTAMP(CAST(window_start AS STRING)), PULocationID, COUNT(*), SUM(cents)
           FROM TABLE(TUMBLE(TABLE trips, DESCRIPTOR(ts), INTERVAL '1' HOUR))
           GROUP BY window_start, window_end, PULocationID""",
    ),
    "statistics": (
        "zone INT, trips BIGINT, cents BIGINT, last_ms BIGINT",
        "SELECT PULocationID, COUNT(*), SUM(cents), MAX(pickup_ms) FROM trips GROUP BY PULocationID",
    ),
    # A window ends a gap after its last trip, exclusive.
    "sessions": (
        "card STRING, start_ms BIGINT, end_ms BIGINT, trips BIGINT, cents BIGINT",
        """SELECT card_id, MIN(pickup_ms), MAX(pickup_ms), COUNT(*), SUM(cents)
           FROM TABLE(SESSION(TABLE trips PARTITION BY card_id, DESCRIPTOR(ts), INTERVAL '1800.001' SECOND(4, 3)))
           GROUP BY card_id, window_start, window_end""",
    ),
    # Each trip that makes its card hot. Of those the first of an episode is an alert; the check takes it.
    "velocity": (
        "card STRING, at_ms BIGINT, trips BIGINT",
        """SELECT card_id, pickup_ms, n FROM (
             SELECT card_id, pickup_ms, COUNT(*) OVER (
               PARTITION BY card_id ORDER BY ts RANGE BETWEEN INTERVAL '3' MINUTE PRECEDING AND CURRENT ROW
             ) AS n FROM trips) WHERE n >= 5""",
    ),
}


def _sql(table: Any, given: argparse.Namespace) -> None:
    columns, query = _SQL[given.job]
    _sink(table, given, columns)
    table.execute_sql(f"INSERT INTO found_rows {query}").wait()


def _python(table: Any, given: argparse.Namespace) -> None:
    """A KeyedProcessFunction: a list in one value state a key, timers in event time."""
    from pyflink.common import Row, Time, Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import StateTtlConfig, ValueStateDescriptor

    class Base(KeyedProcessFunction):
        def open(self, context: Any) -> None:
            described = ValueStateDescriptor("rows", Types.PICKLED_BYTE_ARRAY())
            keep = StateTtlConfig.new_builder(Time.hours(TTL_H))
            described.enable_time_to_live(keep.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite).build())
            self.rows = context.get_state(described)

    class Sessions(Base):
        def process_element(self, value: Any, context: Any) -> Any:
            start = end = value[1]
            trips, cents = 1, value[2]
            kept = []
            for one in self.rows.value() or []:
                if one[0] - end <= GAP_MS and start - one[1] <= GAP_MS:
                    start, end = min(start, one[0]), max(end, one[1])
                    trips, cents = trips + one[2], cents + one[3]
                else:
                    kept.append(one)
            kept.append((start, end, trips, cents))
            self.rows.update(kept)
            # Timers are coalesced to seconds: Flink's pages advise it.
            context.timer_service().register_event_time_timer((end + GAP_MS) // 1000 * 1000 + 1000)

        def on_timer(self, timestamp: int, context: Any) -> Any:
            rows = self.rows.value() or []
            kept = [one for one in rows if one[1] + GAP_MS >= timestamp]
            for one in rows:
                if one[1] + GAP_MS < timestamp:
                    yield Row(context.get_current_key(), *one)
            if len(kept) < len(rows):
                self.rows.update(kept) if kept else self.rows.clear()

    class Statistics(Base):
        def process_element(self, value: Any, context: Any) -> Any:
            trips, cents, last = self.rows.value() or (0, 0, 0)
            now = (trips + 1, cents + value[2], max(last, value[1]))
            self.rows.update(now)
            yield Row(context.get_current_key(), *now)

    class Velocity(Base):
        def process_element(self, value: Any, context: Any) -> Any:
            rows = self.rows.value() or []
            rows.append(value[1])
            self.rows.update(rows)
            context.timer_service().register_event_time_timer(value[1])

        def on_timer(self, timestamp: int, context: Any) -> Any:
            rows = self.rows.value() or []
            held = sum(timestamp - WITHIN_MS <= one <= timestamp for one in rows)
            if held >= BURST:
                yield Row(context.get_current_key(), timestamp, held)
            kept = [one for one in rows if one > timestamp - WITHIN_MS]
            if len(kept) < len(rows):
                self.rows.update(kept)

    kinds: dict[str, tuple[type, list[str]]] = {
        "statistics": (Statistics, ["zone", "trips", "cents", "last_ms"]),
        "sessions": (Sessions, ["card", "start_ms", "end_ms", "trips", "cents"]),
        "velocity": (Velocity, ["card", "at_ms", "trips"]),
    }
    function, names = kinds[given.job]
    types = [Types.STRING() if name == "card" else Types.LONG() for name in names]
    key = "card_id" if names[0] == "card" else "CAST(PULocationID AS BIGINT)"
    trips = table.to_data_stream(table.sql_query(f"SELECT {key}, pickup_ms, cents, ts FROM trips"))
    done = trips.key_by(lambda row: row[0], key_type=types[0]).process(function(), Types.ROW_NAMED(names, types))
    table.create_temporary_view("done", table.from_data_stream(done))
    _sink(table, given, ", ".join(f"{name} {'STRING' if name == 'card' else 'BIGINT'}" for name in names))
    table.execute_sql("INSERT INTO found_rows SELECT * FROM done").wait()


if __name__ == "__main__":
    main()
