"""The sessions of :mod:`spark_jobs.card_sessions` by Spark's own transformWithState: a reference for tests.

Spark calls it once for each card of a batch, and each access to the state is a round trip to the JVM: about twenty
times as slow (``make bench-state-python``). Its state is that of version 1 of ``card_sessions``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

from spark_jobs.card_sessions import CLOSED, OPEN, OUTPUTS, Options, checked_options, table_rows, trips_by_card
from streamwarden.driver.job_api import DELETED, JobSettings

__all__ = ["OUTPUTS", "VERSION", "CardSessionProcessor", "Options", "Session", "sessionize", "transform"]

VERSION = 1

_SESSION_KEY = StructType([StructField("start", LongType())])
_SESSION = StructType(
    [
        StructField("end", LongType()),
        StructField("trips", LongType()),
        StructField("cents", LongType()),
        StructField("closes_at", LongType()),
    ]
)
_ZONES = StructType([StructField("zones", ArrayType(IntegerType()))])

# The processor's rows for Spark. Numbers, since Python converts timestamps and decimals slowly, row by row.
_EMITTED = StructType(
    [
        StructField("card_id", StringType()),
        StructField("start", LongType()),
        StructField("end", LongType()),
        StructField("trips", LongType()),
        StructField("cents", LongType()),
        StructField("zones", ArrayType(IntegerType())),
        StructField("status", StringType()),
        StructField(DELETED, BooleanType()),
    ]
)


@dataclass
class Session:
    """Trips of one session. Times are microseconds since the epoch."""

    start: int
    end: int
    trips: int
    cents: int
    zones: set[int] = field(default_factory=set)

    def absorb(self, other: Session) -> None:
        """Merge another session into this one."""
        self.start = min(self.start, other.start)
        self.end = max(self.end, other.end)
        self.trips += other.trips
        self.cents += other.cents
        self.zones |= other.zones


def sessionize(pieces: Iterable[Session], gap: int) -> list[Session]:
    """Join pieces (sessions, or single trips as sessions) that are at most `gap` microseconds apart.

    The result does not depend on the order of the pieces. Does not change the pieces.
    """
    result: list[Session] = []
    for piece in sorted(pieces, key=lambda p: (p.start, p.end)):
        if result and piece.start - result[-1].end <= gap:
            result[-1].absorb(piece)
        else:
            result.append(Session(piece.start, piece.end, piece.trips, piece.cents, set(piece.zones)))
    return result


class CardSessionProcessor(StatefulProcessor):
    """Holds the sessions of each card.

    Every state call is a round trip to the JVM, which takes most of this operator's time. So one call reads all
    sessions, zones are read only for sessions that a trip touches, and untouched sessions are not written.

    Both map states are keyed by session start and always written together. So a session's two entries expire together,
    a time to live after the last trip that reached it.

    A session closes by the timer of its ``closes_at``. Closing writes no state, so that it does not prolong the
    session's life: a session is closed once ``closes_at`` is not in the future.

    Parameters
    ----------
    gap
        Maximum distance between consecutive pickups of a session.
    close_after
        Processing time without a trip after which a session closes.
    ttl
        Time to live of state after its last write.
    """

    def __init__(self, *, gap: timedelta, close_after: timedelta, ttl: timedelta) -> None:
        self._gap = gap // timedelta(microseconds=1)
        self._close_after = close_after // timedelta(milliseconds=1)
        self._ttl = ttl // timedelta(milliseconds=1)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._sessions: MapState = handle.getMapState("sessions", _SESSION_KEY, _SESSION, self._ttl)
        self._zones: MapState = handle.getMapState("zones", _SESSION_KEY, _ZONES, self._ttl)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Process a card's trips of one batch; emits at most one row for each session start, deleted or upserted."""
        (card,) = key
        now = timerValues.getCurrentProcessingTimeInMs()
        known = {start: value for (start,), value in self._sessions.iterator()}
        fresh = sessionize((_trip(row) for row in rows), self._gap)
        # A known session is touched if joining pieces change it. Fresh pieces are more than a gap apart, so one pass
        # over the intervals (without zones, whose reads cost time) finds all joins.
        reached = [
            start
            for start, (end, *_) in known.items()
            if any(piece.start - end <= self._gap and start - piece.end <= self._gap for piece in fresh)
        ]
        old = [self._read(start, known[start]) for start in reached]
        result = sessionize([*old, *fresh], self._gap)

        gone = set(reached) - {session.start for session in result}
        closes_at = now + self._close_after
        for start in sorted(gone):
            self._sessions.removeKey((start,))
            self._zones.removeKey((start,))
            yield _deleted(card, start)
        for session in result:
            zones = sorted(session.zones)
            self._sessions.updateValue((session.start,), (session.end, session.trips, session.cents, closes_at))
            self._zones.updateValue((session.start,), (zones,))
            yield _row(card, session, zones, OPEN)
        self._move_timers(known, reached, closes_at, now)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: ARG002, N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Close the sessions that are due; a session that a trip has reached since has a later timer."""
        (card,) = key
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        due = [(start, value) for (start,), value in self._sessions.iterator() if value[3] == expiry]
        for start, value in sorted(due):
            session = self._read(start, value)
            yield _row(card, session, sorted(session.zones), CLOSED)

    def close(self) -> None:
        """Do nothing: there are no open resources."""

    def _read(self, start: int, value: tuple[int, int, int, int]) -> Session:
        end, trips, cents_, _ = value
        zones = self._zones.getValue((start,))
        return Session(start, end, trips, cents_, set(zones[0]) if zones else set())

    def _move_timers(
        self, known: Mapping[int, tuple[int, int, int, int]], reached: list[int], closes_at: int, now: int
    ) -> None:
        # All sessions touched in this batch share one timer. Their old timers are deleted unless other sessions need
        # them. Timers already due fire in this batch and close nothing, which is cheaper than deleting them.
        before = {known[start][3] for start in reached}
        needed = {value[3] for start, value in known.items() if start not in set(reached)}
        for timer in sorted(before - needed - {closes_at}):
            if timer > now:
                self._handle.deleteTimer(timer)
        if closes_at not in before | needed:
            self._handle.registerTimer(closes_at)


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Return what :func:`spark_jobs.card_sessions.transform` returns, from the same input."""
    options, ttl = checked_options(settings)
    processor = CardSessionProcessor(gap=options.gap, close_after=options.close_after, ttl=ttl)
    emitted = (
        trips_by_card(source)
        .groupBy("card_id")
        .transformWithState(
            statefulProcessor=processor, outputStructType=_EMITTED, outputMode="Update", timeMode="ProcessingTime"
        )
    )
    return table_rows(emitted)


def _trip(row: Row) -> Session:
    zones = {zone for zone in row.zones if zone is not None}
    return Session(row.pickup, row.pickup, 1, row.cents, zones)


def _row(card: str, session: Session, zones: list[int], status: str) -> Row:
    return Row(
        card_id=card,
        start=session.start,
        end=session.end,
        trips=session.trips,
        cents=session.cents,
        zones=zones,
        status=status,
        _deleted=False,
    )


def _deleted(card: str, start: int) -> Row:
    return Row(card_id=card, start=start, end=None, trips=None, cents=None, zones=None, status=None, _deleted=True)
