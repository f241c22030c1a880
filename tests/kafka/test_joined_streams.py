"""Trips from a table joined with payments from a real Kafka, whose broker is restarted in the middle."""

from __future__ import annotations

import json
import secrets
import time
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from nyc_taxi.demo.payments import compare_trip_payments, expected_trip_payments
from nyc_taxi.streams.payments import payments_of

from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.processes import kill
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe
from tests.conftest import TripMaker
from tests.integration.conftest import BY, Place
from tests.kafka.server import KafkaServer
from tests.spark.job_runs import as_trips, in_order_of_arrival
from tests.spark.test_trip_payments import AFTER, last_ones, settled

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

COLUMNS = (
    "payment_id string, card_id string, lpep_pickup_datetime timestamp, lpep_dropoff_datetime timestamp, amount double,"
    " method string, settled_at timestamp"
)


def test_equal_to_batch_through_a_kill_and_a_broker_that_is_away(
    place: Place, kafka: KafkaServer, make_trips: TripMaker
) -> None:
    trips = as_trips(make_trips(1200, cards=60))
    payments = payments_of(trips)
    last_trip, last_payment = last_ones(trips, payments)
    topic = f"payments-{secrets.token_hex(4)}"
    kafka.create(topic, 2)
    source = {
        "kind": "kafka",
        "topic": topic,
        "bootstrap_servers": kafka.address,
        "value": {"format": "json", "columns": COLUMNS},
    }
    sources = {"trips": {"kind": "delta", "table": "trips"}, "payments": source}
    place.job("trip_payments", sources=sources, failures={"tolerable_consecutive": 50, "backoff": "1s"})
    arriving = in_order_of_arrival(trips, seed=4, late_share=0.3, latest=timedelta(hours=1), batches=3)
    paying = settled(payments, seed=5, batches=3)

    def feed(piece: int) -> None:
        write_deltalake(place.workspace.table("trips"), arriving[piece], mode="append")
        _send(kafka, topic, paying[piece])

    feed(0)
    # What is no payment: text, another type, an object without fields, a tombstone.
    kafka.send(topic, [("a", "no json"), ("b", json.dumps({"amount": "much"})), ("c", "{}"), ("d", None)])
    deploy_job(place.workspace, "trip_payments", by=BY)
    place.wait("trip_payments", lambda seen: bool(seen.progress and seen.progress.last), "a batch")
    feed(1)
    seen = observe(place.workspace, "trip_payments")
    assert seen.heartbeat is not None and kill(seen.heartbeat.process)
    driver_control.start(place.workspace, "trip_payments", by=BY)
    kafka.kill()
    write_deltalake(place.workspace.table("trips"), arriving[2], mode="append")
    time.sleep(5)
    kafka.start()
    _send(kafka, topic, paying[2])
    write_deltalake(place.workspace.table("trips"), last_trip, mode="append")
    _send(kafka, topic, last_payment)

    expected = expected_trip_payments(trips, payments)
    deadline = time.monotonic() + 180
    while not (difference := compare_trip_payments(expected, _found(place))).equal and time.monotonic() < deadline:
        time.sleep(2)
    assert difference.equal, str(difference)
    assert difference.expected > 1000
    refused = place.rows("trip_payments_quarantine")
    told = sorted((json.loads(row["raw"])["_corrupt"] or "", json.loads(row["raw"])["_tombstone"]) for row in refused)
    assert told == [("", False), ("", True), ("no json", False), ('{"amount": "much"}', False)]
    assert all(json.loads(row["raw"])["_kafka"]["topic"] == topic for row in refused)


def _found(place: Place) -> pa.Table:
    found = place.table("trip_payments")
    return found.filter(pc.less(found["lpep_pickup_datetime"], pa.scalar(AFTER, pa.timestamp("us", "UTC"))))


def _send(kafka: KafkaServer, topic: str, payments: pa.Table) -> None:
    def plain(value: Any) -> str:
        return str(value.isoformat())

    kafka.send(topic, [(row["payment_id"], json.dumps(row, default=plain)) for row in payments.to_pylist()])
