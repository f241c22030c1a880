"""Write a sink's batches to its serving store, and fill the store from the table."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from streamwarden.driver.job_api import DELETED
from streamwarden.errors import StreamwardenError
from streamwarden.formats.output_columns import IS_FINAL
from streamwarden.model.spec import SinkSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.serving.store import Entry, Position, ServingStore, StoreMoved

__all__ = ["ServingWriter"]

_log = logging.getLogger(__name__)

_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "ignoreNullFields": "false"}
"""As :func:`streamwarden.serving.store.key_text` writes keys; sessions are in UTC."""

_TOGETHER = 200_000
"""Rows of a batch that are collected at once. More come partition by partition."""


class ServingWriter:
    """Writes one sink's rows to its serving store, for one driver.

    Parameters
    ----------
    store
        The store.
    sink
        The sink's spec.
    session, path
        Read the table, to fill the store.
    epoch, generation
        Of the driver's lease, and of the job.
    """

    def __init__(
        self, store: ServingStore, sink: SinkSpec, session: SparkSession, path: str, *, epoch: int, generation: int
    ) -> None:
        self._store = store
        self._sink = sink
        self._session = session
        self._path = path
        self._epoch = epoch
        self._generation = generation
        self._last: Position | None = None

    def begin(self, reference: CheckpointRef, committed: int | None) -> None:
        """Bring the store to where the job continues. If it may differ from the table, fill it from the table.

        Parameters
        ----------
        reference
            The job's checkpoint, whose tables are in place.
        committed
            Its last committed batch.

        Raises
        ------
        StreamwardenError
            ``SERVING_NEWER``.
        """
        found, batch = self._store.position(), -1 if committed is None else committed
        if found is not None and _follows(found, reference, batch):
            self._set(Position(self._epoch, self._generation, max(batch, found.batch)))
        else:
            self._fill(batch)

    def mark_stale(self, reference: CheckpointRef) -> None:
        """Record that the table is about to be put back: the store is filled anew, even if this driver is killed."""
        found = self._store.position()
        if found is not None and self._sink.table in [output.table for output in reference.outputs]:
            self._set(Position(self._epoch, found.generation, found.batch, complete=False))

    def write(self, rows: DataFrame, number: int, batch_id: int, watermark_ms: int) -> None:
        """Write a batch's rows.

        To be called after the table has the batch: the store is never ahead of it. If the store fails, then the batch
        is tried again, and the table skips it.

        Parameters
        ----------
        rows, number
            The batch's rows for the sink, from a kept DataFrame, and how many.
        batch_id, watermark_ms
            Its id, and the watermark that it began with.
        """
        position = Position(self._epoch, self._generation, batch_id)
        assert self._last is not None
        if not self._last.complete:
            # A try before this one began to fill the store, and failed. The table has this batch already.
            self._fill(batch_id)
            return
        try:
            entries = _entries(rows, self._sink, together=number <= _TOGETHER) if number else ()
            self._store.write(entries, self._last, position, watermark_ms=watermark_ms, now_ms=_now_ms())
            self._last = position
        except StoreMoved as moved:
            # Emptied by hand, or a server that came back without its newest batches. The table has this batch already.
            _log.warning("%s: its serving store is filled anew: %s", self._sink.table, moved)
            self._fill(batch_id)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _fill(self, batch: int) -> None:
        begun = Position(self._epoch, self._generation, batch, complete=False)
        self._set(begun)
        began = time.monotonic()
        rows = self._session.read.format("delta").load(self._path)
        entries = _entries(rows, self._sink, together=False)
        self._store.write(entries, begun, begun, watermark_ms=0, now_ms=_now_ms())
        dropped = self._store.drop_older(begun)
        self._set(Position(self._epoch, self._generation, batch))
        took = time.monotonic() - began
        _log.info("%s: its serving store was filled in %.1f s; %d old keys dropped", self._sink.table, took, dropped)

    def _set(self, position: Position) -> None:
        try:
            self._store.begin(position)
        except StoreMoved as moved:
            what = f"{self._sink.table}: {moved}; this driver has {self._epoch}"
            raise StreamwardenError("SERVING_NEWER", what) from moved
        self._last = position


def _follows(found: Position, reference: CheckpointRef, batch: int) -> bool:
    """Return whether a store has the same rows as the table."""
    if not found.complete:
        return False
    if found.generation == reference.generation:
        # A batch more: the driver was killed between the batch's write and its commit, and it is tried again.
        return found.batch >= batch
    # A rescale keeps the tables; its repartitioning is a batch. Any other new generation may differ, and so may one
    # that has run without the store.
    base, is_next = reference.base_batch, found.generation < reference.generation
    return is_next and reference.rescaled and base is not None and base <= found.batch and batch <= found.batch + 1


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _entries(rows: DataFrame, sink: SinkSpec, *, together: bool) -> Iterator[Entry]:
    values = [name for name in rows.columns if name not in (*sink.keys, DELETED, IS_FINAL)]
    value: Column = F.to_json(F.struct(*values), _JSON) if values else F.lit("{}")
    if DELETED in rows.columns:
        value = F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value)
    # A decimal as text: JSON readers make a binary number of it, with other digits.
    keys = [_exact(rows, name) for name in sink.keys]
    pairs = rows.select(F.to_json(F.struct(*keys), _JSON).alias("key"), value.alias("value"))
    if together:
        table = pairs.toArrow()
        for key, text in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
            yield Entry(_canonical(key), text)
        return
    for row in pairs.toLocalIterator():
        yield Entry(_canonical(row["key"]), row["value"])


def _exact(rows: DataFrame, name: str) -> Column:
    is_decimal = isinstance(rows.schema[name].dataType, DecimalType)
    return F.col(name).cast("string").alias(name) if is_decimal else F.col(name)


def _canonical(key: str) -> str:
    # Spark escapes control characters in another case than Python.
    return key if "\\" not in key else json.dumps(json.loads(key), separators=(",", ":"), ensure_ascii=False)
