"""Plan which trip lands in which file, and when, before the first file; deterministic."""

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

# A gap without trips, such as a month missing between two files, is shortened.
_LONGEST_QUIET = _DAY


@dataclass(frozen=True)
class ReplayPlan:
    """Trips in the order of their arrival, cut into files.

    Parameters
    ----------
    trips
        All trips of the replay, with ``card_id``.
    starts
        The first row of each file.
    due
        Time when each file is complete, by the event clock: microseconds since 1970.
    arrivals
        Arrival of each row by the event clock; ascending.
    every
        Event time of one file, in microseconds.
    fingerprint
        Hash of the trips and their arrivals. Other trips, or another planning algorithm, give another hash.
    """

    trips: pa.Table
    starts: Integers
    due: Integers
    arrivals: Integers
    every: int
    fingerprint: str

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.starts)

    def trips_before(self, file: int) -> int:
        """Return the number of trips in the earlier files."""
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
        """Event time in microseconds from the replay's start to each file, without long quiet gaps."""
        # The first file takes as long to fill as the others.
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
    """Plan a replay; :class:`~nyc_taxi.trips.replay.ReplayOptions` describes the options.

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
    # Stable sort: trips of the same second keep the source's order.
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
    """Return the plausible start time of each trip.

    A trip without a pickup time, or with one far from all others (a meter in 2008), gets the previous trip's: files are
    roughly in time order. Otherwise the event clock would run through fifteen years.
    """
    pickups = microseconds(trips[PICKUP])
    known = pickups[pickups != MISSING]
    if not len(known):
        raise StreamwardenError("REPLAY_SOURCE_INVALID", "no trip has a pickup time" if len(pickups) else "no trips")
    low = int(np.quantile(known, 0.025, method="lower"))
    high = int(np.quantile(known, 0.975, method="higher"))
    # Beyond the outer fortieths, allow four times the number of these trips, and a day.
    slack = _DAY + (high - low) // 10
    believable = (pickups != MISSING) & (pickups >= low - slack) & (pickups <= high + slack)
    before = np.maximum.accumulate(np.where(believable, np.arange(len(pickups)), -1))
    return pickups[np.where(before < 0, np.argmax(believable), before)]


def _delays(trips: pa.Table, seed: int, share: float, shortest: timedelta, longest: timedelta) -> Integers:
    # By the row's hash, not its position: a trip has the same delay whatever else is replayed.
    late = unit_interval(hash_rows(trips, salt=2 * seed + 1)) < share
    spread = unit_interval(hash_rows(trips, salt=2 * seed + 2)) * ((longest - shortest) / _MICROSECOND)
    return np.where(late, shortest // _MICROSECOND + spread.astype(np.int64), 0)


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1)) // _MICROSECOND
