"""Inputs that the fuzzer found (tests/fuzz), each in its smallest form, and some rounds of it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse, parse_object
from tests.fuzz import targets
from tests.fuzz.__main__ import mutated
from tests.fuzz.targets import COMMIT, LOG, METADATA, OFFSETS, PLAN, READ, SCHEMA, TARGETS, place

pytestmark = pytest.mark.unit

DEEP = b"[" * 5000
FOUND: dict[str, list[bytes]] = {
    # An action that is no object, or has other parts than readers expect; a number that is none.
    "delta_log": [
        DEEP,
        b"1",
        b"null",
        b"[]",
        b'{"txn":1}',
        b'{"txn":{"version":3}}',
        b'{"txn":{"appId":"streamwarden/trips/g000001"}}',
        b'{"txn":{"appId":"streamwarden/trips/g000001","version":1e999}}',
        b'{"remove":[]}',
        b'{"commitInfo":null}',
        b'{"txn":{"appId":"streamwarden/trips/g000001","version":{}}}',
        b'{"add":{"path":7}}',
        b"\xff",
        b"",
    ],
    "published": [DEEP, b"1", b'{"commitInfo":{"tags":[]}}', b'{"commitInfo":{"tags":{"content":null}}}', LOG[:40]],
    # A footer that pyarrow can't decode is an OSError.
    "delta_checkpoint": [
        b"PAR1" + b"\x15" * 40 + (40).to_bytes(4, "little") + b"PAR1",
        b"PAR1PAR1",
        b"",
        targets.parquet()[:-9],
    ],
    # So many partitions that their files can't be looked for; positions that are no numbers.
    "offsets": [
        DEEP,
        b"v1\n" + DEEP + b"\n-",
        b"v1\n[]\n-",
        OFFSETS.replace(b"1000", b"1e999"),
        OFFSETS.replace(b'"2"', b'"99999999999999999999"'),
        OFFSETS.replace(b'"2"', b'"-1"'),
        OFFSETS.replace(b'"2"', b"{}"),
        OFFSETS.replace(b'Offset":3', b'Offset":null'),
        OFFSETS.replace(b'Offset":3', b'Offset":NaN'),
        OFFSETS.replace(b'Offset":3', b'Offset":1e999'),
        OFFSETS.replace(b'Offset":3', b'Offset":99999999999999999'),
    ],
    # Four thousand million pieces of nothing.
    "state": [
        DEEP,
        b"v1\n" + DEEP,
        b"\0\2v2\xff\xff\xff\xff",
        SCHEMA[:6],
        METADATA.replace(b'Partitions":2', b'Partitions":99999999999'),
        METADATA.replace(b'Partitions":2', b'Partitions":[]'),
        b"PK\5\6" + b"\0" * 18,
    ],
    "plans": [
        DEEP,
        b"v1\n" + DEEP + b"\n",
        PLAN.replace(b'"a.csv"', b"{}"),
        PLAN.replace(b":3,", b':"3",'),
        b"[]\n",
        b'"name"\n',
        READ.replace(b":0}", b":1e999}"),
        READ.replace(b'"file:///arrivals/trips/g000001/0000000000.jsonl"', b"{}"),
        b"\xc2\xb2\n",
    ],
    # A day that does not exist, a list as a key, deep brackets, an alias of itself.
    "configuration": [
        b"name: 2001-99-99",
        b"? [a, b]\n: c",
        b"a: " + DEEP,
        b"a: " + b"{a: " * 3000,
        b"a: &a [*a]",
        b"- " * 3000,
        b"\x01",
        b"",
        b"a: !!python/object/apply:os.system [id]",
        b"&a a: *b",
        b"0x: 1\n0o9: 08\n.nan: .inf",
    ],
    "suites": [
        DEEP,
        b"1",
        b"{}",
        b'{"expectations":' + DEEP + b"}",
        b'{"expectations":[{"kwargs":{"row_condition":{"type":[]}}}]}',
    ],
    # Texts for which sqlglot itself fails.
    "statements": [
        b"SELECT * FROM {batch} WHERE a::",
        b"SELECT @ FROM {batch}",
        b"(" * 2000,
        b"SELECT {batch}.",
        b"\xff\xfe",
        b"{",
        b"{{",
    ],
    # JSON that is no pod, and times that are none. Before, a supervisor's look at the driver ended with a KeyError.
    "cluster_answers": [
        DEEP,
        b"",
        b"1",
        b"{}",
        b'{"metadata":1,"status":{}}',
        b'{"metadata":{"name":"p"},"status":{"phase":"Running","containerStatuses":[7]}}',
        b'{"metadata":{"name":"p","creationTimestamp":"x"},"status":{"phase":"Pending"}}',
        b'{"items":[{"metadata":null,"status":{"phase":"Failed"}}]}',
        b'{"apps":{"app":[{"id":"a","state":"KILLED","startedTime":1e999}]}}',
        b'{"apps":{"app":[{"id":"a","state":"RUNNING","startedTime":99999999999999999999}]}}',
        b'{"apps":' + DEEP + b"}",
        # No address can have such a character.
        b'{"apps":{"app":[{"id":"\\u0000","state":"RUNNING"}]}}',
        b'{"apps":{"app":{"id":"a","state":"KILLED","amHostHttpAddress":"\\u0000","amContainerLogs":"/container_1"}}}',
    ],
    # Bytes that are no record batch; cut ones; a text that ends far behind its bytes, which killed the process.
    "keyed_bases": [b"", b"\xff\xff\xff\xff", targets.chunk(1)[:-9], targets.chunk(2)[:40], targets.shifted()],
    "documents": [DEEP, b"1", b"null", b"\xff", b"", b'{"incarnation":' + DEEP + b"}"],
    "manifest": [DEEP, b"", b"{}"],
    "results": [DEEP, b"", b"{}", b'{"run_id":NaN}'],
    "landed": [b"", b"PAR1PAR1", DEEP, b"\xff\xfe", targets.parquet()[:-9], COMMIT],
}


@pytest.fixture(scope="module", autouse=True)
def a_place() -> Iterator[None]:
    yield
    targets.end()
    place.cache_clear()


def test_each_target_has_inputs() -> None:
    assert FOUND.keys() == TARGETS.keys()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "data"), [(name, one) for name, each in FOUND.items() for one in each])
def test_what_was_found_is_an_error_of_the_catalogue(name: str, data: bytes) -> None:
    TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_the_samples_are_read(name: str) -> None:
    """A target that refuses what real programs write would prove nothing."""
    samples = TARGETS[name].samples()
    accepted = 0
    for data in samples:
        try:
            TARGETS[name].read(data)
            accepted += 1
        except StreamwardenError:
            continue
    assert accepted, name


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", TARGETS)
def test_some_mutations_are_read(name: str) -> None:
    chance, samples = random.Random(7), TARGETS[name].samples()
    for _ in range(20):
        TARGETS[name](mutated(chance, samples))


@pytest.mark.parametrize("text", ["[" * 100_000, "NaN", "-Infinity", "1e999", "", "{", b"\xff", "1" * 5000])
def test_what_is_wrong_with_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize("text", ["1", "null", "[]", '"a"'])
def test_an_object_is_asked_for(text: str) -> None:
    with pytest.raises(ValueError, match="no object"):
        parse_object(text)
    assert parse_object('{"a": 1.5}') == {"a": 1.5}
