"""Large bases of buckets: in a state variable of their own, and kept by the worker process between batches.

Spark hands bytes of the state to Python at 50 MB/s, because it pickles them as text. A bucket's base changes only when
its chunks are merged, about every twentieth batch. So a large one is not in the list of chunks, which each batch reads;
the list begins with its id instead. A worker reads a base that it does not have. An id and not the bucket's number,
because a worker gets other partitions in the next batch, and a base may be of an attempt that failed.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from typing import NamedTuple

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, ValueState

from streamwarden.keyed_state.chunks import StoredChunk

__all__ = ["BASE_APART", "BASE_NAME", "BaseStore", "KeptBases"]

BASE_NAME = "keyed_state_base"
"""The name of the value state."""

BASE_APART = 2**31 - 1
"""The version of a list's first row that stands for a base of its own; its blob is the base's id. As a version it is
above all others: a release without bases of their own refuses the state."""

_BASE_ROW = "version int, blob binary"

_LEAST_APART = 64 * 1024
"""Bytes of a base in a variable of its own. Below, to read it each time takes about as long as a round trip."""

_KEPT_BYTES = 256 * 2**20
"""Bytes of bases that a worker process keeps; a driver has one process for each core. Five million cards of
``card_sessions`` have 130 MB."""


class KeptBases:
    """Bases by id, in memory. Of more bases than fit it keeps some, and does not change them in turn.

    Parameters
    ----------
    limit
        Bytes at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._bytes = 0
        self._asked = 0

    def get(self, name: bytes) -> StoredChunk | None:
        """Return a base, or None if it is not kept."""
        self._asked += 1
        found = self._kept.get(name)
        if found is None:
            return None
        self._kept[name] = _Kept(found.chunk, self._asked)
        self._kept.move_to_end(name)
        return found.chunk

    def put(self, name: bytes, chunk: StoredChunk) -> None:
        """Keep a base if it fits."""
        # Buckets come round in turn. Were the one that was not used for longest dropped for each new one, then with one
        # bucket too many none would be found again. A base that was merged elsewhere is not used any more, and goes.
        while self._kept and self._bytes + len(chunk.blob) > self._limit:
            oldest = next(iter(self._kept))
            if self._asked - self._kept[oldest].used <= 4 * len(self._kept):
                return
            self.drop(oldest)
        if self._bytes + len(chunk.blob) <= self._limit:
            self._kept[name] = _Kept(chunk, self._asked)
            self._bytes += len(chunk.blob)

    def drop(self, name: bytes) -> None:
        """Forget a base; it need not be kept."""
        found = self._kept.pop(name, None)
        if found is not None:
            self._bytes -= len(found.chunk.blob)


class _Kept(NamedTuple):
    chunk: StoredChunk
    used: int


_kept = KeptBases(_KEPT_BYTES)


class BaseStore:
    """Reads and writes the bases of the buckets of one operator.

    Parameters
    ----------
    handle
        Where the variable is declared. Its methods are about the bucket that is processed.
    """

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._state: ValueState = handle.getValueState(BASE_NAME, _BASE_ROW)

    def read(self, name: bytes) -> StoredChunk:
        """Return the bucket's base, which has this id."""
        found = _kept.get(name)
        if found is None:
            stored = self._state.get()
            assert stored is not None, "the list of chunks names a base, and there is none"
            found = StoredChunk(*stored)
            _kept.put(name, found)
        return found

    def write(self, chunk: StoredChunk, replaced: bytes | None) -> StoredChunk:
        """Store a new base, and return what the list has in its place: the base itself, if it is small.

        Parameters
        ----------
        chunk
            The base.
        replaced
            The id of the base that was apart before, if it was.
        """
        if len(chunk.blob) < _LEAST_APART:
            self.clear(replaced)
            return chunk
        if replaced is not None:
            _kept.drop(replaced)
        name = uuid.uuid4().bytes
        self._state.update((chunk.version, chunk.blob))
        _kept.put(name, chunk)
        return StoredChunk(BASE_APART, name)

    def clear(self, replaced: bytes | None) -> None:
        """Remove the base that was apart, if one was."""
        if replaced is not None:
            _kept.drop(replaced)
            self._state.clear()
