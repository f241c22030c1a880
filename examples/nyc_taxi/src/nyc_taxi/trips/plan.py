"""Which trip lands in which file, and when: worked out before the first file, the same every time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyc_taxi.trips.cards import add_card_ids
from nyc_taxi.trips.columns import PICKUP, TRIP_KEY
from nyc_taxi.trips.row_hash import MISSING, hash_rows, microseconds, unit_interval
from streamwarden.errors import StreamwardenError

__all__ = ["ReplayPlan", "make_plan"]

Integers = npt.NDArray[np.int64]

_DAY = 86_400_000_000
_MICROSECOND = timedelta(microseconds=1)

# A gap without trips (a month left out between two files) is not waited through at length.
_LONGEST_QUIET = _DAY


@dataclass(frozen=True)
class ReplayPlan:
    """Trips in the order of their arrival, cut into files.

    Parameters
    ----------
    trips
        All that the replay lands, with ``card_id``.
    starts
        The first row of each file.
    due
        When each file is complete, by the event clock: microseconds since 1970.
    arrivals
        When each row arrives, by the event clock; ascending.
    every
        The event time that a file covers, in microseconds.
    fingerprint
        Names the trips and their arrivals. Other trips, or a program that plans differently, have another.
    """

    trips: pa.Table
    starts: Integers
    due: Integers
    arrivals: Integers
    every: int
    fingerprint: str

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self.starts)

    def trips_before(self, file: int) -> int:
        """Return how many trips the files before this one hold."""
        return int(self.starts[file]) if file < self.files else int(self.trips.num_rows)

    def file(self, number: int) -> pa.Table:
        """Return the trips of one file."""
        first = self.trips_before(number)
        return self.trips.slice(first, self.trips_before(number + 1) - first)

    def clock(self, file: int) -> datetime:
        """Return the event clock when the file is complete."""
        return datetime(1970, 1, 1) + timedelta(microseconds=int(self.due[file]))

    @cached_property
    def elapsed(self) -> Integers:
        """Event time in microseconds from the replay's beginning to each file, without long quiet gaps."""
        # The first file takes as long to fill as any other.
        steps = np.diff(self.due, prepend=self.due[0] - self.every)
        return np.cumsum(np.minimum(steps, _LONGEST_QUIET))


def make_plan(
    trips: pa.Table,
    *,
    start: datetime | None,
    end: datetime | None,
    seed: int,
    late_share: float,
    late_min: timedelta,
    late_max: timedelta,
    file_every: timedelta,
) -> ReplayPlan:
    """Plan a replay; see :class:`~nyc_taxi.trips.replay.ReplayOptions` for what the options mean.

    Raises
    ------
    StreamwardenError
        ``REPLAY_SOURCE_INVALID``: no trip is left, or no trip has a pickup time.
    """
    missing = [name for name in TRIP_KEY if name not in trips.column_names]
    if missing:
        raise StreamwardenError("REPLAY_SOURCE_INVALID", f"the trips have no column {', '.join(missing)}")
    hashes = hash_rows(trips)
    fingerprint = hashlib.sha256(repr([(f.name, str(f.type)) for f in trips.schema]).encode() + hashes.tobytes())
    places = _event_times(trips)
    inside = np.ones(len(places), dtype=bool)
    if start is not None:
        inside &= places >= _micros(start)
    if end is not None:
        inside &= places < _micros(end)
    rows = np.flatnonzero(inside)
    if not len(rows):
        raise StreamwardenError("REPLAY_SOURCE_INVALID", f"no trip between {start or 'ever'} and {end or 'ever'}")
    arrivals = (places + _delays(trips, seed, late_share, late_min, late_max))[rows]
    # Stable: trips of the same second stay in the source's order.
    order = np.argsort(arrivals, kind="stable")
    rows, arrivals = rows[order], arrivals[order]
    every = file_every // _MICROSECOND
    windows = arrivals // every
    fingerprint.update(rows.tobytes())
    fingerprint.update(arrivals.tobytes())
    starts = np.flatnonzero(np.diff(windows, prepend=windows[0] - 1))
    return ReplayPlan(
        trips=add_card_ids(trips.take(pa.array(rows))).combine_chunks(),
        starts=starts,
        due=(windows[starts] + 1) * every,
        arrivals=arrivals,
        every=every,
        fingerprint=fingerprint.hexdigest(),
    )


def _event_times(trips: pa.Table) -> Integers:
    """Return when each trip began, as far as it can be believed.

    A trip with no pickup time, or one far from all others (a meter in 2008), counts as begun when the trip before it
    in the source did: files are roughly in order of time. Otherwise the event clock would run through fifteen years.
    """
    pickups = microseconds(trips[PICKUP])
    known = pickups[pickups != MISSING]
    if not len(known):
        raise StreamwardenError("REPLAY_SOURCE_INVALID", "no trip has a pickup time" if len(pickups) else "no trips")
    low = int(np.quantile(known, 0.025, method="lower"))
    high = int(np.quantile(known, 0.975, method="higher"))
    # Beyond the outer fortieths there is room for as many trips again, four times over, and for a day besides.
    slack = _DAY + (high - low) // 10
    believable = (pickups != MISSING) & (pickups >= low - slack) & (pickups <= high + slack)
    before = np.maximum.accumulate(np.where(believable, np.arange(len(pickups)), -1))
    return pickups[np.where(before < 0, np.argmax(believable), before)]


def _delays(trips: pa.Table, seed: int, share: float, shortest: timedelta, longest: timedelta) -> Integers:
    # By the row's own hash, not by its place: the same trip is late whatever else is replayed with it.
    late = unit_interval(hash_rows(trips, salt=2 * seed + 1)) < share
    spread = unit_interval(hash_rows(trips, salt=2 * seed + 2)) * ((longest - shortest) / _MICROSECOND)
    return np.where(late, shortest // _MICROSECOND + spread.astype(np.int64), 0)


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1)) // _MICROSECOND
