"""Jobs that read a real Kafka: right after kills, restores and rescales, and clear about what is wrong."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from typing import Any

import pytest

from streamwarden.model.savepoint import Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.diagnosis import diagnose
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.rescale import rescale
from streamwarden.operations.restore import restore
from streamwarden.operations.spec_diff import plan
from streamwarden.runtime.processes import kill
from streamwarden.savepoints.take import take
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.conftest import TripMaker
from tests.integration.conftest import BY, Place
from tests.kafka.server import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

BATCH = 200


class Records:
    """The job `records` over a topic of its own, and what it must have counted."""

    def __init__(self, place: Place, kafka: KafkaServer, **fields: Any) -> None:
        self.place = place
        self.kafka = kafka
        self.topic = f"trips-{secrets.token_hex(4)}"
        self.trips: Counter[int] = Counter()
        self.cents: Counter[int] = Counter()
        source = {"kind": "kafka", "topic": self.topic, "bootstrap_servers": kafka.address}
        place.job(
            "records",
            module="tests.integration.jobs.records",
            source={**source, "max_offsets_per_batch": BATCH},
            sinks=[{"table": "records", "mode": "upsert", "keys": ["zone"]}],
            **fields,
        )

    def send(self, trips: list[tuple[int, float]]) -> None:
        self.kafka.send(self.topic, [(str(zone), json.dumps({"zone": zone, "fare": fare})) for zone, fare in trips])
        for zone, fare in trips:
            self.trips[zone] += 1
            self.cents[zone] += round(fare * 100)

    def check(self) -> None:
        """Wait until all is counted, and compare."""
        wanted = {zone: (trips, self.cents[zone]) for zone, trips in self.trips.items()}
        found: dict[int, tuple[int, int]] = {}
        deadline = time.monotonic() + 240
        while found != wanted and time.monotonic() < deadline:
            time.sleep(0.3)
            found = {row["zone"]: (row["trips"], row["cents"]) for row in self.place.rows("records")}
        assert found == wanted

    def caught_up(self, taken: int) -> Observation:
        """Wait until so many offsets were taken by the driver that runs, and nothing is left."""

        def condition(seen: Observation) -> bool:
            sources = [one.source for one in (seen.progress.recent if seen.progress else []) if one.source]
            return sum(one.taken for one in sources) >= taken and sources[-1].pending == 0

        return self.place.wait("records", condition, "nothing left to read")


@pytest.fixture
def trips(make_trips: TripMaker) -> list[tuple[int, float]]:
    rows = make_trips(1500, schema="2025")
    return list(zip(rows["PULocationID"].to_pylist(), rows["fare_amount"].to_pylist(), strict=True))


@pytest.mark.long
@pytest.mark.ci
def test_a_topic_is_waited_for_and_counted_through_a_kill(
    place: Place, kafka: KafkaServer, trips: list[tuple[int, float]]
) -> None:
    records = Records(place, kafka)
    deploy_job(place.workspace, "records", by=BY)
    seen = place.wait("records", lambda seen: seen.phase is Phase.WAITING, "a topic that is not there")
    assert seen.heartbeat is not None and f"topic {records.topic} does not exist yet" in seen.heartbeat.reason

    kafka.create(records.topic, 2)
    records.send(trips[:900])
    # Not with the first batch that leaves nothing: it may have been planned before all of them were there.
    seen = records.caught_up(900)
    records.check()
    sources = [done.source for done in seen.progress.recent if done.source]  # type: ignore[union-attr]
    assert {source.unit for source in sources} == {"offsets"}
    assert sum(source.taken for source in sources) == 900 and len(sources) >= 900 / BATCH
    pending = [source.pending or 0 for source in sources]
    assert max(pending) > 0 and pending[-1] == 0
    # What the environment says is for the servers alone.
    for log in place.workspace.log_dir("records", seen.incarnation or "").glob("*"):
        assert kafka.password not in log.read_text()

    records.send(trips[900:1100])
    assert seen.heartbeat is not None and kill(seen.heartbeat.process)
    records.send(trips[1100:1200])
    driver_control.start(place.workspace, "records", by=BY)
    records.check()

    # Another topic is another source; the same by another address is not.
    address = kafka.address.replace("127.0.0.1", "localhost")
    source = {"kind": "kafka", "bootstrap_servers": address, "max_offsets_per_batch": BATCH}
    place.job("records", source={**source, "topic": records.topic})
    assert plan(place.workspace, "records").effect is Effect.RESTART
    place.job("records", source={**source, "topic": "another"})
    assert plan(place.workspace, "records").effect is Effect.REFUSED


@pytest.mark.long
def test_a_topic_is_counted_through_a_restore_and_a_rescale(
    place: Place, kafka: KafkaServer, trips: list[tuple[int, float]]
) -> None:
    records = Records(place, kafka)
    kafka.create(records.topic, 2)
    records.send(trips[:900])
    deploy_job(place.workspace, "records", by=BY)
    records.caught_up(900)
    made = take(place.workspace, "records", origin=Origin.MANUAL, by=BY)
    records.send(trips[900:1200])
    records.check()

    # Read again from where the savepoint stands.
    restore(place.workspace, "records", savepoint=made.id, by=BY)
    records.send(trips[1200:1300])
    records.check()

    done = rescale(place.workspace, "records", partitions=3, by=BY)
    assert done.state == "done"
    records.send(trips[1300:])
    records.check()


@pytest.mark.long
def test_servers_that_are_away_fail_tries_and_what_a_topic_has_dropped_is_named(
    place: Place, kafka: KafkaServer, trips: list[tuple[int, float]]
) -> None:
    records = Records(place, kafka, failures={"tolerable_consecutive": 50, "backoff": "1s"})
    kafka.create(records.topic, 1)
    records.send(trips[:300])
    deploy_job(place.workspace, "records", by=BY)
    first = records.caught_up(300)
    kafka.kill()
    place.wait("records", lambda seen: seen.phase is Phase.RETRYING, "a try that failed")
    kafka.start()
    records.send(trips[300:400])
    records.check()
    last = observe(place.workspace, "records")
    assert last.incarnation == first.incarnation, "the same driver goes on"

    driver_control.stop(place.workspace, "records", by=BY)
    records.send(trips[400:600])
    kafka.drop(records.topic, 0, 500)
    driver_control.start(place.workspace, "records", by=BY)
    seen = place.wait("records", lambda seen: seen.phase is Phase.FAILED, "its end")
    assert seen.error is not None and seen.error.code == "SOURCE_DATA_GONE", seen.error
    told = diagnose(place.workspace, seen)
    assert told is not None and records.topic in told.act
