"""Synthetic payments of trips: the TLC publishes none.

A payment repeats the card and times of its trip. Some trips are never paid, and some payments belong to no trip.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["PaymentOptions", "payments_of"]

_METHODS = ("credit", "debit", "wallet")


@dataclass(frozen=True)
class PaymentOptions:
    """Options of :func:`payments_of`.

    Parameters
    ----------
    unpaid, strange
        Shares of trips without a payment, and of payments without a trip; 0.05 and 0.02: enough to see both.
    slowest
        The longest time from a dropoff to its payment; 90 minutes: within the four hours from the pickup
        that ``trip_payments`` waits, but for trips of many hours.
    seed
        The same seed gives the same payments.
    """

    unpaid: float = 0.05
    strange: float = 0.02
    slowest: timedelta = timedelta(minutes=90)
    seed: int = 0


def payments_of(trips: pa.Table, options: PaymentOptions | None = None) -> pa.Table:
    """Return payments of trips, in the order of their settlement.

    Parameters
    ----------
    trips
        ``card_id``, ``lpep_pickup_datetime``, ``lpep_dropoff_datetime`` (UTC) and ``total_amount``. Trips without a
        card have no payment.

    Returns
    -------
    pyarrow.Table
        ``payment_id``, ``card_id``, both times of the trip, ``amount``, ``method``, ``settled_at``.
    """
    options = options or PaymentOptions()
    random = np.random.default_rng(options.seed)
    carded = trips.filter(pc.is_valid(trips["card_id"]))
    paid = carded.filter(pa.array(random.random(carded.num_rows) >= options.unpaid))
    rows = paid.num_rows
    dropoff = np.array(paid["lpep_dropoff_datetime"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    delay = random.integers(0, options.slowest // timedelta(microseconds=1), rows, endpoint=True)
    cards = np.array(paid["card_id"].to_pylist(), dtype=object)
    is_strange = random.random(rows) < options.strange
    cards[is_strange] = [f"x{number:05d}" for number in random.integers(0, 100_000, int(is_strange.sum()))]
    settled = dropoff + delay
    made = pa.table(
        {
            "payment_id": pa.array([f"p{options.seed}-{number:08d}" for number in range(rows)], pa.string()),
            "card_id": pa.array(cards, pa.string()),
            "lpep_pickup_datetime": paid["lpep_pickup_datetime"].cast(pa.timestamp("us", "UTC")),
            "lpep_dropoff_datetime": paid["lpep_dropoff_datetime"].cast(pa.timestamp("us", "UTC")),
            "amount": paid["total_amount"],
            "method": pa.array([_METHODS[number] for number in random.integers(0, len(_METHODS), rows)], pa.string()),
            "settled_at": pa.array(settled, pa.timestamp("us", "UTC")),
        }
    )
    return made.take(pa.array(np.argsort(settled, kind="stable")))
