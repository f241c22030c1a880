"""card_velocity in PySpark's TwsTester against plain Python that keeps every trip."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from spark_jobs import card_velocity
from spark_jobs.card_velocity import CardVelocity, Options
from streamwarden.driver.job_api import JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state.calls import Caller
from streamwarden.keyed_state.chunks import NEVER
from streamwarden.keyed_state.layout import HASH, StateLayout
from streamwarden.keyed_state.processor import BucketProcessor

pytestmark = pytest.mark.unit

SECOND = 1_000_000
# Small numbers, so that random trips make and join episodes. The distance of windows does not divide their length.
OPTIONS = Options(trips=3, within="10s", window="7s", every="2s", window_trips=2)  # type: ignore[arg-type]
EVENTS = pa.schema(
    [(HASH, pa.int64()), ("card_id", pa.string()), ("pickup", pa.timestamp("us", "UTC")), ("cents", pa.int64())]
)
LAYOUT = StateLayout({"card_id": pa.string()}, CardVelocity.fields)
BUCKET = 3

Trip = tuple[str, int, int | None]
"""Card, pickup in seconds, cents."""


@dataclass
class Reference:
    """The definition of the module's docstring, card by card, over all trips so far."""

    options: Options = field(default_factory=lambda: OPTIONS)
    trips: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    told: set[tuple[str, int]] = field(default_factory=set)

    def batch(self, new: Iterable[Trip]) -> list[tuple[Any, ...]]:
        touched: dict[str, list[int]] = defaultdict(list)
        for card, second, cents in new:
            self.trips[card].append((second * SECOND, cents or 0))
            touched[card].append(second * SECOND)
        within, size, every = (
            one // timedelta(microseconds=1) for one in (self.options.within, self.options.window, self.options.every)
        )
        found: list[tuple[Any, ...]] = []
        for card, times in touched.items():
            episodes: list[list[int]] = []
            for at in sorted({at for at, _ in self.trips[card]}):
                if len(self._between(card, at - within, at)) >= self.options.trips:
                    if not episodes or at - episodes[-1][-1] > within:
                        episodes.append([])
                    episodes[-1].append(at)
            for episode in episodes:
                if not self.told & {(card, at) for at in episode}:
                    burst = self._between(card, episode[0] - within, episode[0])
                    found.append((card, True, episode[0], len(burst), sum(burst)))
                self.told |= {(card, at) for at in episode}
            starts = {at // every * every - back * every for at in times for back in range(-(-size // every))}
            for start in starts:
                cents = self._between(card, start, start + size - 1)
                if any(start <= at < start + size for at in times) and len(cents) >= self.options.window_trips:
                    found.append((card, False, start, len(cents), sum(cents)))
        return sorted(found)

    def _between(self, card: str, first: int, last: int) -> list[int]:
        return [cents for at, cents in self.trips[card] if first <= at <= last]


class Bucket:
    """All cards in one bucket."""

    def __init__(self) -> None:
        caller = Caller(CardVelocity(OPTIONS), LAYOUT, ttl=None)
        processor = BucketProcessor(caller, EVENTS, time="event", event_time="pickup")
        # Packed rows have no event time: the processor itself drops what is late.
        self.tester = TwsTester(processor, timeMode="EventTime", eventTimeExtractor=lambda _: NEVER)

    def batch(self, trips: list[Trip]) -> tuple[list[tuple[Any, ...]], int]:
        rows = [
            {HASH: ord(card), "card_id": card, "pickup": second * SECOND, "cents": cents}
            for card, second, cents in trips
        ]
        (done,) = self.tester.test(
            BUCKET, [Row(blob=pa.RecordBatch.from_pylist(rows, EVENTS).serialize().to_pybytes())]
        )
        output = pa.schema([*LAYOUT.key.items(), *CardVelocity.output.items()])
        found = pa.ipc.read_record_batch(pa.py_buffer(done.blob), output).to_pylist() if done.blob else []
        return sorted(
            tuple(row[name] for name in ("card_id", "alert", "at", "trips", "cents")) for row in found
        ), done.late


TRIPS = st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(-3, 9) | st.none())


def _of_a(*seconds: int) -> list[Trip]:
    return [("a", second, 1) for second in seconds]


@given(
    batches=st.lists(
        st.tuples(st.lists(TRIPS, min_size=1, max_size=12), st.integers(0, 15)),
        min_size=1,
        max_size=8,
    )
)
# The last trips continue an episode whose first ones the watermark has just not left behind.
@example(batches=[(_of_a(1, 2, 11), 19), (_of_a(20, 21), 0)])
@example(batches=[(_of_a(1, 11, 11), 20), (_of_a(21, 21), 0)])
def test_equals_plain_python_in_each_batch(batches: list[tuple[list[Trip], int]]) -> None:
    reference, bucket, watermark = Reference(), Bucket(), 0
    for trips, forward in batches:
        in_time = [trip for trip in trips if trip[1] > watermark]
        expected = reference.batch(in_time)
        found, late = bucket.batch(trips)
        assert (found, late) == (expected, len(trips) - len(in_time))
        if forward:
            watermark += forward
            bucket.tester.setWatermark(watermark * 1000)


def test_state_goes_when_no_trip_can_count_it_any_more() -> None:
    bucket = Bucket()
    bucket.batch([("a", second, 1) for second in (1, 2, 3, 30)])
    bucket.tester.setWatermark(24_000)
    assert [row.keys_added for row in bucket.tester.setWatermark(51_000)] == [-1]


def test_a_watermark_is_required() -> None:
    with pytest.raises(StreamwardenError, match="card_velocity: watermark") as caught:
        card_velocity.transform(None, JobSettings(watermark=None, ttl=None, options=Options(), buckets=8))  # type: ignore[arg-type]
    assert caught.value.code == "CONFIG_INVALID"


@pytest.mark.parametrize("options", [{"within": "0s"}, {"trips": 1}, {"window_trips": 0}, {"gap": "3m"}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"within|trips|gap"):
        Options.model_validate(options)
