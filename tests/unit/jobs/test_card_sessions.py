"""card_sessions says in each batch what card_sessions_plain says, both in PySpark's TwsTester."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from spark_jobs import card_sessions
from spark_jobs.card_sessions import CardSessions, Options
from streamwarden.driver.job_api import JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state.calls import Caller
from streamwarden.keyed_state.layout import HASH, StateLayout
from streamwarden.keyed_state.processor import BucketProcessor
from tests.unit.jobs.test_card_sessions_plain import (
    CLOSE_AFTER,
    CLOSE_AFTER_MS,
    GAP,
    MINUTE,
    Cards,
    Trip,
    trips_of_cards,
)

pytestmark = pytest.mark.unit

BUCKET = 3
EVENTS = pa.schema(
    [
        (HASH, pa.int64()),
        ("card_id", pa.string()),
        ("pickup", pa.int64()),
        ("cents", pa.int64()),
        ("zones", pa.list_(pa.int32())),
    ]
)
LAYOUT = StateLayout({"card_id": pa.string()}, CardSessions.fields)


class Bucket:
    """All cards in one bucket."""

    def __init__(self) -> None:
        job = CardSessions(gap=GAP, close_after=CLOSE_AFTER)
        processor = BucketProcessor(Caller(job, LAYOUT, ttl=None), EVENTS, time="processing")
        self.tester = TwsTester(processor, timeMode="ProcessingTime", outputMode="Update")

    def batch(self, now: int, trips: dict[str, list[Trip]]) -> list[Row]:
        self.tester._currentProcessingTimeMs = now
        named = [{HASH: ord(card), **trip.row(card).asDict()} for card, of_card in trips.items() for trip in of_card]
        done: list[Any] = []
        if named:
            blob = pa.RecordBatch.from_pylist(named, EVENTS).serialize().to_pybytes()
            done += self.tester.test(BUCKET, [Row(blob=blob)])
        done += self.tester._handleExpiredTimers()
        output = pa.schema([*LAYOUT.key.items(), *CardSessions.output.items()])
        rows = [
            row
            for one in done
            if one.blob
            for row in pa.ipc.read_record_batch(pa.py_buffer(one.blob), output).to_pylist()
        ]
        return [Row(**row) for row in rows]


@settings(max_examples=100, deadline=None)
@given(
    trips=trips_of_cards,
    batches=st.integers(1, 12),
    pauses=st.lists(st.integers(1, CLOSE_AFTER_MS + 10), min_size=12, max_size=12),
)
def test_each_batch_says_what_the_plain_form_says(
    trips: list[tuple[str, Trip]], batches: int, pauses: list[int]
) -> None:
    cards, bucket, now = Cards(), Bucket(), 0
    for number in range(batches + 2):
        now += pauses[number] if number < batches else 2 * CLOSE_AFTER_MS
        part = trips[number::batches] if number < batches else []
        given = {card: of for card in "ab" if (of := [trip for name, trip in part if name == card])}
        expected, found = (sorted(map(str, one.batch(now, given))) for one in (cards, bucket))
        assert found == expected


def test_state_without_a_trip_lives_no_longer_than_its_ttl() -> None:
    bucket = Bucket()
    bucket.tester.processor._caller = Caller(bucket.tester.processor._caller.job, LAYOUT, ttl=10 * CLOSE_AFTER_MS)
    bucket.batch(1, {"a": [Trip(0), Trip(500 * MINUTE)]})
    # Closing does not prolong its life, and neither does a trip of another session.
    bucket.batch(CLOSE_AFTER_MS + 1, {"a": [Trip(501 * MINUTE)]})
    rows = bucket.batch(10 * CLOSE_AFTER_MS + 1, {"a": [Trip(MINUTE), Trip(502 * MINUTE)]})
    assert sorted((row.start, row.trips) for row in rows if not row._deleted) == [(MINUTE, 1), (500 * MINUTE, 3)]


@pytest.mark.parametrize(
    ("ttl", "words"),
    [
        (None, "state.ttl: is required"),
        (CLOSE_AFTER, "state.ttl: 45m must be longer than options.close_after"),
        (timedelta(seconds=1), "state.ttl: 1s must be longer than options.close_after"),
    ],
)
def test_the_ttl_must_outlive_closing(ttl: timedelta | None, words: str) -> None:
    with pytest.raises(StreamwardenError, match=words) as caught:
        card_sessions.transform(None, JobSettings(watermark=None, ttl=ttl, options=Options(), buckets=8))  # type: ignore[arg-type]
    assert caught.value.code == "CONFIG_INVALID"


@pytest.mark.parametrize("options", [{"gap": "0s"}, {"close_after": 30}, {"gaps": "30m"}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"gap|close_after"):
        Options.model_validate(options)
