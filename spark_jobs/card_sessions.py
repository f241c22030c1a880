"""Sessions of trips paid by the same card: keyed state with a time to live and timers.

A session is a set of a card's trips whose consecutive pickups are at most ``gap`` apart. Trips may arrive in any order:
a late trip extends a session at either end, or joins two. The state of a session is its interval, sums and zones. A
trip belongs to it if its pickup is at most ``gap`` outside the interval, since the interval has no larger hole.

:mod:`spark_jobs.card_sessions_plain` does the same with Spark's own interface, a call for each card.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

import polars as pl
import pyarrow as pa
from pydantic import Field, field_validator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jobs.schemas import DROPOFF_ZONE, PICKUP, PICKUP_ZONE, cents
from streamwarden.driver.job_api import DELETED, JobOptions, JobSettings, PreviousState
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state import (
    KEY_ID,
    KeyedBatch,
    KeyedJob,
    KeyedResult,
    StateField,
    session_ids,
    union_of_lists,
    with_keyed_state,
)
from streamwarden.model.durations import Duration, format_duration

__all__ = [
    "MIGRATES_FROM",
    "OUTPUTS",
    "VERSION",
    "CardSessions",
    "Options",
    "checked_options",
    "migrate",
    "table_rows",
    "transform",
    "trips_by_card",
]

VERSION = 2
"""2: the state is kept in buckets of cards. 1: an entry for each session, as card_sessions_plain has it."""

MIGRATES_FROM = (1,)

OUTPUTS: Mapping[str, StructType] = {
    "main": StructType(
        [
            StructField("card_id", StringType()),
            StructField("session_start", TimestampType()),
            StructField("session_end", TimestampType()),
            StructField("trips", LongType()),
            StructField("total_amount", DecimalType(18, 2)),
            StructField("zones", ArrayType(IntegerType())),
            StructField("status", StringType()),
        ]
    )
}

OPEN = "open"
CLOSED = "closed"


class Options(JobOptions):
    """Options of ``card_sessions``."""

    gap: Duration = Field(
        default=timedelta(minutes=30),
        description="A new session begins after more than this from pickup to pickup, in event time. 30m.",
    )
    close_after: Duration = Field(
        default=timedelta(minutes=45),
        description="A session without a new trip for this long, in processing time, is closed. 45m: the gap, and 15"
        " minutes for trips to arrive. A later trip opens it again as long as its state lives.",
    )

    @field_validator("gap", "close_after")
    @classmethod
    def _positive(cls, value: timedelta) -> timedelta:
        if value < timedelta(milliseconds=1):
            raise ValueError("must be at least 1ms")
        return value


class CardSessions(KeyedJob):
    """A row of state for each session of a card. Starts and ends are microseconds since the epoch.

    Parameters
    ----------
    gap
        Maximum distance between consecutive pickups of a session.
    close_after
        Processing time without a trip after which a session closes.
    """

    fields: ClassVar = {
        "start": StateField(pa.int64()),
        "end": StateField(pa.int64()),
        "trips": StateField(pa.int64()),
        "cents": StateField(pa.int64()),
        "zones": StateField(pa.list_(pa.int32())),
    }
    output: ClassVar = {
        **{name: field.type for name, field in fields.items()},
        "status": pa.string(),
        DELETED: pa.bool_(),
    }

    def __init__(self, *, gap: timedelta, close_after: timedelta) -> None:
        self._gap = gap // timedelta(microseconds=1)
        self._close_after = close_after // timedelta(milliseconds=1)

    def update(self, batch: KeyedBatch) -> KeyedResult:
        """Join the trips of a batch to their cards' sessions."""
        trips = batch.events.select(
            KEY_ID,
            start="pickup",
            end="pickup",
            trips=pl.lit(1, pl.Int64),
            cents="cents",
            zones="zones",
            is_trip=pl.lit(True),
        )
        pieces = pl.concat([batch.state, trips], how="diagonal")
        pieces = pieces.with_columns(session_ids(pieces, start="start", end="end", gap=self._gap))
        reached = pl.col("session").is_in(pieces["session"].tail(len(trips)).implode())
        others = pieces.filter(~reached).drop("session")
        pieces = pieces.filter(reached).with_columns(pl.col("session").rank("dense") - 1)
        merged = pieces.group_by("session").agg(
            pl.col(KEY_ID).first(),
            pl.col("start").min(),
            pl.col("end").max(),
            pl.col("trips", "cents").sum(),
        )
        merged = merged.sort("session").with_columns(
            union_of_lists(pieces["session"], pieces["zones"], len(merged)).alias("zones"),
            timer_at=pl.lit(batch.now + self._close_after, pl.Int64),
        )
        # Joined to a session with an earlier start: its row goes.
        is_gone = pl.col("is_trip").is_null() & (pl.col("start") != merged["start"].gather(pieces["session"]))
        gone = pieces.filter(is_gone).select(KEY_ID, "start", pl.lit(True).alias(DELETED))
        return KeyedResult(
            # A session that no trip has reached lives no longer than before.
            state=pl.concat([others, merged], how="diagonal"),
            output=pl.concat([self._rows(merged, OPEN), gone], how="diagonal"),
        )

    def on_timer(self, batch: KeyedBatch) -> KeyedResult:
        """Close the sessions that are due."""
        return KeyedResult(batch.state.drop("timer_at"), self._rows(batch.state, CLOSED))

    def _rows(self, sessions: pl.DataFrame, status: str) -> pl.DataFrame:
        return sessions.select(KEY_ID, *self.fields, pl.lit(False).alias(DELETED), status=pl.lit(status))


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Return the changed sessions of each batch.

    Parameters
    ----------
    source
        Rows of the ``trips`` table. Trips without a card (TLC's own files have none) belong to no session.
    settings
        Needs a ttl longer than the option ``close_after``: state that expires first can't be closed.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` if the ttl is missing or too short.
    """
    options, ttl = checked_options(settings)
    job = CardSessions(gap=options.gap, close_after=options.close_after)
    changed = with_keyed_state(
        trips_by_card(source),
        ["card_id"],
        job,
        buckets=settings.buckets,
        ttl=ttl,
        initial=settings.initial_state,
    )
    return table_rows(changed)


def migrate(old: PreviousState) -> DataFrame:
    """Return the sessions of version 1: its map states ``sessions`` and ``zones`` by session start, and its timers."""
    sessions, zones = old.variable("sessions"), old.variable("zones")
    # A session without a timer is closed.
    timers = old.timers().select(
        F.col("key.card_id").alias("card_id"), F.col("expiration_timestamp_ms").alias("timer_at")
    )
    value = F.col("user_map_value.value")
    rows = sessions.select(
        F.col("key.card_id").alias("card_id"),
        F.col("user_map_key.start").alias("start"),
        value["end"].alias("end"),
        value["trips"].alias("trips"),
        value["cents"].alias("cents"),
        value["closes_at"].alias("closes_at"),
        F.col("user_map_value.ttlExpirationMs").alias("expires_at"),
    )
    of_sessions = zones.select(
        F.col("key.card_id").alias("card_id"),
        F.col("user_map_key.start").alias("start"),
        F.col("user_map_value.value.zones").alias("zones"),
    )
    due = (rows["card_id"] == timers["card_id"]) & (rows["closes_at"] == timers["timer_at"])
    return (
        rows.join(timers, due, "left").drop(timers["card_id"]).drop("closes_at").join(of_sessions, ["card_id", "start"])
    )


def checked_options(settings: JobSettings) -> tuple[Options, timedelta]:
    """Return the options and the time to live, which must be there."""
    options = settings.options if isinstance(settings.options, Options) else Options()
    if settings.ttl is None:
        raise StreamwardenError("CONFIG_INVALID", "card_sessions: state.ttl: is required, or state grows for ever")
    if settings.ttl <= options.close_after:
        raise StreamwardenError(
            "CONFIG_INVALID",
            f"card_sessions: state.ttl: {format_duration(settings.ttl)} must be longer than options.close_after,"
            f" {format_duration(options.close_after)}: a session whose state expires first would stay open for ever",
        )
    return options, settings.ttl


def trips_by_card(source: DataFrame) -> DataFrame:
    """Return what sessions need of the trips that have a card."""
    return source.where(F.col("card_id").isNotNull() & F.col(PICKUP).isNotNull()).select(
        "card_id",
        F.unix_micros(PICKUP).alias("pickup"),
        cents("total_amount").alias("cents"),
        F.array(PICKUP_ZONE, DROPOFF_ZONE).alias("zones"),
    )


def table_rows(emitted: DataFrame) -> DataFrame:
    """Turn the rows of the state into those of the table."""
    return emitted.select(
        "card_id",
        F.timestamp_micros("start").alias("session_start"),
        F.timestamp_micros("end").alias("session_end"),
        "trips",
        (F.col("cents").cast("decimal(18,0)") / 100).cast("decimal(18,2)").alias("total_amount"),
        "zones",
        "status",
        DELETED,
    )
