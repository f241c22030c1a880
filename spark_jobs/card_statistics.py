"""What is known of each card: visits, spending, favourite zone, last activity. Keyed state with a time to live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.schemas import PICKUP, PICKUP_ZONE, cents
from streamwarden.driver.job_api import JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state import KEY_ID, KeyedBatch, KeyedJob, KeyedResult, StateField, with_keyed_state

__all__ = ["OUTPUTS", "VERSION", "CardStatistics", "transform"]

VERSION = 1

OUTPUTS: Mapping[str, StructType] = {
    "main": StructType(
        [
            StructField("card_id", StringType()),
            StructField("visits", LongType()),
            StructField("spending", DecimalType(18, 2)),
            # The pickup zone with the most trips, of several the one with the lowest number.
            StructField("favourite_zone", IntegerType()),
            # Oldest and newest pickup that is counted.
            StructField("first_activity", TimestampType()),
            StructField("last_activity", TimestampType()),
        ]
    )
}


class CardStatistics(KeyedJob):
    """A row of state for each zone of a card. Times are microseconds since the epoch."""

    fields: ClassVar = {
        "zone": StateField(pa.int32()),
        "visits": StateField(pa.int64()),
        "cents": StateField(pa.int64()),
        "first": StateField(pa.int64()),
        "last": StateField(pa.int64()),
    }
    output: ClassVar = {name: field.type for name, field in fields.items()}

    def update(self, batch: KeyedBatch) -> KeyedResult:
        """Add the trips of a batch to their cards' zones; all zones of a card live as long as its newest trip's."""
        trips = batch.events.select(
            KEY_ID, "zone", visits=pl.lit(1, pl.Int64), cents="cents", first="pickup", last="pickup"
        )
        rows = pl.concat([batch.state.select(KEY_ID, *self.fields), trips])
        added = (pl.col("visits", "cents").sum(), pl.col("first").min(), pl.col("last").max())
        zones = rows.group_by(KEY_ID, "zone").agg(*added)
        favourites = zones.sort(pl.col("visits"), "zone", descending=[True, False]).unique(
            KEY_ID, keep="first", maintain_order=True
        )
        cards = zones.group_by(KEY_ID).agg(*added).join(favourites.select(KEY_ID, "zone"), on=KEY_ID)
        return KeyedResult(zones, cards)


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Return the changed cards of each batch.

    Parameters
    ----------
    source
        Rows of the ``trips`` table. Trips without a card are left out.
    settings
        Needs a ttl. A card without a trip for that long, in processing time, is forgotten: its row stays as it is, and
        its next trip begins to count anew.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without a ttl.
    """
    if settings.ttl is None:
        raise StreamwardenError("CONFIG_INVALID", "card_statistics: state.ttl: is required, or state grows for ever")
    trips = source.where(F.col("card_id").isNotNull() & F.col(PICKUP).isNotNull()).select(
        "card_id",
        F.unix_micros(PICKUP).alias("pickup"),
        F.col(PICKUP_ZONE).alias("zone"),
        cents("total_amount").alias("cents"),
    )
    found = with_keyed_state(
        trips,
        ["card_id"],
        CardStatistics(),
        buckets=settings.buckets,
        ttl=settings.ttl,
        initial=settings.initial_state,
    )
    return found.select(
        "card_id",
        "visits",
        (F.col("cents").cast("decimal(18,0)") / 100).cast("decimal(18,2)").alias("spending"),
        F.col("zone").alias("favourite_zone"),
        F.timestamp_micros("first").alias("first_activity"),
        F.timestamp_micros("last").alias("last_activity"),
    )
