"""Quix Streams in an environment of its own, against a Kafka server of its own on the loopback interface."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
from confluent_kafka import Consumer

from benchmarks.peers.check import COLUMNS, compared
from tests.kafka.server import USER, KafkaServer

HERE = Path(__file__).parent
VERSION = "3.28.1"
PARTITIONS = 2
# Closes the sessions of a card.
_END_MS = 10**13


class Quix:
    """An environment with Quix Streams.

    Parameters
    ----------
    folder
        Made if it does not exist; kept from run to run.
    """

    def __init__(self, folder: Path) -> None:
        self.python = folder / "quix" / "bin" / "python"
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / "quix")], check=True)
            install = [str(self.python), "-m", "pip", "install", "-q", f"quixstreams=={VERSION}"]
            subprocess.run(install, check=True)

    def run(self, job: str, rows: pa.Table, work: Path, *, kill: bool = False) -> tuple[dict[str, float], str]:
        """Run a job until all rows are done; return seconds from the first row, peak memory, and the comparison.

        Parameters
        ----------
        kill
            Whether to kill both processes when half of the rows are done, and start them again at once.
        """
        server = KafkaServer(work)
        server.start()
        running: list[subprocess.Popen[bytes]] = []
        try:
            for topic in (job, f"{job}-out"):
                server.create(topic, PARTITIONS)
            sent = self._send(server, job, rows)
            running = self._start(server, job, work)
            if kill:
                _await(running, work, sent // 2, quiet=0)
                for process in running:
                    process.kill()
                    process.wait()
                running = self._start(server, job, work)
            seconds, peak = _await(running, work, sent, quiet=20 if kill else 3)
            for process in running:
                # In order: it commits what it has done.
                process.terminate()
                process.wait()
            return {"seconds": seconds, "memory_gb": peak / 2**30}, self._check(server, job, rows)
        finally:
            for process in running:
                process.terminate()
                process.wait()
            server.kill()

    def _start(self, server: KafkaServer, job: str, work: Path) -> list[subprocess.Popen[bytes]]:
        environment = {**os.environ, "PEERS_KAFKA_USER": USER, "PEERS_KAFKA_PASSWORD": server.password}
        running = []
        for number in range(PARTITIONS):
            command = [str(self.python), str(HERE / "quix_job.py"), job, server.address, job, str(work), str(number)]
            with (work / f"quix-{number}.log").open("ab") as log:
                running.append(subprocess.Popen(command, env={**environment, "PYTHONPATH": ""}, stdout=log, stderr=log))
        return running

    def _send(self, server: KafkaServer, job: str, rows: pa.Table) -> int:
        key = "PULocationID" if job in ("windows", "statistics") else "card_id"
        columns = rows.select(dict.fromkeys([key, "pickup_ms", "cents"])).to_pylist()
        records = [
            (str(one[key]), json.dumps({"pickup_ms": one["pickup_ms"], "cents": one["cents"]})) for one in columns
        ]
        if job == "sessions":
            end = json.dumps({"pickup_ms": _END_MS, "cents": 0})
            records += [(card, end) for card in {key for key, _ in records}]
        for first in range(0, len(records), 50_000):
            server.send(job, records[first : first + 50_000])
        return len(records)

    def _check(self, server: KafkaServer, job: str, rows: pa.Table) -> str:
        last: dict[tuple[Any, Any], dict[str, Any]] = {}
        for key, value in _read(server, f"{job}-out"):
            if job == "statistics":
                last[key, 0] = value
            elif value["end"] < _END_MS:
                last[key, value["end"] if job == "velocity" else value["start"]] = value
        found: list[dict[str, Any]] = []
        for (key, at), value in last.items():
            if job == "windows":
                found.append({"start_ms": at, "zone": int(key), "trips": value["trips"], "cents": value["cents"]})
            elif job == "statistics":
                found.append({"zone": int(key), **value})
            elif job == "sessions":
                own = {"card": key, "start_ms": value["first"], "end_ms": value["last"]}
                found.append({**own, "trips": value["trips"], "cents": value["cents"]})
            else:
                found.append({"card": key, "at_ms": at, "trips": value["trips"]})
        with duckdb.connect() as db:
            types = {name: pa.string() if name == "card" else pa.int64() for name in COLUMNS[job]}
            db.register("given", pa.Table.from_pylist(found, pa.schema(list(types.items()))))
            db.execute("CREATE TABLE found AS SELECT * FROM given")
            return compared(db, job, rows)


def _await(running: list[subprocess.Popen[bytes]], work: Path, rows: int, *, quiet: float) -> tuple[float, float]:
    """Wait until so many rows are done; return the seconds from the first, and the peak of memory in bytes.

    Parameters
    ----------
    quiet
        Seconds without a further row. Rows done again after a kill are counted twice, so their number alone is no end.
    """
    peak, since, last = 0.0, time.monotonic(), (0, 0.0)
    while True:
        notes = [path.read_text().split("\n")[:-1] for path in work.glob("done-*")]
        lines = [[line.split() for line in note] for note in notes if note]
        done = sum(int(note[-1][1]) for note in lines)
        if done > last[0]:
            last, since = (done, time.time()), time.monotonic()
        # The last few hundred of a partition are not noted.
        if lines and rows - done < 500 * PARTITIONS and time.monotonic() - since >= quiet:
            first = min(float(note[0][0]) for note in lines)
            return max(float(note[-1][0]) for note in lines) - first, peak
        if any(process.poll() is not None for process in running) or time.monotonic() - since > 300:
            raise SystemExit((work / "quix-0.log").read_text()[-3000:])
        with contextlib.suppress(psutil.NoSuchProcess):
            peak = max(peak, float(sum(psutil.Process(one.pid).memory_info().rss for one in running)))
        time.sleep(0.5)


def _read(server: KafkaServer, topic: str) -> list[tuple[str, dict[str, Any]]]:
    settings = {"group.id": "check", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({**server.client, **settings})
    consumer.subscribe([topic])
    found, quiet = [], time.monotonic()
    while time.monotonic() - quiet < 10:
        for message in consumer.consume(10_000, timeout=1):
            quiet = time.monotonic()
            found.append((message.key().decode(), json.loads(message.value())))
    consumer.close()
    return found
