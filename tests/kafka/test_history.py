"""A job that begins with a table of a topic's earlier records, and goes on with the topic where the table ends."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.rescale import rescale
from streamwarden.runtime.processes import kill
from streamwarden.savepoints.history import job_is_on_history
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase, observe
from tests.conftest import TripMaker
from tests.integration.conftest import BY, Place
from tests.kafka.server import KafkaServer
from tests.kafka.test_kafka_source import Records, trips  # noqa: F401

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)


def _begin(records: Records, live_from: datetime) -> None:
    source = dict(records.place.workspace.job("records").model_dump(mode="json")["source"])
    history = {"table": "before", "max_files_per_batch": 1, "live_from": live_from.isoformat()}
    records.place.job("records", source={**source, "history": history})


def _archive(records: Records, rows: list[tuple[int, float]]) -> None:
    """Write records to the table of earlier ones, as an archive of the topic has them."""
    values = [json.dumps({"zone": zone, "fare": fare}).encode() for zone, fare in rows]
    at = datetime.now(UTC)
    found = [{"key": b"", "value": value, "topic": records.topic, "timestamp": at} for value in values]
    write_deltalake(records.place.workspace.table("before"), pa.Table.from_pylist(found, SCHEMA), mode="append")


def test_the_topic_follows_where_the_table_ends(
    place: Place,
    kafka: KafkaServer,
    trips: list[tuple[int, float]],  # noqa: F811
) -> None:
    records = Records(place, kafka, trigger={"interval": "500ms", "min_pause": "2s"})
    kafka.create(records.topic, 2)
    # The topic has dropped the first ones; the table has all of them.
    for first in range(0, 600, 150):
        _archive(records, trips[first : first + 150])
    records.send(trips[:600])
    kafka.drop(records.topic, 0, 20)
    time.sleep(1)
    _begin(records, datetime.now(UTC))
    time.sleep(1)
    records.send(trips[600:800])
    deploy_job(place.workspace, "records", by=BY)
    spec = place.workspace.job("records")
    place.wait("records", lambda seen: bool(seen.progress and len(seen.progress.recent) > 1), "two batches")
    # In the history, and right after the move.
    for first in (800, 900):
        seen = observe(place.workspace, "records")
        assert job_is_on_history(place.workspace, spec) == (first == 800)
        assert seen.heartbeat is not None and kill(seen.heartbeat.process)
        records.send(trips[first : first + 100])
        driver_control.start(place.workspace, "records", by=BY)
        while job_is_on_history(place.workspace, spec):
            time.sleep(0.01)
    records.check()
    assert rescale(place.workspace, "records", partitions=3, by=BY).state == "done"
    records.send(trips[1000:])
    records.check()


def test_a_time_that_the_topic_no_longer_has_is_refused_before_the_first_batch(
    place: Place, kafka: KafkaServer, make_trips: TripMaker
) -> None:
    records = Records(place, kafka)
    kafka.create(records.topic, 1)
    records.send([(1, 1.0)] * 10)
    kafka.drop(records.topic, 0, 5)
    _archive(records, [(1, 1.0)])
    _begin(records, datetime.now(UTC) - timedelta(days=30))
    with suppress(StreamwardenError):
        deploy_job(place.workspace, "records", by=BY)
    seen = place.wait("records", lambda seen: seen.phase is Phase.FAILED, "its end")
    assert seen.error is not None and seen.error.code == "HISTORY_INVALID", seen.error
    assert "keeps records since" in seen.error.what and seen.progress is None
