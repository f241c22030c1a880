"""Columns of tables shared by jobs, and the rule for money."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = [
    "AMOUNTS",
    "DROPOFF",
    "DROPOFF_ZONE",
    "PICKUP",
    "PICKUP_ZONE",
    "QUARANTINE",
    "TRIPS",
    "TRIP_COLUMNS",
    "cents",
]

PICKUP: Final = "lpep_pickup_datetime"
DROPOFF: Final = "lpep_dropoff_datetime"
PICKUP_ZONE: Final = "PULocationID"
DROPOFF_ZONE: Final = "DOLocationID"

AMOUNTS: Final = (
    "fare_amount",
    "extra",
    "mta_tax",
    "tip_amount",
    "tolls_amount",
    "ehail_fee",
    "improvement_surcharge",
    "total_amount",
    "congestion_surcharge",
    "cbd_congestion_fee",
)
"""The dollar columns."""

TRIP_COLUMNS: Final[Mapping[str, DataType]] = {
    "VendorID": IntegerType(),
    PICKUP: TimestampType(),
    DROPOFF: TimestampType(),
    "store_and_fwd_flag": StringType(),
    "RatecodeID": IntegerType(),
    PICKUP_ZONE: IntegerType(),
    DROPOFF_ZONE: IntegerType(),
    "passenger_count": IntegerType(),
    "trip_distance": DoubleType(),
    "fare_amount": DoubleType(),
    "extra": DoubleType(),
    "mta_tax": DoubleType(),
    "tip_amount": DoubleType(),
    "tolls_amount": DoubleType(),
    "ehail_fee": DoubleType(),
    "improvement_surcharge": DoubleType(),
    "total_amount": DoubleType(),
    "payment_type": IntegerType(),
    "trip_type": IntegerType(),
    "congestion_surcharge": DoubleType(),
    "cbd_congestion_fee": DoubleType(),
    "card_id": StringType(),
}
"""Possible columns of a landed file: TLC's names and order, then the synthetic ``card_id``."""

_ORIGIN = [StructField("source_file", StringType()), StructField("source_row", LongType())]

TRIPS: Final = StructType([*(StructField(name, kind) for name, kind in TRIP_COLUMNS.items()), *_ORIGIN])

QUARANTINE: Final = StructType(
    [
        StructField("raw", StringType()),
        StructField("reasons", ArrayType(StringType())),
        *_ORIGIN,
        StructField("quarantined_at", TimestampType()),
    ]
)


def cents(amount: str) -> Column:
    """Return a dollar column in whole cents, half a cent rounded away from zero; null becomes zero.

    Sums of doubles depend on their order, which differs between streaming and batch. Sums of cents don't.
    """
    return F.coalesce(F.round(F.col(amount) * 100).cast("long"), F.lit(0))
