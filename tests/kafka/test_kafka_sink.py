"""A sink of Kafka beside a table: every row is there after kills, and a row that is there twice has the same batch."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

import pytest
from confluent_kafka.cimpl import Consumer

from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.processes import kill
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase, observe
from tests.integration.conftest import BY, Place
from tests.kafka.server import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

ROWS = 3000


class Reader:
    """What a consumer of the topic has read: records as (batch, key, value)."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.records: list[tuple[str, str, dict[str, Any]]] = []

    def poll(self, seconds: float = 1.0) -> int:
        """Read what is there; return the number of records."""
        found = self._consumer.consume(1000, seconds)
        for one in found:
            assert one.error() is None, one.error()
            headers = {name: value.decode() for name, value in one.headers()}
            assert headers["streamwarden.job"] == "copies"
            self.records.append((headers["streamwarden.batch"], one.key().decode(), json.loads(one.value())))
        return len(found)

    def kept(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Drop repeats by batch and key; a repeat is equal to the first."""
        first: dict[tuple[str, str], dict[str, Any]] = {}
        for batch, key, value in self.records:
            assert first.setdefault((batch, key), value) == value
        return first


def test_all_rows_are_sent_and_repeats_have_the_same_batch(place: Place, kafka: KafkaServer) -> None:
    topic, out = (f"{name}-{secrets.token_hex(4)}" for name in ("numbers", "copies"))
    value = {"format": "json", "columns": "number long, text string"}
    source = {"kind": "kafka", "topic": topic, "bootstrap_servers": kafka.address, "max_offsets_per_batch": 200}
    place.job(
        "copies",
        module="tests.integration.jobs.copies",
        source={**source, "value": value},
        sinks=[
            {"table": "copies", "mode": "append"},
            {"kind": "kafka", "topic": out, "bootstrap_servers": kafka.address, "keys": ["number"]},
        ],
    )
    kafka.create(topic, 2)
    deploy_job(place.workspace, "copies", by=BY)
    seen = place.wait("copies", lambda seen: seen.phase is Phase.WAITING, "the sink's topic")
    assert seen.heartbeat is not None and f"topic {out}, a sink, does not exist yet" in seen.heartbeat.reason
    kafka.create(out, 2)
    reader = Reader(kafka.reader(out))
    kafka.send(topic, [(str(one), json.dumps({"number": one, "text": f"text {one}"})) for one in range(ROWS)])

    kills = 0
    deadline = time.monotonic() + 400
    while len({key for _, key, _ in reader.records}) < ROWS and time.monotonic() < deadline:
        # Killed as soon as a batch's first records are there, so before it is committed, or a moment later.
        if reader.poll(0.02) and kills < 3 and len(reader.records) > kills * 800:
            seen = observe(place.workspace, "copies")
            assert seen.heartbeat is not None and kill(seen.heartbeat.process)
            kills += 1
            driver_control.start(place.workspace, "copies", by=BY)
    # What the last try may still send.
    place.wait("copies", lambda seen: bool(seen.heartbeat and seen.heartbeat.idle), "nothing left to do", timeout=120)
    while reader.poll(3.0):
        pass
    assert kills == 3
    kept = reader.kept()
    repeats = len(reader.records) - len(kept)
    assert sorted(value["number"] for value in kept.values()) == list(range(ROWS))
    table = place.rows("copies")
    assert sorted((row["number"], row["text"]) for row in table) == sorted(
        (row["number"], row["text"]) for row in kept.values()
    )
    assert {batch.split("-")[0] for batch, _ in kept} == {"1"}
    print(f"{repeats} repeats after {kills} kills")  # noqa: T201
