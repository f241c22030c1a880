"""What every serving store keeps: no older write counts, and a deleted key stays deleted."""

from __future__ import annotations

import random
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
from streamwarden.serving.store import Entry, Position, ServingStore, key_text
from tests.unit.serving.conftest import Opener


def write(store: ServingStore, generation: int, batch: int, **values: str | None) -> int:
    entries = [Entry(key, None if value is None else f'{{"v":"{value}"}}') for key, value in values.items()]
    position = Position(generation, batch)
    return store.write(entries, position, watermark_ms=batch * 1000, now_ms=time.time_ns() // 1_000_000)


def read(store: ServingStore, *keys: str) -> dict[str, str]:
    now = time.time_ns() // 1_000_000
    return {key: one.value["v"] for key in keys if (one := store.get(key, now_ms=now)) is not None}


def test_a_value_comes_with_its_batch_and_watermark(open_it: Opener) -> None:
    store = open_it()
    assert store.position() is None and store.get("a", now_ms=0) is None
    assert write(store, 1, 5, a="x", b="y") == 2
    found = open_it().get("a", now_ms=0)
    assert found is not None
    assert (found.value, found.generation, found.batch) == ({"v": "x"}, 1, 5)
    assert found.watermark == datetime.fromtimestamp(5, UTC)
    assert store.position() == Position(1, 5)


def test_older_batches_change_nothing(open_it: Opener) -> None:
    store, late = open_it(), open_it()
    write(store, 1, 4, a="four", b="four")
    write(store, 1, 5, a="five")
    # A driver that lost its lease is in the midst of batch 4.
    assert write(late, 1, 4, a="four", b="four", c="four") == 2
    assert read(store, "a", "b", "c") == {"a": "five", "b": "four", "c": "four"}
    assert store.position() == Position(1, 5)


def test_a_deleted_key_is_not_brought_back_by_an_older_write(open_it: Opener) -> None:
    store = open_it()
    write(store, 1, 1, a="one")
    write(store, 1, 2, a=None)
    assert write(store, 1, 1, a="one") == 0
    assert read(store, "a") == {}
    write(store, 1, 3, a="three")
    assert read(store, "a") == {"a": "three"}


def test_after_a_new_generation_begins_an_older_one_writes_nothing(open_it: Opener) -> None:
    store, late = open_it(), open_it()
    write(store, 1, 9, a="old", b="old")
    store.begin(Position(2, 6))
    assert write(late, 1, 10, a="older", new="older") == 0
    assert read(store, "a", "new") == {"a": "old"}
    write(store, 2, 7, a="new")
    assert store.drop_older(2) == 1
    assert read(store, "a", "b") == {"a": "new"}


def test_a_store_says_that_its_filling_is_not_complete(open_it: Opener) -> None:
    store = open_it()
    store.begin(Position(3, 7, complete=False))
    store.write([Entry("a", '{"v":"x"}')], Position(3, 7, complete=False), watermark_ms=0, now_ms=0)
    assert open_it().position() == Position(3, 7, complete=False)
    store.begin(Position(3, 7))
    assert open_it().position() == Position(3, 7)


def test_values_expire(open_it: Opener) -> None:
    store = open_it(timedelta(seconds=1))
    write(store, 1, 1, a="x")
    assert read(store, "a") == {"a": "x"}
    time.sleep(1.2)
    assert read(store, "a") == {}
    # A key that expired takes a new value.
    write(store, 1, 2, a="y")
    assert read(store, "a") == {"a": "y"}


def test_clear_forgets_the_position_too(open_it: Opener) -> None:
    store = open_it()
    write(store, 8, 1, a="x")
    store.clear()
    assert store.position() is None and read(store, "a") == {}
    assert write(store, 1, 0, a="y") == 1


def test_thousands_of_keys_in_one_batch(open_it: Opener) -> None:
    store = open_it()
    values = {f"k{number}": str(number) for number in range(2_345)}
    assert write(store, 1, 1, **values) == len(values)
    assert read(store, "k0", "k1000", "k2344") == {"k0": "0", "k1000": "1000", "k2344": "2344"}


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from("xyz"), min_size=1), max_size=6),
    st.randoms(use_true_random=False),
)
def test_batches_in_any_order_and_again_come_to_the_same(
    tmp_path_factory: pytest.TempPathFactory, batches: list[dict[str, str | None]], order: random.Random
) -> None:
    store = SqliteStore(tmp_path_factory.mktemp("any") / "t.sqlite", None, writes=True)
    tries = [*enumerate(batches), *(order.choices(list(enumerate(batches)), k=3) if batches else [])]
    order.shuffle(tries)
    for batch, values in tries:
        write(store, 1, batch, **values)
    expected: dict[str, str | None] = {}
    for values in batches:
        expected |= values
    assert read(store, *"abc") == {key: value for key, value in expected.items() if value is not None}
    store.close()


def test_a_server_that_does_not_answer_is_an_error_to_be_tried_again() -> None:
    store = RedisStore("redis://127.0.0.1:1/0", "table", None)
    with pytest.raises(StreamwardenError, match="SERVING_UNREACHABLE") as raised:
        store.position()
    assert raised.value.retryable


def test_keys_are_written_as_spark_writes_them() -> None:
    moment = datetime(2023, 3, 8, 12, 0, 0, 250_000, tzinfo=UTC)
    assert key_text({"zone": 7, "at": moment}) == '{"zone":7,"at":"2023-03-08T12:00:00.250000Z"}'
    assert key_text({"name": 'ü"\n', "d": Decimal("1.50")}) == '{"name":"ü\\"\\n","d":1.5}'


def test_a_reader_does_not_make_a_file(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="unable to open"):
        SqliteStore(tmp_path / "none.sqlite", None, writes=False)
