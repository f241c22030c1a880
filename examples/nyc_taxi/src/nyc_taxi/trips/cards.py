"""Synthetic card ids.

**The TLC publishes no card, rider or account**, and nothing here guesses one. A job that groups trips by card needs
such a column. So a hash of the trip selects one of a dozen synthetic cards of its pickup zone. Cards of busy zones ride
often (sessions of several trips, trips out of order); cards of quiet zones ride rarely. The cards say nothing about
real people.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nyc_taxi.trips.columns import CARD_ID, PICKUP_ZONE
from nyc_taxi.trips.row_hash import hash_rows, integers

__all__ = ["CARDS_A_ZONE", "add_card_ids", "card_ids"]

CARDS_A_ZONE = 12
"""With about 20 pickups an hour in the busiest zones, each card there rides about every 40 minutes. So some trips
follow within a session's gap of 30 minutes, and some don't."""

# Any constant, but never changed: another value gives every trip another card.
_SALT = 0xCA4D
_LARGEST_ZONE = 999


def card_ids(trips: pa.Table) -> pa.Array:
    """Return the card of each trip, like ``c074-07``: pickup zone, and number within it.

    The card depends on the row alone: not on its place in a file, other rows, or column types (74 or 74.0). A charge
    and its reversal have the same card. Never null: trips without a usable zone have cards of ``c000``.

    Parameters
    ----------
    trips
        Has the columns of :data:`~nyc_taxi.trips.columns.TRIP_KEY`.
    """
    zones = integers(trips[PICKUP_ZONE])
    zones = np.where((zones >= 0) & (zones <= _LARGEST_ZONE), zones, 0)
    numbers = hash_rows(trips, salt=_SALT, signed=False) % np.uint64(CARDS_A_ZONE)
    # Lookup in a small table of names: formatting a million strings one by one would take seconds.
    codes = zones * CARDS_A_ZONE + numbers.astype(np.int64)
    distinct, places = np.unique(codes, return_inverse=True)
    names = [f"c{code // CARDS_A_ZONE:03d}-{code % CARDS_A_ZONE:02d}" for code in distinct.tolist()]
    return pa.array(names, pa.string()).take(pa.array(places, pa.int64()))


def add_card_ids(trips: pa.Table) -> pa.Table:
    """Append or replace ``card_id``: it follows from the row, so a different value would be wrong."""
    if CARD_ID in trips.column_names:
        trips = trips.drop_columns([CARD_ID])
    return trips.append_column(pa.field(CARD_ID, pa.string()), card_ids(trips))
