"""Exactly one of each event id: for a producer that delivers at least once.

A repeat is dropped if it arrives while its id is kept: until the watermark is the spec's ``watermark`` past the first
one's time. A later repeat is late: it is dropped and counted, so that no id comes twice, unless its own time is newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampType

from spark_jobs.event_checks import REFUSED, PlausibleTimes, checked, is_good, nothing
from spark_jobs.schemas import DROPOFF, PICKUP
from streamwarden.driver.job_api import JobSettings
from streamwarden.errors import StreamwardenError

__all__ = ["OUTPUTS", "VERSION", "Options", "outputs", "transform"]

VERSION = 1

PAYMENTS = StructType(
    [
        StructField("payment_id", StringType()),
        StructField("card_id", StringType()),
        StructField(PICKUP, TimestampType()),
        StructField(DROPOFF, TimestampType()),
        StructField("amount", DoubleType()),
        StructField("method", StringType()),
        StructField("settled_at", TimestampType()),
    ]
)

OUTPUTS: Mapping[str, StructType] = {"main": PAYMENTS, "quarantine": REFUSED}


class Options(PlausibleTimes):
    """Options of ``dedup_events``."""


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Return the first of each payment, and the rows that have no id or no plausible time.

    Parameters
    ----------
    source
        Payments as they were delivered, with repeats.
    settings
        Needs a watermark: for so long an id is kept.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without a watermark.
    """
    options = settings.options if isinstance(settings.options, Options) else Options()
    if settings.watermark is None:
        raise StreamwardenError("CONFIG_INVALID", "dedup_events: watermark: is required, or ids are kept for ever")
    rows = checked(source, options, keys=["payment_id"], times=["settled_at"], amounts=["amount"])
    first = (
        rows.where(is_good())
        .withWatermark("settled_at", f"{settings.watermark // timedelta(milliseconds=1)} milliseconds")
        .dropDuplicatesWithinWatermark(["payment_id"])
    )
    refused = rows.where(~is_good()).select(*nothing(PAYMENTS), F.lit("payments").alias("source"), "raw", "reasons")
    return first.select(*PAYMENTS.names, *nothing(REFUSED)).unionByName(refused)


def outputs(batch: DataFrame) -> Mapping[str, DataFrame]:
    """Split a batch into payments and quarantined rows."""
    is_refused = F.col("reasons").isNotNull()
    return {
        "main": batch.where(~is_refused).select(*PAYMENTS.names),
        "quarantine": batch.where(is_refused).select(*REFUSED.names),
    }
