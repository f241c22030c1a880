"""Values of every format, of topics by list and pattern, through what changes under a job: one job reads them all."""

from __future__ import annotations

import json
import secrets
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from streamwarden.operations.deploy import deploy_job
from streamwarden.store.value_schemas import message_of
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase, observe
from tests.integration.conftest import BY, Place
from tests.kafka.registry import Registry
from tests.kafka.server import KafkaServer
from tests.shop_messages import descriptors

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

FIRST: dict[str, Any] = {"type": "record", "name": "Sale", "fields": [{"name": "id", "type": ["null", "string"]}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "amount", "type": "double", "default": 0.5}]}
JSON = {"format": "json", "columns": "id string, amount double"}
BAD = b"\xff\xfe\x00"


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.close()


def avro(id_: str | None, amount: float | None = None) -> bytes:
    """Return a record of FIRST, or of SECOND if it has an amount."""
    text = b"\x00" if id_ is None else b"\x02" + bytes([2 * len(id_)]) + id_.encode()
    return text + (b"" if amount is None else struct.pack("<d", amount))


def framed(schema: int, content: bytes) -> bytes:
    return b"\x00" + struct.pack(">i", schema) + content


class Formats:
    """The job `formats` and the topics that it reads."""

    def __init__(self, place: Place, kafka: KafkaServer, registry: Registry) -> None:
        self.place = place
        self.kafka = kafka
        self.prefix = f"f{secrets.token_hex(4)}-"
        (place.config / "schemas").mkdir()
        (place.config / "schemas" / "sale.avsc").write_text(json.dumps(FIRST))
        (place.config / "schemas" / "shop.desc").write_bytes(descriptors())
        values: dict[str, dict[str, Any]] = {
            "json": {"topic": self.topic("json"), "value": JSON},
            "avro": {
                "topic": self.topic("avro"),
                "value": {"format": "avro", "schema_file": "schemas/sale.avsc"},
            },
            "registry": {
                "topic": self.topic("registry"),
                "value": {"format": "avro", "registry": registry.url},
            },
            "protobuf": {
                "topic": self.topic("protobuf"),
                "value": {"format": "protobuf", "descriptor_file": "schemas/shop.desc", "message": "shop.Sale"},
            },
            "several": {"topics": [self.topic("a"), self.topic("b")], "value": JSON},
            "alike": {"topic_pattern": f"{self.prefix}like-.*", "value": JSON},
        }
        place.job(
            "formats",
            module="tests.integration.jobs.formats",
            sources={
                name: {"kind": "kafka", "bootstrap_servers": kafka.address, **one} for name, one in values.items()
            },
            sinks=[{"table": "formats", "mode": "append"}],
        )
        for name in ("json", "avro", "registry", "protobuf", "a", "b", "like-1"):
            kafka.create(self.topic(name), 1)

    def topic(self, name: str) -> str:
        return self.prefix + name

    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the rows by source and key; no record is there twice."""
        found = self.place.rows("formats")
        by_key = {(row["source"], row["key"]): json.loads(row["row"]) for row in found}
        assert len(by_key) == len(found)
        return by_key

    def await_keys(self, keys: set[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
        deadline = time.monotonic() + 150
        found: dict[tuple[str, str], dict[str, Any]] = {}
        while not keys <= set(found) and time.monotonic() < deadline:
            time.sleep(0.5)
            try:
                found = self.rows()
            except Exception:
                # The table is not there yet.
                continue
        assert keys <= set(found), sorted(keys - set(found))
        return found


def test_every_record_of_every_format_is_read_or_named(place: Place, kafka: KafkaServer, registry: Registry) -> None:
    formats = Formats(place, kafka, registry)
    first = registry.register(f"{formats.topic('registry')}-value", FIRST)
    sale = GetMessageClass(message_of(descriptors(), "shop.Sale"))
    sold = sale(id="p", cents=7, kind=1)  # type: ignore[call-arg]
    sold.at.FromJsonString("2026-01-02T03:04:05.000006Z")
    good: dict[str, bytes] = {
        "json": b'{"id": "j", "amount": 1.5}',
        "avro": avro("a"),
        "registry": framed(first, avro("r")),
        "protobuf": sold.SerializeToString(),
    }
    # All fields unset: no more corrupt than any other record.
    empty = {"json": b"{}", "avro": avro(None), "registry": framed(first, avro(None)), "protobuf": b""}
    corrupt: dict[str, bytes] = {
        "json": BAD,
        # A string of more bytes than there are.
        "avro": b"\x02\x7e" + BAD,
        "registry": framed(first, b"\x02\x7e"),
        "protobuf": BAD,
    }
    for name in good:
        topic = formats.topic(name)
        kafka.send(topic, [("good", good[name])], headers=[("trace", b"t-1")])
        kafka.send(topic, [("empty", empty[name]), ("corrupt", corrupt[name]), ("none", None)])
    kafka.send(formats.topic("json"), [("array", '[{"id": "1"}, {"id": "2"}]'), ("nothing", ""), ("null", "null")])
    kafka.send(formats.topic("registry"), [("unframed", avro("r")), ("short", b"\x00\x01")])
    for name in ("a", "b", "like-1"):
        kafka.send(formats.topic(name), [(f"{name}:{number}", json.dumps({"id": name})) for number in range(5)])

    deploy_job(place.workspace, "formats", by=BY)
    wanted = {(name, key) for name in good for key in ("good", "empty", "corrupt", "none")}
    wanted |= {("json", key) for key in ("array", "nothing", "null")}
    wanted |= {("registry", "unframed"), ("registry", "short")}
    wanted |= {("several", f"{name}:{number}") for name in ("a", "b") for number in range(5)}
    wanted |= {("alike", f"like-1:{number}") for number in range(5)}
    rows = formats.await_keys(wanted)
    for name in good:
        assert rows[name, "good"]["id"] == name[0] and "_corrupt" not in rows[name, "good"], name
        header = rows[name, "good"]["_kafka"]["headers"]
        assert [(one["key"], b64decode(one["value"])) for one in header] == [("trace", b"t-1")]
        assert "_corrupt" not in rows[name, "empty"] and not rows[name, "empty"]["_tombstone"], name
        assert rows[name, "none"]["_tombstone"] and "_corrupt" not in rows[name, "none"], name
        assert "id" not in rows[name, "corrupt"] and rows[name, "corrupt"]["_kafka"]["offset"] == 2
    assert "\ufffd" in rows["json", "corrupt"]["_corrupt"]
    for name in ("avro", "registry", "protobuf"):
        assert b64decode(rows[name, "corrupt"]["_corrupt"]) == corrupt[name]
    assert rows["json", "array"]["_corrupt"].startswith("[") and "id" not in rows["json", "array"]
    assert (rows["json", "nothing"]["_corrupt"], rows["json", "null"]["_corrupt"]) == ("", "null")
    assert rows["registry", "unframed"]["_corrupt"] == b64encode(avro("r")).decode()
    assert "_corrupt" in rows["registry", "short"]
    assert rows["protobuf", "good"]["at"] == "2026-01-02T03:04:05.000006Z"
    assert (rows["protobuf", "good"]["kind"], rows["protobuf", "empty"]["cents"]) == ("CARD", 0)

    # A new version of the schema, a topic that matches, a partition more: the same driver reads them.
    incarnation = observe(place.workspace, "formats").incarnation
    second = registry.register(f"{formats.topic('registry')}-value", SECOND)
    kafka.send(formats.topic("registry"), [("new", framed(second, avro("n", 2.5))), ("old", framed(first, avro("o")))])
    kafka.create(formats.topic("like-2"), 1)
    kafka.send(formats.topic("like-2"), [("like-2:0", json.dumps({"id": "2"}))])
    kafka.grow(formats.topic("a"), 2)
    kafka.send(formats.topic("a"), [("a:5", json.dumps({"id": "a"}))], partition=1)
    rows = formats.await_keys(
        {*wanted, ("registry", "new"), ("registry", "old"), ("alike", "like-2:0"), ("several", "a:5")}
    )
    assert (rows["registry", "new"]["amount"], rows["registry", "old"]["amount"]) == (2.5, 0.5)
    assert rows["several", "a:5"]["_kafka"]["partition"] == 1
    seen = observe(place.workspace, "formats")
    assert seen.incarnation == incarnation
    log = (place.workspace.log_dir("formats", incarnation or "") / "driver.log").read_text()
    assert "Unknown schema: subject" in log
    reference = place.documents("formats").checkpoint.read()
    assert reference is not None and formats.topic("registry") in reference.topics

    # A topic that was made anew, and has grown beyond the old position.
    driver_control.stop(place.workspace, "formats", by=BY)
    kafka.delete(formats.topic("b"))
    kafka.create(formats.topic("b"), 1)
    kafka.send(formats.topic("b"), [(f"b:{number}", json.dumps({"id": "b"})) for number in range(50)])
    driver_control.start(place.workspace, "formats", by=BY)
    seen = place.wait("formats", lambda seen: seen.phase is Phase.FAILED, "its end")
    assert seen.error is not None and seen.error.code == "SOURCE_REPLACED", seen.error
    assert f"topic {formats.topic('b')} was created anew" in seen.error.what and "another name" in seen.error.remedy
    assert set(formats.rows()) == set(rows)


def test_a_topic_that_is_made_anew_under_a_job_ends_it(place: Place, kafka: KafkaServer) -> None:
    topic = f"anew-{secrets.token_hex(4)}"
    value = {"format": "json", "columns": "number long, text string"}
    place.job(
        "copies",
        module="tests.integration.jobs.copies",
        source={"kind": "kafka", "bootstrap_servers": kafka.address, "value": value, "topic": topic},
        sinks=[{"table": "copies", "mode": "append"}],
    )
    kafka.create(topic, 1)
    kafka.send(topic, [("a", json.dumps({"number": number})) for number in range(20)])
    deploy_job(place.workspace, "copies", by=BY)
    place.wait("copies", lambda seen: bool(seen.progress and seen.progress.last), "a batch")
    # At once, and beyond the old position: without a comparison of ids, the job would go on there.
    kafka.delete(topic)
    kafka.create(topic, 1)
    kafka.send(topic, [("b", json.dumps({"number": 1000 + number})) for number in range(60)])
    seen = place.wait("copies", lambda seen: seen.phase is Phase.FAILED, "its end")
    assert seen.error is not None and seen.error.code == "SOURCE_REPLACED", seen.error
    assert sorted(row["number"] for row in place.rows("copies")) == list(range(20))


def test_records_that_one_of_several_topics_has_dropped_are_named(place: Place, kafka: KafkaServer) -> None:
    prefix = f"d{secrets.token_hex(4)}-"
    source = {
        "kind": "kafka",
        "bootstrap_servers": kafka.address,
        "value": {**JSON, "columns": "number long, text string"},
    }
    place.job(
        "copies",
        module="tests.integration.jobs.copies",
        source={**source, "topic_pattern": f"{prefix}.*"},
        sinks=[{"table": "copies", "mode": "append"}],
    )
    for name in ("a", "b"):
        kafka.create(prefix + name, 1)
        kafka.send(prefix + name, [(name, json.dumps({"number": number})) for number in range(20)])
    deploy_job(place.workspace, "copies", by=BY)
    place.wait("copies", lambda seen: bool(seen.progress and seen.progress.last), "a batch")
    driver_control.stop(place.workspace, "copies", by=BY)
    kafka.send(prefix + "b", [("b", json.dumps({"number": number})) for number in range(20, 40)])
    kafka.drop(prefix + "b", 0, 30)
    driver_control.start(place.workspace, "copies", by=BY)
    seen = place.wait("copies", lambda seen: seen.phase is Phase.FAILED, "its end")
    assert seen.error is not None and seen.error.code == "SOURCE_DATA_GONE", seen.error
    assert f"{prefix}b" in seen.error.what
