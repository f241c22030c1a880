"""Trips with their payments: a join of two streams. What has no counterpart waits in state until the watermark passes.

A payment belongs to a trip if it names its card, pickup and dropoff, and was settled at most ``settles_within`` after
the pickup. Trips and payments may arrive in any order. A trip without a payment, or a payment without a trip, comes
out once, when the watermarks of both sources exclude a counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

from pydantic import Field, field_validator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StringType, StructField, StructType, TimestampType

from spark_jobs.event_checks import REFUSED, PlausibleTimes, checked, is_good, nothing
from spark_jobs.schemas import DROPOFF, PICKUP, cents
from streamwarden.driver.job_api import JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.model.durations import Duration

__all__ = ["OUTPUTS", "OUTPUT_MODE", "SOURCES", "VERSION", "Options", "outputs", "transform"]

VERSION = 1

OUTPUT_MODE = "append"

# As literals, so that a deploy reads them without an import.
SOURCES: Mapping[str, str | None] = {"trips": "lpep_pickup_datetime", "payments": "settled_at"}

_MONEY = DecimalType(18, 2)

_JOINED: Final = StructType(
    [
        StructField("card_id", StringType()),
        StructField(PICKUP, TimestampType()),
        StructField(DROPOFF, TimestampType()),
        StructField("total_amount", _MONEY),
        StructField("payment_id", StringType()),
        StructField("paid", _MONEY),
        StructField("method", StringType()),
        StructField("settled_at", TimestampType()),
        # paid, no_payment or no_trip
        StructField("outcome", StringType()),
    ]
)
OUTPUTS: Mapping[str, StructType] = {"main": _JOINED, "quarantine": REFUSED}

_JOINS: Final = {"inner": "inner", "left": "leftOuter", "right": "rightOuter", "full": "fullOuter"}


class Options(PlausibleTimes):
    """Options of ``trip_payments``."""

    join: Literal["inner", "left", "right", "full"] = Field(
        default="full",
        description="What comes out without a counterpart. left: trips. right: payments. full: both. inner: neither."
        " full: nothing is dropped.",
    )
    settles_within: Duration = Field(
        default=timedelta(hours=4),
        description="How long after the pickup a payment may be settled. 4h: a trip of some hours, and the time of the"
        " payment. State is kept for as long, after the watermark.",
    )

    @field_validator("settles_within")
    @classmethod
    def _not_negative(cls, value: timedelta) -> timedelta:
        if value < timedelta(0):
            raise ValueError("must not be negative")
        return value


def transform(sources: Mapping[str, DataFrame], settings: JobSettings) -> DataFrame:
    """Join trips with payments; rows with reasons go to quarantine.

    Parameters
    ----------
    sources
        ``trips``: rows of the trips table. ``payments``: ``payment_id``, ``card_id``, both times of the trip under
        their names there, ``amount``, ``method``, ``settled_at``.
    settings
        Needs a watermark, which both sources get.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without a watermark.
    """
    options = settings.options if isinstance(settings.options, Options) else Options()
    if settings.watermark is None:
        what = "trip_payments: watermark: is required, or the unmatched would wait for ever"
        raise StreamwardenError("CONFIG_INVALID", what)
    delay = f"{int(settings.watermark.total_seconds() * 1000)} milliseconds"
    # A trip without a card was paid in cash.
    carded = sources["trips"].where(F.col("card_id").isNotNull())
    trips = checked(carded, options, keys=["card_id"], times=[PICKUP, DROPOFF], amounts=["total_amount"])
    payments = checked(
        sources["payments"],
        options,
        keys=["payment_id", "card_id"],
        times=[PICKUP, DROPOFF, "settled_at"],
        amounts=["amount"],
    )
    paid = payments.where(is_good()).select(
        F.col("card_id").alias("p_card"),
        F.col(PICKUP).alias("p_pickup"),
        F.col(DROPOFF).alias("p_dropoff"),
        _money("amount").alias("paid"),
        "payment_id",
        "method",
        "settled_at",
    )
    driven = trips.where(is_good()).select("card_id", PICKUP, DROPOFF, _money("total_amount").alias("total_amount"))
    seconds = int(options.settles_within.total_seconds())
    joined = driven.withWatermark(PICKUP, delay).join(
        paid.withWatermark("settled_at", delay),
        (F.col("card_id") == F.col("p_card"))
        # Not the columns themselves: Spark would take the watermark of one for both, and remove trips from the state
        # whose payments may still come.
        & (F.unix_micros(PICKUP) == F.unix_micros("p_pickup"))
        & (F.unix_micros(DROPOFF) == F.unix_micros("p_dropoff"))
        & (F.col("settled_at") >= F.col(PICKUP))
        & (F.col("settled_at") <= F.col(PICKUP) + F.expr(f"INTERVAL {seconds} SECONDS")),
        _JOINS[options.join],
    )
    found = joined.select(
        F.coalesce("card_id", "p_card").alias("card_id"),
        F.coalesce(PICKUP, "p_pickup").alias(PICKUP),
        F.coalesce(DROPOFF, "p_dropoff").alias(DROPOFF),
        "total_amount",
        "payment_id",
        "paid",
        "method",
        "settled_at",
        F.when(F.col("card_id").isNull(), "no_trip")
        .when(F.col("p_card").isNull(), "no_payment")
        .otherwise("paid")
        .alias("outcome"),
        *nothing(REFUSED),
    )
    refused = [
        rows.where(~is_good()).select(*nothing(_JOINED), F.lit(name).alias("source"), "raw", "reasons")
        for name, rows in (("trips", trips), ("payments", payments))
    ]
    return found.unionByName(refused[0]).unionByName(refused[1])


def outputs(batch: DataFrame) -> Mapping[str, DataFrame]:
    """Split a batch into joined and quarantined rows."""
    is_refused = F.col("reasons").isNotNull()
    return {
        "main": batch.where(~is_refused).select(*_JOINED.names),
        "quarantine": batch.where(is_refused).select(*REFUSED.names),
    }


def _money(column: str) -> Column:
    return (cents(column).cast("decimal(18,0)") / 100).cast(_MONEY)
