"""The logic of card_sessions_plain in PySpark's TwsTester, and against a sessionizer for any trips in any order."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from spark_jobs.card_sessions_plain import CardSessionProcessor, Session, sessionize

pytestmark = pytest.mark.unit

MINUTE = 60_000_000
GAP = timedelta(minutes=30)
CLOSE_AFTER = timedelta(minutes=45)
CLOSE_AFTER_MS = CLOSE_AFTER // timedelta(milliseconds=1)


@dataclass(frozen=True)
class Trip:
    pickup: int
    cents: int = 100
    zones: tuple[int | None, int | None] = (7, 8)

    def row(self, card: str) -> Row:
        return Row(
            card_id=card,
            pickup=self.pickup,
            cents=self.cents,
            zones=list(self.zones),
        )


@dataclass
class Cards:
    """The processor, and the table that its rows make; refuses two rows for one session in a batch."""

    gap: timedelta = GAP
    close_after: timedelta = CLOSE_AFTER
    table: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        processor = CardSessionProcessor(gap=self.gap, close_after=self.close_after, ttl=timedelta(hours=24))
        self.tester = TwsTester(processor, timeMode="ProcessingTime", outputMode="Update")

    def batch(self, now: int, trips: dict[str, list[Trip]]) -> list[Row]:
        # As Spark does it: all data of a batch first, then the timers that are due.
        # The tester's own setProcessingTime would fire the timers before the data.
        self.tester._currentProcessingTimeMs = now
        rows: list[Row] = []
        for card, of_card in trips.items():
            rows += self.tester.test(card, [trip.row(card) for trip in of_card])
        rows += self.tester._handleExpiredTimers()
        keys = [(row.card_id, row.start) for row in rows]
        assert len(set(keys)) == len(keys), f"a session is named twice in a batch: {rows}"
        for key, row in zip(keys, rows, strict=True):
            if row._deleted:
                assert key in self.table, "only what is there is deleted"
                del self.table[key]
            else:
                self.table[key] = row.asDict()
        return rows

    def sessions(self, card: str) -> list[tuple[int, int, int, int, tuple[int, ...]]]:
        return sorted(
            (row["start"], row["end"], row["trips"], row["cents"], tuple(row["zones"]))
            for (of, _), row in self.table.items()
            if of == card
        )

    def state(self, card: str) -> tuple[dict[Any, Any], dict[Any, Any]]:
        return self.tester.peekMapState("sessions", card), self.tester.peekMapState("zones", card)

    def timers(self, card: str) -> list[int]:
        return list(self.tester.handle._timers.listTimers(card))


def plain(trips: Iterable[Trip], gap: int = 30 * MINUTE) -> list[tuple[int, int, int, int, tuple[int, ...]]]:
    """Sessionize a card's trips the way one would on paper."""
    groups: list[list[Trip]] = []
    for trip in sorted(trips, key=lambda trip: trip.pickup):
        if not groups or trip.pickup - groups[-1][-1].pickup > gap:
            groups.append([])
        groups[-1].append(trip)
    return [
        (
            group[0].pickup,
            group[-1].pickup,
            len(group),
            sum(trip.cents for trip in group),
            tuple(sorted({zone for trip in group for zone in trip.zones if zone is not None})),
        )
        for group in groups
    ]


def test_a_gap_of_exactly_the_limit_is_the_same_session() -> None:
    cards = Cards()
    cards.batch(1, {"a": [Trip(0), Trip(30 * MINUTE), Trip(60 * MINUTE + 1)]})
    assert [session[:3] for session in cards.sessions("a")] == [
        (0, 30 * MINUTE, 2),
        (60 * MINUTE + 1, 60 * MINUTE + 1, 1),
    ]


def test_a_later_trip_extends() -> None:
    cards = Cards()
    cards.batch(1, {"a": [Trip(0, 100, (1, 2))]})
    (row,) = cards.batch(2, {"a": [Trip(20 * MINUTE, -30, (2, 3))]})
    assert row == Row(
        card_id="a",
        start=0,
        end=20 * MINUTE,
        trips=2,
        cents=70,
        zones=[1, 2, 3],
        status="open",
        _deleted=False,
    )


def test_a_late_trip_before_the_start_moves_it() -> None:
    cards = Cards()
    cards.batch(1, {"a": [Trip(20 * MINUTE)]})
    rows = cards.batch(2, {"a": [Trip(0)]})
    assert [(row.start, row._deleted) for row in rows] == [(20 * MINUTE, True), (0, False)]
    assert cards.sessions("a") == [(0, 20 * MINUTE, 2, 200, (7, 8))]
    sessions, zones = cards.state("a")
    assert list(sessions) == list(zones) == [(0,)]


def test_a_late_trip_between_joins_and_the_absorbed_row_goes() -> None:
    cards = Cards()
    cards.batch(1, {"a": [Trip(0, 1, (1, 1)), Trip(50 * MINUTE, 2, (2, 2)), Trip(200 * MINUTE, 4, (4, 4))]})
    assert len(cards.table) == 3
    rows = cards.batch(2, {"a": [Trip(25 * MINUTE, 8, (8, None))]})
    assert [(row.start, row._deleted) for row in rows] == [(50 * MINUTE, True), (0, False)]
    assert cards.sessions("a") == [
        (0, 50 * MINUTE, 3, 11, (1, 2, 8)),
        (200 * MINUTE, 200 * MINUTE, 1, 4, (4,)),
    ]


def test_an_untouched_session_is_neither_written_nor_emitted() -> None:
    cards = Cards()
    cards.batch(1_000, {"a": [Trip(0)]})
    before = cards.state("a")[0][(0,)]
    rows = cards.batch(2_000, {"a": [Trip(500 * MINUTE)]})
    assert [row.start for row in rows] == [500 * MINUTE]
    assert cards.state("a")[0][(0,)] == before


def test_a_session_closes_by_its_timer_and_opens_again() -> None:
    cards = Cards()
    cards.batch(1_000, {"a": [Trip(0)]})
    assert cards.batch(1_000 + CLOSE_AFTER_MS - 1, {}) == []
    (row,) = cards.batch(1_000 + CLOSE_AFTER_MS, {})
    assert (row.start, row.status, row.trips, row.zones) == (0, "closed", 1, [7, 8])
    assert cards.batch(10 * CLOSE_AFTER_MS, {}) == [], "it is closed once"
    (row,) = cards.batch(10 * CLOSE_AFTER_MS + 1, {"a": [Trip(MINUTE)]})
    assert (row.start, row.status, row.trips) == (0, "open", 2)
    (row,) = cards.batch(11 * CLOSE_AFTER_MS + 1, {})
    assert (row.start, row.status, row.trips) == (0, "closed", 2)


def test_a_trip_puts_closing_off() -> None:
    cards = Cards()
    cards.batch(1_000, {"a": [Trip(0), Trip(500 * MINUTE)]})
    cards.batch(2_000, {"a": [Trip(MINUTE)]})
    assert cards.timers("a") == [1_000 + CLOSE_AFTER_MS, 2_000 + CLOSE_AFTER_MS], "the other session keeps its timer"
    cards.batch(3_000, {"a": [Trip(501 * MINUTE)]})
    assert cards.timers("a") == [2_000 + CLOSE_AFTER_MS, 3_000 + CLOSE_AFTER_MS], "a timer nobody needs is gone"
    (row,) = cards.batch(2_000 + CLOSE_AFTER_MS, {})
    assert (row.start, row.status) == (0, "closed")
    (row,) = cards.batch(3_000 + CLOSE_AFTER_MS, {})
    assert (row.start, row.status) == (500 * MINUTE, "closed")
    assert cards.timers("a") == []


def test_a_trip_in_the_batch_that_would_close_keeps_it_open() -> None:
    cards = Cards()
    cards.batch(1_000, {"a": [Trip(0)]})
    (row,) = cards.batch(1_000 + CLOSE_AFTER_MS, {"a": [Trip(MINUTE)]})
    assert row.status == "open"
    assert cards.timers("a") == [1_000 + 2 * CLOSE_AFTER_MS]


def test_closing_after_the_option_changed() -> None:
    # Timers of the old option are still there; each closes what was written with it, and nothing twice.
    cards = Cards(close_after=timedelta(seconds=10))
    cards.batch(1_000, {"a": [Trip(0), Trip(500 * MINUTE)]})
    cards.tester.processor._close_after = 1_000
    cards.batch(2_000, {"a": [Trip(MINUTE)]})
    rows = cards.batch(60_000, {})
    assert sorted((row.start, row.status) for row in rows) == [(0, "closed"), (500 * MINUTE, "closed")]


def test_cards_do_not_mix() -> None:
    cards = Cards()
    cards.batch(1, {"a": [Trip(0)], "b": [Trip(MINUTE)]})
    assert [session[2] for card in "ab" for session in cards.sessions(card)] == [1, 1]


# Minutes within a day, so dense that joining, extending backwards and exact gaps all happen; some half a gap.
trips_of_cards = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.builds(
            Trip,
            pickup=st.one_of(
                st.integers(0, 40).map(lambda number: number * 15 * MINUTE),
                st.integers(0, 600 * MINUTE),
            ),
            cents=st.integers(-10_000, 10_000),
            zones=st.tuples(st.none() | st.integers(1, 5), st.none() | st.integers(1, 5)),
        ),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(
    trips=trips_of_cards,
    order=st.randoms(use_true_random=False),
    batches=st.integers(1, 12),
    pauses=st.lists(st.integers(1, CLOSE_AFTER_MS + 10), min_size=12, max_size=12),
)
def test_any_order_in_any_batches_equals_the_sorted_batch(
    trips: list[tuple[str, Trip]], order: random.Random, batches: int, pauses: list[int]
) -> None:
    order.shuffle(trips)
    cards, now = Cards(), 0
    for number in range(batches):
        now += pauses[number]
        part = trips[number::batches]
        cards.batch(now, {card: of for card in "ab" if (of := [trip for name, trip in part if name == card])})
        for card in "ab":
            sessions, zones = cards.state(card)
            assert set(sessions) == set(zones) == {(start,) for of, start in cards.table if of == card}
            for (start,), value in sessions.items():
                closes_at = value[3]
                assert cards.table[card, start]["status"] == ("open" if closes_at > now else "closed")
                assert closes_at <= now or closes_at in cards.timers(card), "every open session has its timer"
    for card in "ab":
        assert cards.sessions(card) == plain(trip for name, trip in trips if name == card)
    cards.batch(now + CLOSE_AFTER_MS, {})
    assert {row["status"] for row in cards.table.values()} <= {"closed"}
    assert cards.timers("a") == cards.timers("b") == []


@settings(max_examples=200, deadline=None)
@given(trips=trips_of_cards, order=st.randoms(use_true_random=False))
def test_a_replayed_batch_says_the_same(trips: list[tuple[str, Trip]], order: random.Random) -> None:
    # Spark gives a replayed batch the same rows in any order, the state before it, and the batch's own time.
    of_card = [trip for _, trip in trips]
    again = list(of_card)
    order.shuffle(again)
    half = len(of_card) // 2
    results = []
    for second in (of_card[half:], sorted(of_card[half:], key=lambda trip: again.index(trip))):
        cards = Cards()
        cards.batch(1_000, {"a": of_card[:half]})
        rows = cards.batch(2_000, {"a": second}) if second else []
        results.append((rows, cards.state("a"), cards.timers("a")))
    assert results[0] == results[1]


@given(trips=trips_of_cards)
def test_sessionize_leaves_its_input_alone(trips: list[tuple[str, Trip]]) -> None:
    pieces = [Session(trip.pickup, trip.pickup, 1, trip.cents, {1}) for _, trip in trips]
    before = repr(pieces)
    sessionize(pieces, 30 * MINUTE)
    assert repr(pieces) == before
