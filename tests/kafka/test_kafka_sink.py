"""A sink of Kafka beside a table: every row is there after kills, a restore and a rescale, and repeats are known."""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from datetime import datetime
from typing import Any

import pytest
from confluent_kafka.cimpl import Consumer

from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.processes import kill
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase, observe
from tests.conftest import TripMaker
from tests.integration.conftest import BY, Place
from tests.integration.test_patterns import CASES, run_case
from tests.kafka.server import KafkaServer
from tests.spark.job_runs import as_trips

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

ROWS = 3000


class Reader:
    """What a consumer of the topic has read: records as (batch, key, value)."""

    def __init__(self, consumer: Consumer, job: str) -> None:
        self._consumer = consumer
        self._job = job
        self.records: list[tuple[str, str, dict[str, Any]]] = []

    def poll(self, seconds: float = 1.0) -> int:
        """Read what is there; return the number of records."""
        found = self._consumer.consume(1000, seconds)
        for one in found:
            assert one.error() is None, one.error()
            headers = {name: value.decode() for name, value in one.headers()}
            assert headers["streamwarden.job"] == self._job
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
    reader = Reader(kafka.reader(out), "copies")
    kafka.send(topic, [(str(one), json.dumps({"number": one, "text": f"text {one}"})) for one in range(ROWS)])

    kills = 0
    deadline = time.monotonic() + 900
    while len({key for _, key, _ in reader.records}) < ROWS and time.monotonic() < deadline:
        # Killed as soon as a batch's first records are there, so before it is committed, or a moment later.
        if reader.poll(0.02) and kills < 3 and len(reader.records) > kills * 800:
            seen = observe(place.workspace, "copies")
            assert seen.heartbeat is not None and kill(seen.heartbeat.process)
            kills += 1
            driver_control.start(place.workspace, "copies", by=BY)
    # What the last try may still send.
    place.wait("copies", lambda seen: bool(seen.heartbeat and seen.heartbeat.idle), "nothing left to do", timeout=600)
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


def test_all_rows_are_sent_through_a_kill_a_restore_and_a_rescale(
    place: Place, kafka: KafkaServer, make_trips: TripMaker
) -> None:
    run_sink(place, kafka, make_trips)


def run_sink(place: Place, kafka: KafkaServer, make_trips: TripMaker) -> None:
    """Let a job with state write a topic beside its table, and compare the two after all operations."""
    topic = f"payments-{secrets.token_hex(4)}"
    kafka.create(topic, 2)
    sinks = [one.model_dump(mode="json") for one in place.workspace.job("dedup_events").sinks]
    sink = {"kind": "kafka", "topic": topic, "bootstrap_servers": kafka.address, "keys": ["payment_id"]}
    place.job("dedup_events", sinks=[*sinks, sink])
    # Its table equals a batch computation at the end.
    saved = run_case(place, CASES["dedup_events"](as_trips(make_trips(1500, cards=80))))
    reader = Reader(kafka.reader(topic), "dedup_events")
    while reader.poll(5.0):
        pass

    sent: dict[str, dict[int, tuple[int, dict[str, Any]]]] = defaultdict(dict)
    for batch, key in (kept := reader.kept()):
        generation, number = map(int, batch.split("-"))
        # One batch of each generation: what comes twice is a repeat, with the same header.
        assert sent[key].setdefault(generation, (number, kept[batch, key]))[0] == number, key
    table = {row["payment_id"]: row for row in place.rows("payments")}
    assert sent.keys() == table.keys()
    for key, by_generation in sent.items():
        for _, value in by_generation.values():
            at = ("lpep_pickup_datetime", "lpep_dropoff_datetime", "settled_at")
            assert {**value, **{name: datetime.fromisoformat(value[name]) for name in at}} == table[key]
    # The restore has replayed what came after the savepoint, and only that.
    replayed = [found for found in sent.values() if len(found) > 1]
    assert replayed and all(found[min(found)][0] > saved.batch for found in replayed)
    print(f"{len(reader.records) - len(kept)} repeats, {len(replayed)} rows replayed by the restore")  # noqa: T201
