"""A sink of Kafka beside a table, with everything else on S3."""

from __future__ import annotations

import pytest

from tests.conftest import TripMaker
from tests.integration.conftest import Place
from tests.kafka.conftest import kafka, kafka_server  # noqa: F401
from tests.kafka.server import KafkaServer
from tests.kafka.test_kafka_sink import run_sink

pytestmark = [
    pytest.mark.s3,
    pytest.mark.kafka,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1800),
]


def test_all_rows_are_sent_through_a_kill_a_restore_and_a_rescale(
    place: Place,
    kafka: KafkaServer,  # noqa: F811
    make_trips: TripMaker,
) -> None:
    run_sink(place, kafka, make_trips)
