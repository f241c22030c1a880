"""The state of one bucket of keys, as Arrow chunks. Without Spark.

A chunk is a record batch of state rows, sorted by the hash of their key. The first chunk is the base, later ones are
appended by batches. A chunk replaces all rows of the keys that it has: for each hash, only the newest chunk that has
it counts. A key whose last row was removed leaves a tombstone in the chunk, until the chunks are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamwarden.keyed_state.layout import EXPIRES, HASH, TIMER, StateLayout

__all__ = [
    "NEVER",
    "BucketState",
    "Outlook",
    "StoredChunk",
    "alive",
    "decoded",
    "distinct",
    "encoded",
    "integers",
    "next_timer",
    "number_of_keys",
    "within",
]

NEVER: int = int(np.iinfo(np.int64).max)
"""The time, in milliseconds, of a timer that is not set and of state that does not expire."""

_LEAST_BASE = 4096
"""Bytes. A smaller base counts as this size, so that a bucket of few keys is not merged in every batch."""

_MAX_CHUNKS = 24
"""Chunks at most. A batch searches each chunk for its keys. 24, less the spread of :meth:`BucketState.appended`: a
bucket with few events a batch is merged every 17 to 24 batches."""

_EXPIRED_SHARE = 1 / 8
"""Of a bucket's rows. More expired ones are removed at once. Were all, a time to live would have nearly every batch
store all buckets anew."""

_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")
"""Half the bytes. zstd makes three quarters of that, in twice the time to write and five times that to read."""


class StoredChunk(NamedTuple):
    """A chunk as the state store has it."""

    version: int
    blob: bytes


@dataclass
class BucketState:
    """What a bucket's chunks hold.

    Parameters
    ----------
    layout
        The columns of the state.
    chunks
        Oldest first, all in the newest version of the layout.
    sizes
        Bytes of each chunk in the store.
    """

    layout: StateLayout
    chunks: Sequence[pa.RecordBatch]
    sizes: Sequence[int]

    @classmethod
    def read(cls, layout: StateLayout, stored: Sequence[StoredChunk]) -> BucketState:
        """Decode chunks as the state store has them, oldest first."""
        return cls(layout, [decoded(layout, one) for one in stored], [len(one.blob) for one in stored])

    def rows_of(self, hashes: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the rows of the keys with these hashes, tombstones included, sorted by hash.

        Parameters
        ----------
        hashes
            Sorted, without repetition.
        """
        left, found = hashes, []
        for chunk in reversed(self.chunks):
            if not len(left):
                break
            own = integers(chunk, HASH)
            first = np.searchsorted(own, left, "left")
            number = np.searchsorted(own, left, "right") - first
            hit = number > 0
            if hit.any():
                found.append(chunk.take(pa.array(within(first[hit], number[hit]))))
                left = left[~hit]
        if len(found) == 1:
            return found[0]
        return self.layout.sorted_by_hash(found)

    def whole(self) -> pa.RecordBatch:
        """Return the newest rows of every key, sorted by hash, without tombstones; expired rows are still there."""
        parts = [
            alive(chunk.filter(pa.array(stands)), 1)
            for chunk, stands in zip(self.chunks, self._standing(), strict=True)
        ]
        return self.layout.sorted_by_hash(parts)

    def outlook(self, now: int) -> Outlook:
        """Return what is due at a time, and what comes next. Copies no row: most keys are not due.

        Parameters
        ----------
        now
            In milliseconds.
        """
        hashes, expires, timers = ([integers(chunk, name) for chunk in self.chunks] for name in (HASH, EXPIRES, TIMER))
        standing = self._standing()
        living = [stands & (ends > now) for stands, ends in zip(standing, expires, strict=True)]
        gone = [stands & (ends <= now) & (ends > 0) for stands, ends in zip(standing, expires, strict=True)]
        due = [own[lives & (at <= now)] for own, lives, at in zip(hashes, living, timers, strict=True)]
        keys = distinct(np.concatenate(due))
        for own, lives in zip(hashes, living, strict=True):
            lives[_places(own, keys)] = False
        later = np.concatenate([at[lives] for at, lives in zip(timers, living, strict=True)])
        last = np.concatenate([ends[lives] for ends, lives in zip(expires, living, strict=True)])
        return Outlook(
            due=keys,
            rows=sum(map(len, hashes)),
            expired=sum(int(np.count_nonzero(one)) for one in gone),
            timer=int(later.min(initial=NEVER)),
            expires=int(last.max(initial=0)),
        )

    def _standing(self) -> list[NDArray[np.bool_]]:
        """Return for each chunk which of its rows no newer chunk replaces."""
        newer, found = np.zeros(0, np.int64), []
        for chunk in reversed(self.chunks):
            own = integers(chunk, HASH)
            stands = np.ones(len(own), np.bool_)
            stands[_places(own, newer)] = False
            found.append(stands)
            if len(found) < len(self.chunks):
                # Not of the base, which has most of the rows.
                newer = distinct(np.concatenate([newer, own]))
        return found[::-1]

    def appended(
        self, fresh: pa.RecordBatch, *, bucket: int, now: int, merge: bool = False
    ) -> tuple[StoredChunk, pa.RecordBatch | None]:
        """Return the chunk to store for new rows; if it replaces all others, also its rows.

        Chunks are merged when the appended ones outgrow the base, or are too many. The limits depend on the bucket's
        number, so that buckets that grow alike are not all merged in the same batch.

        Parameters
        ----------
        fresh
            All rows of the touched keys, tombstones included, sorted by hash.
        bucket
            The bucket's number.
        now
            The time, in milliseconds, by which state expires.
        merge
            Merge in any case.
        """
        spread = bucket % 8
        if self.sizes and len(self.sizes) < _MAX_CHUNKS - spread and not merge:
            chunk = encoded(self.layout, fresh)
            limit = max(self.sizes[0], _LEAST_BASE) * (0.75 + spread / 14)
            if sum(self.sizes[1:]) + len(chunk.blob) <= limit:
                return chunk, None
        merged = alive(BucketState(self.layout, [*self.chunks, fresh], []).whole(), now)
        return encoded(self.layout, merged), merged


class Outlook(NamedTuple):
    """What is due in a bucket at a time, and what comes next.

    Parameters
    ----------
    due
        The hashes of the keys that have a timer that is due, sorted.
    rows
        The number of stored rows.
    expired
        How many of them have expired.
    timer, expires
        The earliest timer and the latest end of the other keys' rows, in milliseconds; an end of 0: there are none.
    """

    due: NDArray[np.int64]
    rows: int
    expired: int
    timer: int
    expires: int

    @property
    def has_much_expired(self) -> bool:
        """Whether the expired rows are worth to be removed."""
        return self.expired > _EXPIRED_SHARE * self.rows

    def next_timer(self, fresh: pa.RecordBatch) -> int | None:
        """Return when the bucket must be looked at again; None if no row is left.

        Parameters
        ----------
        fresh
            The new rows of the keys that are due, none of them expired.
        """
        if not self.expires and not fresh.num_rows:
            return None
        timer = min(self.timer, int(integers(fresh, TIMER).min(initial=NEVER)))
        return timer if timer != NEVER else max(self.expires, int(integers(fresh, EXPIRES).max(initial=0)))


def alive(rows: pa.RecordBatch, now: int) -> pa.RecordBatch:
    """Return the rows that have not expired at a time, in milliseconds. A tombstone expires at 0."""
    keep = integers(rows, EXPIRES) > now
    return rows if keep.all() else rows.filter(pa.array(keep))


def next_timer(rows: pa.RecordBatch) -> int:
    """Return when a bucket of these rows must be looked at: its earliest timer, or else when its last row expires."""
    if not rows.num_rows:
        return NEVER
    earliest = int(integers(rows, TIMER).min())
    return earliest if earliest != NEVER else int(integers(rows, EXPIRES).max())


def number_of_keys(rows: pa.RecordBatch) -> int:
    """Return how many keys have rows, which are sorted by hash and have no tombstones; keys with one hash are one."""
    hashes = integers(rows, HASH)
    return int(np.count_nonzero(hashes[1:] != hashes[:-1])) + 1 if len(hashes) else 0


def encoded(layout: StateLayout, rows: pa.RecordBatch) -> StoredChunk:
    """Return rows as the state store has them: compressed, and without their schema, which the version tells.

    A batch reads all chunks of its buckets from the JVM, which takes four times as long as to decompress them. Chunks
    of earlier versions of this library are not compressed; Arrow reads both.
    """
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema, options=_LZ4) as writer:
        writer.write_batch(rows)
    messages = pa.ipc.MessageReader.open_stream(stream.getvalue())
    # The first one is the schema.
    messages.read_next_message()
    return StoredChunk(layout.version, messages.read_next_message().serialize().to_pybytes())


def decoded(layout: StateLayout, chunk: StoredChunk) -> pa.RecordBatch:
    """Return a stored chunk's rows in the newest version: fields added since have their defaults."""
    rows = pa.ipc.read_record_batch(pa.py_buffer(chunk.blob), layout.schema_of(chunk.version))
    return layout.upgraded(rows, chunk.version)


def _places(own: NDArray[np.int64], hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of hashes in a chunk's; both are sorted, and `hashes` are without repetition."""
    first = np.searchsorted(own, hashes, "left")
    return within(first, np.searchsorted(own, hashes, "right") - first)


def integers(rows: pa.RecordBatch, column: str) -> NDArray[np.int64]:
    """Return a column of integers without nulls as an array."""
    values: NDArray[np.int64] = rows.column(column).to_numpy(zero_copy_only=False)
    return values


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each value once, in order."""
    # Not np.unique, which hashes integers since numpy 2.3: slower than sorting them.
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def within(first: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices ``first[i], first[i] + 1, … `` of `number[i]` each, one range after the other."""
    return np.repeat(first - (np.cumsum(number) - number), number) + np.arange(number.sum())
