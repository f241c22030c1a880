"""Write a sink's batches to its serving store, and fill the store from the table."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from streamwarden.driver.job_api import DELETED
from streamwarden.errors import StreamwardenError
from streamwarden.formats.output_columns import IS_FINAL
from streamwarden.model.spec import SinkSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.serving.store import Entry, Position, ServingStore

__all__ = ["Server", "begin_serving", "mark_stale"]

_log = logging.getLogger(__name__)

_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "ignoreNullFields": "false"}
"""As :func:`streamwarden.serving.store.key_text` writes keys; sessions are in UTC."""

_TOGETHER = 200_000
"""Rows of a batch that are collected at once. More come partition by partition."""


class Server:
    """The serving store of one sink.

    Parameters
    ----------
    store
        The store.
    sink
        The sink's spec.
    generation
        The job's generation.
    """

    def __init__(self, store: ServingStore, sink: SinkSpec, generation: int) -> None:
        self._store = store
        self._sink = sink
        self._generation = generation

    def write(self, rows: DataFrame, number: int, batch_id: int, watermark_ms: int) -> None:
        """Write a batch's rows.

        After the table: so the store is never ahead of it for longer than a moment, and a batch that is tried again
        because of the store writes the table once.

        Parameters
        ----------
        rows, number
            The batch's rows for the sink, from a kept DataFrame, and how many.
        batch_id, watermark_ms
            Its id, and the watermark that it began with.
        """
        entries = _entries(rows, self._sink, together=number <= _TOGETHER) if number else ()
        self._write(entries, Position(self._generation, batch_id), watermark_ms)

    def fill(self, session: SparkSession, path: str, batch: int) -> None:
        """Fill the store from the table, as of the last committed batch.

        Parameters
        ----------
        path
            The table's folder.
        batch
            That batch; -1 if there was none.
        """
        self._store.begin(Position(self._generation, batch, complete=False))
        began = time.monotonic()
        rows = session.read.format("delta").load(path)
        self._write(_entries(rows, self._sink, together=False), Position(self._generation, batch, complete=False), 0)
        dropped = self._store.drop_older(self._generation)
        self._store.begin(Position(self._generation, batch))
        took = time.monotonic() - began
        _log.info("%s: its serving store was filled in %.1f s; %d old keys dropped", self._sink.table, took, dropped)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _write(self, entries: Iterable[Entry], position: Position, watermark_ms: int) -> None:
        self._store.write(entries, position, watermark_ms=watermark_ms, now_ms=time.time_ns() // 1_000_000)


def mark_stale(store: ServingStore, reference: CheckpointRef, sink: SinkSpec) -> None:
    """Record that the table is about to be put back, so that the store is filled anew even if this driver is killed."""
    position = store.position()
    if position is not None and sink.table in [output.table for output in reference.outputs]:
        store.begin(Position(position.generation, position.batch, complete=False))


def begin_serving(
    store: ServingStore,
    sink: SinkSpec,
    reference: CheckpointRef,
    committed: int | None,
    fill: Callable[[Server, int], None],
) -> Server:
    """Bring a store to where the job continues: it takes the new generation's number, or is filled from the table.

    Parameters
    ----------
    reference
        The job's checkpoint.
    committed
        Its last committed batch.
    fill
        Fills the store.

    Raises
    ------
    StreamwardenError
        ``SERVING_NEWER``.
    """
    found, generation = store.position(), reference.generation
    batch = -1 if committed is None else committed
    if found is not None and found.generation > generation:
        what = f"{sink.table}: the store is at generation {found.generation}, the job at {generation}"
        raise StreamwardenError("SERVING_NEWER", what)
    server = Server(store, sink, generation)
    if found is None or not found.complete:
        fill(server, batch)
    elif found.generation == generation and found.batch < batch:
        # The sink did not serve for a while.
        fill(server, batch)
    elif found.generation < generation:
        # A rescale, or a restore that leaves the table as it is: the store has the same rows as the table.
        if reference.base_batch is not None and found.batch < reference.base_batch:
            fill(server, batch)
        else:
            store.begin(Position(generation, batch))
    return server


def _entries(rows: DataFrame, sink: SinkSpec, *, together: bool) -> Iterator[Entry]:
    values = [name for name in rows.columns if name not in (*sink.keys, DELETED, IS_FINAL)]
    value: Column = F.to_json(F.struct(*values), _JSON) if values else F.lit("{}")
    if DELETED in rows.columns:
        value = F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value)
    pairs = rows.select(F.to_json(F.struct(*sink.keys), _JSON).alias("key"), value.alias("value"))
    if together:
        table = pairs.toArrow()
        for key, text in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
            yield Entry(_canonical(key), text)
        return
    for row in pairs.toLocalIterator():
        yield Entry(_canonical(row["key"]), row["value"])


def _canonical(key: str) -> str:
    # Spark escapes control characters in another case than Python.
    return key if "\\" not in key else json.dumps(json.loads(key), separators=(",", ":"), ensure_ascii=False)
