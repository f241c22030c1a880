"""Which bases a worker keeps, and that a job equals itself whatever is kept."""

from __future__ import annotations

import random
from unittest import mock

import pytest

from streamwarden.keyed_state import bases
from streamwarden.keyed_state.bases import KeptBases
from streamwarden.keyed_state.chunks import StoredChunk
from tests.unit.keyed_state.test_calls import Bucket, Sums, events_of

pytestmark = pytest.mark.unit


def test_a_base_is_read_once_by_each_worker() -> None:
    hashes = {f"key{number}": number for number in range(100)}
    workers = [KeptBases(10**6), KeptBases(10**6)]
    bucket, seen = Bucket(Sums()), set()
    with mock.patch.object(bases, "_LEAST_APART", 0):
        for batch in range(12):
            with mock.patch.object(bases, "_kept", workers[batch % 2]):
                found = bucket.batch(events_of([(f"key{number}", 1) for number in range(100)], hashes), batch)
            assert {row["total"] for row in found} == {batch + 1}
            seen.add(bucket.handle.rows[0][1])
    # Some bases were merged, and each is only read by the worker that did not write it.
    assert 2 <= len(seen) < 12
    assert len(seen) - 1 <= bucket.handle.base.reads <= len(seen)


@pytest.mark.parametrize(("room", "least"), [(2, 0.9), (1, 0.75), (0.5, 0.4)])
def test_of_more_bases_than_fit_some_are_kept(room: float, least: float) -> None:
    """Each batch, a worker gets half of the buckets by chance, and one bucket in twenty is merged."""
    chance, number = random.Random(1), 200
    kept, names = KeptBases(int(number * room) * 100), [bytes([0, one]) for one in range(number)]
    hits, asked = 0, 0
    for batch in range(400):
        for bucket in sorted(chance.sample(range(number), number // 2)):
            found = kept.get(names[bucket])
            if batch > 100:
                hits, asked = hits + (found is not None), asked + 1
            if found is None:
                kept.put(names[bucket], StoredChunk(1, bytes(100)))
        for bucket in chance.sample(range(number), number // 20):
            was, names[bucket] = names[bucket], chance.randbytes(8)
            # By the other worker half of the times.
            if chance.random() < 0.5:
                kept.drop(was)
                kept.put(names[bucket], StoredChunk(1, bytes(100)))
    assert sum(len(one.chunk.blob) for one in kept._kept.values()) == kept._bytes <= kept._limit
    assert hits / asked > least
