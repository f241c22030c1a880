"""Reads from serving stores beside a writer.

Run by ``make bench-serving``. A process writes batches of new values of known keys without a pause, as a driver with a
backlog does. Another one reads random keys one after the other, as a model server does, and measures each read. SQLite
has a file in a temporary folder; Redis is a server of the benchmark's own (Debian's package redis-server).

Options: ``--runs``, ``--seconds`` (of each measurement), ``--keys``, ``--only``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from benchmarks.report import goal_met, print_machine
from streamwarden.serving.redis import RedisStore
from streamwarden.serving.sqlite import SqliteStore
from streamwarden.serving.store import Entry, Position, ServingStore, key_text

UPSERTS = 20_000
"""A second, of the goal. The writer does more if it can: it does not wait."""

BATCH = 10_000


def main() -> int:
    """Measure, and print a line for each goal; exit with status 1 if one is missed."""
    parser = argparse.ArgumentParser(description="Reads from serving stores beside a writer.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--only", nargs="*", choices=["sqlite", "redis"], default=["sqlite", "redis"])
    given = parser.parse_args()
    goals: list[tuple[str, float, float, bool]] = []
    for kind in given.only:
        p99s, rates = [], []
        for run in range(given.runs):
            with tempfile.TemporaryDirectory(prefix="serving-") as folder, _place(kind, Path(folder)) as where:
                reads, rate = _measure(kind, where, given.keys, given.seconds)
            p50, p99 = (float(np.quantile(reads, share)) * 1000 for share in (0.5, 0.99))
            print(
                f"run {run + 1}/{given.runs}: {kind}: {len(reads):,} reads, p50 {p50:.3f} ms, p99 {p99:.3f} ms, beside"
                f" {rate:,.0f} upserts/s",
                flush=True,
            )
            p99s.append(p99)
            rates.append(rate)
        goals.append((f"{kind}_upserts_per_s", statistics.median(rates), UPSERTS, True))
        goals.append((f"{kind}_read_p99_ms", statistics.median(p99s), 5.0 if kind == "sqlite" else 2.0, False))
    print_machine(given.runs)
    met = [goal_met(name, value, goal, at_least=at_least) for name, value, goal, at_least in goals]
    return 0 if all(met) else 1


def _measure(kind: str, where: str, keys: int, seconds: float) -> tuple[list[float], float]:
    """Return the seconds of each read, and the upserts a second meanwhile."""
    context = multiprocessing.get_context("spawn")
    filled, stop = context.Event(), context.Event()
    rates: multiprocessing.Queue[float] = context.Queue()
    writer = context.Process(target=_write, args=(kind, where, keys, filled, stop, rates))
    writer.start()
    if not filled.wait(300):
        writer.kill()
        raise SystemExit(f"{kind}: the store was not filled")
    store = _open(kind, where, writes=False)
    chosen, reads = random.Random(1), []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        key = _key(chosen.randrange(keys))
        began = time.perf_counter()
        found = store.get(key, now_ms=time.time_ns() // 1_000_000)
        reads.append(time.perf_counter() - began)
        assert found is not None, key
    stop.set()
    rate = rates.get(timeout=60)
    writer.join()
    store.close()
    return reads, rate


def _write(kind: str, where: str, keys: int, filled: Event, stop: Event, rates: multiprocessing.Queue[float]) -> None:
    store = _open(kind, where, writes=True)
    for first in range(0, keys, BATCH):
        _batch(store, range(first, min(first + BATCH, keys)), 0)
    filled.set()
    chosen, batch, written, began = random.Random(2), 1, 0, time.monotonic()
    while not stop.is_set():
        some = {chosen.randrange(keys) for _ in range(BATCH)}
        _batch(store, some, batch)
        written += len(some)
        batch += 1
    rates.put(written / (time.monotonic() - began))
    store.close()


def _batch(store: ServingStore, keys: object, batch: int) -> None:
    value = json.dumps({"as_of": "2023-03-08T12:00:00.000000Z", "trips_1h": batch, "trips_6h": 40, "revenue_6h": 812.5})
    entries = [Entry(_key(number), value) for number in keys]  # type: ignore[attr-defined]
    position = Position(1, 1, batch)
    store.begin(position)
    store.write(entries, position, position, watermark_ms=batch, now_ms=time.time_ns() // 1_000_000)


def _key(number: int) -> str:
    return key_text({"card_id": f"c{number:08d}"})


def _open(kind: str, where: str, *, writes: bool) -> ServingStore:
    if kind == "sqlite":
        return SqliteStore(Path(where), None, writes=writes)
    return RedisStore(where, "bench", None)


@contextmanager
def _place(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield str(folder / "bench.sqlite")
        return
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is needed: Debian has it in the package of that name")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
