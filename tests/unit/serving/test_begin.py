"""What a driver's start does with a serving store: go on, take the new generation, or fill it from the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamwarden.driver.pipeline.serving import Server, begin_serving, mark_stale
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.spec import ServeSpec, SinkSpec
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.serving.sqlite import SqliteStore
from streamwarden.serving.store import Position

SINK = SinkSpec(table="features", mode="upsert", keys=("k",), serve=ServeSpec(kind="sqlite"))


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "features.sqlite", None, writes=True)


def reference(generation: int, base: int | None = None, *rewound: str) -> CheckpointRef:
    outputs = [OutputStart(table=table, version=1) for table in rewound]
    return CheckpointRef(
        job="j", generation=generation, path="c", since=utc_now(), reason="", base_batch=base, outputs=outputs
    )


def begun(store: SqliteStore, at: CheckpointRef, committed: int | None) -> list[int]:
    filled: list[int] = []

    def fill(_: Server, batch: int) -> None:
        filled.append(batch)
        store.begin(Position(at.generation, batch))

    begin_serving(store, SINK, at, committed, fill)
    return filled


def test_the_first_start_fills_it(store: SqliteStore) -> None:
    assert begun(store, reference(1), None) == [-1]


def test_a_restart_goes_on(store: SqliteStore) -> None:
    store.begin(Position(1, 7))
    assert begun(store, reference(1), 7) == []
    # The driver was killed between the batch's write and its commit.
    store.begin(Position(1, 8))
    assert begun(store, reference(1), 7) == []
    assert store.position() == Position(1, 8)


def test_batches_that_were_not_served_are_noticed(store: SqliteStore) -> None:
    store.begin(Position(1, 7))
    assert begun(store, reference(1), 9) == [9]


def test_a_rescale_only_takes_the_new_generation(store: SqliteStore) -> None:
    store.begin(Position(1, 7))
    assert begun(store, reference(2, 6), 8) == []
    assert store.position() == Position(2, 8)


def test_a_table_that_is_put_back_fills_it_also_after_a_kill(store: SqliteStore) -> None:
    store.begin(Position(1, 7))
    restored = reference(2, 4, "features")
    mark_stale(store, restored, SINK)
    # Killed after the table was put back, when the document does not name it any more.
    assert begun(store, reference(2, 4), 4) == [4]


def test_another_table_that_is_put_back_does_not(store: SqliteStore) -> None:
    store.begin(Position(1, 7))
    mark_stale(store, reference(2, 4, "other"), SINK)
    assert begun(store, reference(2, 4), 4) == []


def test_a_store_of_a_later_generation_is_refused(store: SqliteStore) -> None:
    store.begin(Position(3, 7))
    with pytest.raises(StreamwardenError, match="SERVING_NEWER"):
        begun(store, reference(1), 9)
