"""Keyed state for Python jobs, vectorised: a job is called once for many keys, with frames.

Spark's transformWithState calls Python once for each key, and each of its state calls is a round trip to the JVM. Here
one grouping key is a *bucket* of keys. Its state is a short list of Arrow chunks (:mod:`~.chunks`), which a batch reads
and writes in three or four round trips.
"""

from __future__ import annotations

from streamwarden.keyed_state.dataframe import with_keyed_state
from streamwarden.keyed_state.frames import session_ids, sliding_windows, union_of_lists
from streamwarden.keyed_state.job import KEY_ID, KeyedBatch, KeyedJob, KeyedResult
from streamwarden.keyed_state.layout import StateField

__all__ = [
    "KEY_ID",
    "KeyedBatch",
    "KeyedJob",
    "KeyedResult",
    "StateField",
    "session_ids",
    "sliding_windows",
    "union_of_lists",
    "with_keyed_state",
]
