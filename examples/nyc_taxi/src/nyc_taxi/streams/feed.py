"""Write a synthetic stream piece by piece, as a producer would: to a Delta table, a folder, or a Kafka topic."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from streamwarden.errors import StreamwardenError

__all__ = ["FeedOptions", "disordered", "feed", "to_delta", "to_files", "to_kafka"]

Writer = Callable[[pa.Table], None]


@dataclass(frozen=True)
class FeedOptions:
    """Options of a feed.

    Parameters
    ----------
    pieces
        Number of writes.
    pause
        Seconds between two writes.
    repeated
        Share of events that are delivered a second time, later on. 0.
    seed
        Selects them, and the order.
    """

    pieces: int = 10
    pause: float = 1.0
    repeated: float = 0.0
    seed: int = 0


def disordered(events: pa.Table, options: FeedOptions) -> Iterator[pa.Table]:
    """Yield the pieces of a stream: neighbours in another order, and some events again in a later piece.

    Parameters
    ----------
    events
        In the order of their times.
    """
    random = np.random.default_rng(options.seed)
    rows = events.num_rows
    again = np.flatnonzero(random.random(rows) < options.repeated)
    number = np.concatenate([np.arange(rows), again])
    # An event may come up to a hundredth of all earlier or later, and a repeat up to a tenth later.
    place = number + random.uniform(0, rows / 100, len(number))
    place[rows:] += random.uniform(0, rows / 10, len(again))
    order = number[np.argsort(place, kind="stable")]
    for part in np.array_split(order, options.pieces):
        yield events.take(pa.array(part))


def feed(events: pa.Table, write: Writer, options: FeedOptions, on_piece: Callable[[int, int], None]) -> int:
    """Write a stream; return how many rows were written.

    Parameters
    ----------
    events
        In the order of their times.
    write
        One of :func:`to_delta`, :func:`to_files` and :func:`to_kafka`.
    options
        How.
    on_piece
        Called after each write with the pieces and rows written.
    """
    rows = 0
    for number, piece in enumerate(disordered(events, options), 1):
        if number > 1:
            time.sleep(options.pause)
        write(piece)
        rows += piece.num_rows
        on_piece(number, rows)
    return rows


def to_delta(address: str, storage_options: dict[str, str] | None) -> Writer:
    """Return a writer that appends to a Delta table, a commit for each piece."""
    return lambda piece: write_deltalake(address, piece, mode="append", storage_options=storage_options)


def to_files(folder: Path) -> Writer:
    """Return a writer of Parquet files, which appear whole."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(piece: pa.Table) -> None:
        name = f"{time.time_ns()}.parquet"
        hidden = folder / f".{name}"
        pq.write_table(piece, hidden)
        hidden.rename(folder / name)

    return write


def to_kafka(servers: str, topic: str, key: str) -> Writer:
    """Return a writer of JSON records to a Kafka topic; each piece is flushed.

    Parameters
    ----------
    servers
        Bootstrap addresses. Other client properties come from the environment, as for jobs.
    topic
        The topic.
    key
        The column whose value is the record's key.

    Raises
    ------
    StreamwardenError
        ``EXTRA_MISSING`` without the package confluent-kafka.
    """
    try:
        from confluent_kafka import Producer
    except ImportError as error:
        raise StreamwardenError("EXTRA_MISSING", "confluent-kafka: the feed needs it to write to Kafka") from error
    prefix = "STREAMWARDEN_KAFKA_"
    given = {
        name.removeprefix(prefix).lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }
    producer = Producer({"bootstrap.servers": servers, **given})
    failed: list[Any] = []

    def told(error: Any, _: object) -> None:
        if error is not None:
            failed.append(error)

    def write(piece: pa.Table) -> None:
        for row in piece.to_pylist():
            producer.produce(topic, json.dumps(row, default=_plain), str(row[key]), on_delivery=told)
            producer.poll(0)
        producer.flush()
        if failed:
            raise StreamwardenError("REPLAY_SOURCE_INVALID", f"Kafka, topic {topic}: {failed[0]}")

    return write


def _plain(value: object) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON")
