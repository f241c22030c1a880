"""What every serving store keeps: no older write counts, and a deleted key stays deleted."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamwarden.errors import StreamwardenError
from streamwarden.serving.redis import RedisStore
from streamwarden.serving.sqlite import SqliteStore
from streamwarden.serving.store import Entry, Position, ServingStore, StoreMoved, key_text
from tests.unit.serving.conftest import Opener


def entries(values: dict[str, str | None]) -> list[Entry]:
    return [Entry(key, None if value is None else f'{{"v":"{value}"}}') for key, value in values.items()]


class Writer:
    """A driver's view of a store."""

    def __init__(self, store: ServingStore, epoch: int = 1, batch: int = -1) -> None:
        self.store = store
        self.at = Position(epoch, 1, batch)
        store.begin(self.at)

    def write(self, batch: int, **values: str | None) -> int:
        position, now = Position(self.at.epoch, 1, batch), time.time_ns() // 1_000_000
        done = self.store.write(entries(values), self.at, position, watermark_ms=batch * 1000, now_ms=now)
        self.at = position
        return done


def read(store: ServingStore, *keys: str) -> dict[str, str]:
    now = time.time_ns() // 1_000_000
    return {key: one.value["v"] for key in keys if (one := store.get(key, now_ms=now)) is not None}


def test_a_value_comes_with_its_batch_and_watermark(open_it: Opener) -> None:
    store = open_it()
    assert store.position() is None and store.get("a", now_ms=0) is None
    assert Writer(store).write(5, a="x", b="y") == 2
    found = open_it().get("a", now_ms=0)
    assert found is not None
    assert (found.value, found.generation, found.batch) == ({"v": "x"}, 1, 5)
    assert found.watermark == datetime.fromtimestamp(5, UTC)
    assert store.position() == Position(1, 1, 5)


def test_a_batch_that_is_tried_again_changes_nothing(open_it: Opener) -> None:
    writer = Writer(open_it())
    for _ in range(2):
        writer.write(4, a="four", b="four")
    writer.write(5, a="five")
    assert read(writer.store, "a", "b") == {"a": "five", "b": "four"}


def test_a_driver_that_lost_its_lease_writes_nothing(open_it: Opener) -> None:
    late = Writer(open_it(), epoch=1)
    late.write(4, a="old", b="old")
    store = open_it()
    writer = Writer(store, epoch=2, batch=4)
    with pytest.raises(StoreMoved):
        late.write(5, a="older", new="older")
    with pytest.raises(StoreMoved):
        store.begin(Position(1, 1, 9))
    assert read(store, "a", "new") == {"a": "old"}
    # The same batch, by the job's new driver.
    writer.write(5, a="new", b=None)
    assert read(store, "a", "b") == {"a": "new"}


def test_a_store_that_was_emptied_or_went_back_is_noticed(open_it: Opener) -> None:
    store = open_it()
    writer = Writer(store)
    writer.write(1, a="x")
    store.clear()
    with pytest.raises(StoreMoved):
        writer.write(2, a="y")
    store.begin(Position(1, 1, 0))
    with pytest.raises(StoreMoved):
        writer.write(2, a="y")
    assert read(store, "a") == {}


def test_a_deleted_key_is_not_brought_back_by_an_older_write(open_it: Opener) -> None:
    store = open_it()
    writer = Writer(store)
    writer.write(1, a="one")
    writer.write(2, a=None)
    # As if the rest of an older batch came late.
    store.write(entries({"a": "one"}), writer.at, Position(1, 1, 1), watermark_ms=0, now_ms=0)
    writer.at = Position(1, 1, 1)
    assert read(store, "a") == {}
    writer.write(3, a="three")
    assert read(store, "a") == {"a": "three"}


def test_after_a_filling_only_its_keys_are_left(open_it: Opener) -> None:
    store = open_it()
    Writer(store).write(7, a="old", gone="old")
    begun = Position(2, 1, 7, complete=False)
    store.begin(begun)
    assert open_it().position() == begun
    store.write(entries({"a": "table"}), begun, begun, watermark_ms=0, now_ms=0)
    assert store.drop_older(begun) == 1
    store.begin(Position(2, 1, 7))
    assert open_it().position() == Position(2, 1, 7)
    assert read(store, "a", "gone") == {"a": "table"}


def test_values_expire(open_it: Opener) -> None:
    writer = Writer(open_it(timedelta(seconds=1)))
    writer.write(1, a="x")
    assert read(writer.store, "a") == {"a": "x"}
    time.sleep(1.2)
    assert read(writer.store, "a") == {}
    # A key that expired takes a new value.
    writer.write(2, a="y")
    assert read(writer.store, "a") == {"a": "y"}


def test_clear_forgets_the_position_too(open_it: Opener) -> None:
    store = open_it()
    Writer(store, epoch=8).write(1, a="x")
    store.clear()
    assert store.position() is None and read(store, "a") == {}
    assert Writer(store, epoch=1).write(0, a="y") == 1


def test_thousands_of_keys_in_one_batch(open_it: Opener) -> None:
    writer = Writer(open_it())
    values = {f"k{number}": str(number) for number in range(2_345)}
    assert writer.write(1, **values) == len(values)
    assert read(writer.store, "k0", "k1000", "k2344") == {"k0": "0", "k1000": "1000", "k2344": "2344"}


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from("xyz"), min_size=1), max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_batches_by_drivers_that_die_come_to_the_newest_values(
    tmp_path_factory: pytest.TempPathFactory, batches: list[dict[str, str | None]], dies: list[bool]
) -> None:
    path = tmp_path_factory.mktemp("any") / "t.sqlite"
    drivers = [Writer(SqliteStore(path, None, writes=True))]
    for (batch, values), dying in zip(enumerate(batches), dies, strict=False):
        drivers[-1].write(batch, **values)
        if dying:
            # The next one repeats the batch; the one before is not quite dead.
            drivers.append(Writer(SqliteStore(path, None, writes=True), len(drivers) + 1, batch - 1))
            drivers[-1].write(batch, **values)
            with pytest.raises(StoreMoved):
                drivers[-2].write(batch + 1, a="late", b="late", c="late")
    expected: dict[str, str | None] = {}
    for values in batches:
        expected |= values
    assert read(drivers[-1].store, *"abc") == {key: one for key, one in expected.items() if one is not None}
    for driver in drivers:
        driver.store.close()


def test_a_server_that_does_not_answer_is_an_error_to_be_tried_again() -> None:
    store = RedisStore("redis://127.0.0.1:1/0", "table", None)
    with pytest.raises(StreamwardenError, match="SERVING_UNREACHABLE") as raised:
        store.position()
    assert raised.value.retryable


def test_keys_are_written_as_spark_writes_them() -> None:
    moment = datetime(2023, 3, 8, 12, 0, 0, 250_000, tzinfo=UTC)
    assert key_text({"zone": 7, "at": moment}) == '{"zone":7,"at":"2023-03-08T12:00:00.250000Z"}'
    assert key_text({"name": 'ü"\n', "d": Decimal("1.50")}) == '{"name":"ü\\"\\n","d":"1.50"}'


def test_a_reader_does_not_make_a_file(tmp_path: Path) -> None:
    with pytest.raises(StreamwardenError, match="unable to open"):
        SqliteStore(tmp_path / "none.sqlite", None, writes=False)
