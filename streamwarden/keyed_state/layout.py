"""The columns of keyed state, and how old chunks get the columns that were added since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["EXPIRES", "HASH", "TIMER", "StateField", "StateLayout"]

HASH = "hash"
EXPIRES = "expires_at"
TIMER = "timer_at"
"""Columns of every chunk beside the key's and the job's own: the hash of the key, and two times in milliseconds."""


@dataclass(frozen=True)
class StateField:
    """A column of the state.

    Parameters
    ----------
    type
        The Arrow type.
    since
        The version of the state that added the column. Default 1.
    default
        Its value in rows written before that version.
    """

    type: pa.DataType
    since: int = 1
    default: Any = None


@dataclass(frozen=True)
class StateLayout:
    """The columns of a job's keyed state.

    Parameters
    ----------
    key
        The key's columns, with their types.
    fields
        The job's columns, in the order in which they were added: a new one comes last, with the next version.
    """

    key: Mapping[str, pa.DataType]
    fields: Mapping[str, StateField]

    def __post_init__(self) -> None:
        """Check what would make old chunks unreadable."""
        since = [one.since for one in self.fields.values()]
        if since != sorted(since):
            raise ValueError("a field that was added later must come after the older ones")
        taken = {HASH, EXPIRES, TIMER}
        twice = (set(self.key) & set(self.fields)) | taken & {*self.key, *self.fields}
        if twice:
            raise ValueError(f"columns of the state with the same name: {', '.join(sorted(twice))}")

    @cached_property
    def version(self) -> int:
        """The newest version."""
        return max((one.since for one in self.fields.values()), default=1)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of a chunk of the newest version."""
        return self.schema_of(self.version)

    def schema_of(self, version: int) -> pa.Schema:
        """Return the columns of a chunk of a version.

        Raises
        ------
        ValueError
            If a newer version of the job has written the state.
        """
        if version > self.version:
            raise ValueError(f"the state has version {version}, the job only knows {self.version}")
        own = [(name, one.type) for name, one in self.fields.items() if one.since <= version]
        return pa.schema([(HASH, pa.int64()), *self.key.items(), (EXPIRES, pa.int64()), (TIMER, pa.int64()), *own])

    def upgraded(self, rows: pa.RecordBatch, version: int) -> pa.RecordBatch:
        """Return rows of an older version with the fields that were added since, at their defaults."""
        if version == self.version:
            return rows
        added = [
            pa.repeat(pa.scalar(one.default, one.type), rows.num_rows)
            for one in self.fields.values()
            if one.since > version
        ]
        return pa.RecordBatch.from_arrays([*rows.columns, *added], schema=self.schema)

    def empty(self) -> pa.RecordBatch:
        """Return no rows."""
        return pa.RecordBatch.from_arrays([pa.array([], one.type) for one in self.schema], schema=self.schema)

    def sorted_by_hash(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the rows of some batches as one, sorted by hash; rows of the same hash keep their order."""
        if not batches:
            return self.empty()
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(list(batches))
        hashes = rows.column(HASH).to_numpy(zero_copy_only=False)
        if len(hashes) < 2 or (hashes[1:] >= hashes[:-1]).all():
            return rows
        return rows.take(pa.array(np.argsort(hashes, kind="stable")))
