"""Columns of the TLC's green-taxi trip records, the trip key, and a synthetic column.

``card_id`` is **synthetic**: the TLC publishes no card or rider. See :mod:`nyc_taxi.trips.cards`.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

__all__ = [
    "CARD_ID",
    "DROPOFF",
    "GREEN_2023",
    "GREEN_2025",
    "PICKUP",
    "PICKUP_ZONE",
    "SCHEMAS",
    "TRIP_KEY",
    "SchemaName",
    "accepts",
]

PICKUP = "lpep_pickup_datetime"
DROPOFF = "lpep_dropoff_datetime"
PICKUP_ZONE = "PULocationID"

CARD_ID = "card_id"
"""A synthetic string column that the replay adds to every trip."""

TRIP_KEY = ("VendorID", PICKUP, DROPOFF, PICKUP_ZONE, "DOLocationID", "total_amount")
"""Columns that identify a trip.

The total is included because a charge and its reversal share the rest: they are two trips, with a sum of zero. The key
is unique in every checked real file (205,064 rows of 2023-01 to 2023-03, 46,912 of 2025-11).
"""

GREEN_2023 = pa.schema(
    [
        ("VendorID", pa.int32()),
        (PICKUP, pa.timestamp("us")),
        (DROPOFF, pa.timestamp("us")),
        ("store_and_fwd_flag", pa.large_string()),
        ("RatecodeID", pa.int64()),
        (PICKUP_ZONE, pa.int32()),
        ("DOLocationID", pa.int32()),
        ("passenger_count", pa.int64()),
        ("trip_distance", pa.float64()),
        ("fare_amount", pa.float64()),
        ("extra", pa.float64()),
        ("mta_tax", pa.float64()),
        ("tip_amount", pa.float64()),
        ("tolls_amount", pa.float64()),
        ("ehail_fee", pa.float64()),
        ("improvement_surcharge", pa.float64()),
        ("total_amount", pa.float64()),
        ("payment_type", pa.int64()),
        ("trip_type", pa.int64()),
        ("congestion_surcharge", pa.float64()),
    ]
)
"""As in 2023-02 and 2023-03. Types vary: 2023-01 has int64 ids, float codes and an all-null ``ehail_fee``."""

# Nullable codes are floats again; the congestion relief zone's fee was added in January 2025.
_FLOATS_OF_2025 = {"RatecodeID", "passenger_count", "payment_type", "trip_type"}
GREEN_2025 = pa.schema(
    [pa.field(field.name, pa.float64() if field.name in _FLOATS_OF_2025 else field.type) for field in GREEN_2023]
    + [pa.field("cbd_congestion_fee", pa.float64())]
)
"""As in 2025-11: a 21st column, and floats for the codes that can be null."""

SchemaName = Literal["2023", "2025"]

SCHEMAS: dict[SchemaName, pa.Schema] = {"2023": GREEN_2023, "2025": GREEN_2025}


def accepts(name: str, found: pa.DataType) -> bool:
    """Return whether a TLC file may have this type for this column of :data:`GREEN_2025`.

    Any width, and integers stored as floats, are accepted, because the TLC changes those from month to month. Types
    that a reader can't repair, such as a text pickup time, are rejected.
    """
    wanted = GREEN_2025.field(name).type
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(found))
    if pa.types.is_null(found):
        return name not in TRIP_KEY
    if pa.types.is_large_string(wanted):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found))
