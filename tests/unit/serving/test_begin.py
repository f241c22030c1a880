"""What a driver's start does with a serving store: go on, take the new generation, or fill it from the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamwarden.driver.pipeline.serving import ServingWriter
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.spec import ServeSpec, SinkSpec
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.serving.sqlite import SqliteStore
from streamwarden.serving.store import Position, ServingStore, StoreMoved

SINK = SinkSpec(table="features", mode="upsert", keys=("k",), serve=ServeSpec(kind="sqlite"))


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "features.sqlite", None, writes=True)


def reference(generation: int, base: int | None = None, *rewound: str, rescaled: bool = False) -> CheckpointRef:
    outputs = [OutputStart(table=table, version=1) for table in rewound]
    fields = {"base_batch": base, "outputs": outputs, "rescaled": rescaled}
    return CheckpointRef(job="j", generation=generation, path="c", since=utc_now(), reason="", **fields)


class Filled(ServingWriter):
    """A server whose table is not read."""

    def __init__(self, store: ServingStore, epoch: int, generation: int) -> None:
        nothing: Any = None
        super().__init__(store, SINK, nothing, "", epoch=epoch, generation=generation)
        self.filled: list[int] = []

    def _fill(self, batch: int) -> None:
        self.filled.append(batch)
        self._set(Position(self._epoch, self._generation, batch))


def begun(store: SqliteStore, at: CheckpointRef, committed: int | None, epoch: int = 9) -> list[int]:
    server = Filled(store, epoch, at.generation)
    server.begin(at, committed)
    found = store.position()
    assert found is not None and (found.epoch, found.generation, found.complete) == (epoch, at.generation, True)
    return server.filled


def test_the_first_start_fills_it(store: SqliteStore) -> None:
    assert begun(store, reference(1), None) == [-1]


def test_a_restart_goes_on(store: SqliteStore) -> None:
    store.begin(Position(1, 1, 7))
    assert begun(store, reference(1), 7) == []
    # The driver was killed between the batch's write and its commit.
    store.begin(Position(9, 1, 8))
    assert begun(store, reference(1), 7) == []


def test_batches_that_were_not_served_are_noticed(store: SqliteStore) -> None:
    store.begin(Position(1, 1, 7))
    assert begun(store, reference(1), 9) == [9]


def test_a_rescale_keeps_the_store(store: SqliteStore) -> None:
    store.begin(Position(1, 1, 7))
    assert begun(store, reference(2, 6, rescaled=True), 8) == []


def test_a_rescale_of_a_job_that_served_nothing_for_a_while_fills_it(store: SqliteStore) -> None:
    store.begin(Position(1, 1, 50))
    assert begun(store, reference(2, 50, rescaled=True), 100) == [100]


def test_a_restore_and_a_rescale_that_was_rolled_back_fill_it(store: SqliteStore) -> None:
    store.begin(Position(1, 1, 7))
    assert begun(store, reference(2, 4), 4) == [4]
    # The failed one's driver has begun generation 3; generation 2 is in force again.
    store.begin(Position(10, 3, 9))
    assert begun(store, reference(2, 4, rescaled=True), 8, epoch=11) == [8]


def test_a_table_that_is_put_back_fills_it_also_after_a_kill(store: SqliteStore) -> None:
    store.begin(Position(1, 1, 7))
    restored = reference(1, 4, "features")
    Filled(store, 2, 1).mark_stale(restored)
    with pytest.raises(StoreMoved):
        store.begin(Position(1, 1, 8))
    # Killed after the table was put back, when the document does not name it any more.
    assert begun(store, reference(1, 4), 4) == [4]


def test_another_table_that_is_put_back_does_not(store: SqliteStore) -> None:
    store.begin(Position(1, 1, 7))
    Filled(store, 2, 1).mark_stale(reference(1, 4, "other"))
    assert begun(store, reference(1, 4), 7) == []


def test_a_store_of_a_later_driver_is_refused(store: SqliteStore) -> None:
    store.begin(Position(30, 1, 7))
    with pytest.raises(StreamwardenError, match="SERVING_NEWER"):
        begun(store, reference(1), 9)


def test_a_filling_that_failed_is_begun_anew_by_the_next_try(store: SqliteStore) -> None:
    filling = Filled(store, 9, 1)
    filling.begin(reference(1), 3)
    filling._set(Position(9, 1, 4, complete=False))
    nothing: Any = None
    filling.write(nothing, 0, 4, 0)
    assert filling.filled == [3, 4] and store.position() == Position(9, 1, 4)
