"""One job on Quix Streams, in an environment of its own; called by ``benchmarks.peers.quix``. Imports nothing of ours.

A process for each of the two partitions, exactly once by Kafka's transactions, a commit every ten seconds, state in
RocksDB with a changelog topic. Records are JSON, keyed as the job needs, so that nothing is sent twice.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows import Count, Max, Min, Sum
from quixstreams.kafka.configuration import ConnectionConfig

GRACE_MS = 900_000


def main() -> None:
    """Run until the process is ended; note how many records are done, and when."""
    job, address, topic, work, number = sys.argv[1:]
    connection = ConnectionConfig(
        bootstrap_servers=address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=os.environ["PEERS_KAFKA_USER"],
        sasl_password=os.environ["PEERS_KAFKA_PASSWORD"],
    )
    done = 0

    def count(*_: Any) -> None:
        nonlocal done
        done += 1
        if done == 1 or done % 500 == 0:
            note.write(f"{time.time()} {done}\n")

    with Path(work, f"done-{number}-{os.getpid()}").open("a", buffering=1) as note:
        application = Application(
            connection,
            consumer_group=job,
            auto_offset_reset="earliest",
            commit_interval=10,
            processing_guarantee="exactly-once",
            state_dir=f"{work}/state-{number}",
            on_message_processed=count,
            loglevel="WARNING",
        )
        source = application.topic(
            topic, key_deserializer="str", timestamp_extractor=lambda value, *_: value["pickup_ms"]
        )
        rows = application.dataframe(source)
        _JOBS[job](rows).to_topic(application.topic(f"{topic}-out", key_serializer="str"))
        application.run()


def _windows(rows: Any) -> Any:
    return rows.tumbling_window(3_600_000, grace_ms=GRACE_MS).agg(trips=Count(), cents=Sum("cents")).current()


def _sessions(rows: Any) -> Any:
    aggregates = {"trips": Count(), "cents": Sum("cents"), "first": Min("pickup_ms"), "last": Max("pickup_ms")}
    return rows.session_window(1_800_000, grace_ms=GRACE_MS).agg(**aggregates).final()


def _velocity(rows: Any) -> Any:
    counts = rows.sliding_window(180_000, grace_ms=GRACE_MS).agg(trips=Count()).current()
    return counts.filter(lambda value: value["trips"] >= 5)


def _statistics(rows: Any) -> Any:
    def add(value: dict[str, int], state: Any) -> dict[str, int]:
        trips, cents, last = state.get("all") or (0, 0, 0)
        now = (trips + 1, cents + value["cents"], max(last, value["pickup_ms"]))
        state.set("all", now)
        return {"trips": now[0], "cents": now[1], "last_ms": now[2]}

    return rows.apply(add, stateful=True)


_JOBS = {"windows": _windows, "statistics": _statistics, "sessions": _sessions, "velocity": _velocity}


if __name__ == "__main__":
    print(json.dumps(sys.argv[1:]), flush=True)
    main()
