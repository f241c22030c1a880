"""Rolling averages of any series of numbers, with a weight if there is one (VWAP), and alerts with hysteresis.

The time is cut into panes of ``every``; a window is ``window / every`` of them, and one begins with each pane. Windows
are written while they are open. When the watermark passes a window's end, its average is judged, in the order of the
windows: above ``high`` raises an alert, below ``low`` ends it. Between the two nothing changes, so that an average at
the limit does not raise an alert each second.

Two examples use it, each by its YAML alone: ``sensor_metrics`` and ``trade_metrics``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar, Final, Self

import polars as pl
import pyarrow as pa
from pydantic import Field, field_validator, model_validator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.event_checks import REFUSED, PlausibleTimes, checked, is_good, nothing, row_text
from streamwarden.driver.job_api import JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state import KEY_ID, KeyedBatch, KeyedJob, KeyedResult, StateField, with_keyed_state
from streamwarden.model.durations import Duration

__all__ = ["OUTPUTS", "VERSION", "Options", "RollingMetrics", "outputs", "transform"]

VERSION = 1

SCALE: Final = 10_000
"""Numbers are added up as whole ten-thousandths: sums of doubles depend on their order."""

LARGEST: Final = 1e9
"""Values, and values times weights, must be smaller. So 900,000 of the largest in a window do not overflow."""

_WINDOWS: Final = StructType(
    [
        StructField("key", StringType()),
        StructField("window_start", TimestampType()),
        StructField("window_end", TimestampType()),
        StructField("events", LongType()),
        StructField("average", DoubleType()),
        # Sum of value times weight over the sum of weights; null without weights.
        StructField("weighted_average", DoubleType()),
        StructField("least", DoubleType()),
        StructField("greatest", DoubleType()),
        # The sink sets it from the watermark (`final_when_passed` of the spec).
        StructField("is_final", BooleanType()),
    ]
)
_ALERTS: Final = StructType(
    [
        StructField("key", StringType()),
        # End of the window whose average decided.
        StructField("at", TimestampType()),
        # raised or ended
        StructField("change", StringType()),
        StructField("average", DoubleType()),
    ]
)

OUTPUTS: Mapping[str, StructType] = {"main": _WINDOWS, "alerts": _ALERTS, "quarantine": REFUSED}


class Options(PlausibleTimes):
    """Options of ``rolling_metrics``."""

    key: str = Field(description="Column of the device, or of whatever has a series of its own.")
    time: str = Field(description="Column of the event's time.")
    value: str = Field(description="Column of the number.")
    weight: str | None = Field(
        default=None, description="Column of a weight, such as a traded volume. None: all events weigh the same."
    )
    window: Duration = Field(default=timedelta(seconds=10), description="Length of a window. 10s.")
    every: Duration = Field(
        default=timedelta(seconds=1), description="Distance of two windows; it must divide `window`. 1s."
    )
    high: float | None = Field(default=None, description="An average above it raises an alert. None: no alerts.")
    low: float | None = Field(
        default=None, description="An average below it ends the alert. At most `high`; default `high`: no hysteresis."
    )
    forget_after: Duration = Field(
        default=timedelta(days=1),
        description="Event time without an event of a key, after which it is forgotten, and its alert. 1d.",
    )

    @field_validator("every")
    @classmethod
    def _positive(cls, value: timedelta) -> timedelta:
        if value < timedelta(milliseconds=1):
            raise ValueError("must be at least 1ms")
        return value

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.window % self.every:
            raise ValueError("every must divide window")
        if self.low is not None and (self.high is None or self.low > self.high):
            raise ValueError("low goes with high, and is at most as large")
        if self.forget_after <= self.window:
            raise ValueError("forget_after must be longer than window")
        return self


class RollingMetrics(KeyedJob):
    """A row of state for each pane of a key; times are microseconds since the epoch.

    Each row repeats what is known of its key: until when its windows are judged, and whether an alert is raised. All
    rows of a key have the same timer, so that a timer gets all of them.

    Parameters
    ----------
    options
        The job's options.
    """

    fields: ClassVar = {
        "pane": StateField(pa.int64()),
        "events": StateField(pa.int64()),
        "total": StateField(pa.int64()),
        "weight": StateField(pa.int64()),
        "weighted": StateField(pa.int64()),
        "least": StateField(pa.int64()),
        "greatest": StateField(pa.int64()),
        "judged": StateField(pa.int64()),
        "raised": StateField(pa.bool_()),
    }
    output: ClassVar = {
        "at": pa.int64(),
        "events": pa.int64(),
        "total": pa.int64(),
        "weight": pa.int64(),
        "weighted": pa.int64(),
        "least": pa.int64(),
        "greatest": pa.int64(),
        "change": pa.string(),
    }
    _SUMS: ClassVar = ("events", "total", "weight", "weighted")
    _NEVER: ClassVar = -(2**62)

    def __init__(self, options: Options) -> None:
        self._window, self._every, self._forget = (
            one // timedelta(microseconds=1) for one in (options.window, options.every, options.forget_after)
        )
        self._high = options.high
        self._low = options.high if options.low is None else options.low
        self._by_weight = options.weight is not None

    def update(self, batch: KeyedBatch) -> KeyedResult:
        """Add the events of a batch to their panes, and return the windows that changed."""
        new = batch.events.select(
            KEY_ID,
            pane=pl.col("at").dt.epoch("us") // self._every * self._every,
            events=pl.lit(1, pl.Int64),
            total="value",
            weight="weight",
            weighted="weighted",
            least="value",
            greatest="value",
            judged=pl.lit(self._NEVER),
            raised=pl.lit(False),
        )
        touched = new.select(KEY_ID, "pane").unique()
        known = batch.state.select(KEY_ID, *self.fields)
        # Every row of a key has the same `judged` and `raised`; those of new rows are the least.
        panes = (
            pl.concat([known, new])
            .group_by(KEY_ID, "pane")
            .agg(*self._merged(), pl.col("judged", "raised").max())
            .with_columns(pl.col("judged", "raised").max().over(KEY_ID))
        )
        starts = self._placed(touched).select(KEY_ID, "at").unique()
        windows = self._windows(panes).join(starts, on=[KEY_ID, "at"], how="semi")
        return KeyedResult(self._kept(panes), windows.with_columns(change=pl.lit(None, pl.String)))

    def on_timer(self, batch: KeyedBatch) -> KeyedResult:
        """Judge the windows that the watermark has passed."""
        panes, now = batch.state.select(KEY_ID, *self.fields), batch.now * 1000
        ended = self._windows(panes).with_columns(end=pl.col("at") + self._window)
        keys = panes.group_by(KEY_ID).agg(pl.col("judged", "raised").first())
        due = ended.join(keys, on=KEY_ID).filter((pl.col("end") > pl.col("judged")) & (pl.col("end") <= now))
        due = due.sort(KEY_ID, "end")
        judged = due.group_by(KEY_ID).agg(pl.col("end").max().alias("judged_now"))
        changes = self._changes(due)
        last = changes.group_by(KEY_ID, maintain_order=True).agg(
            (pl.col("change") == "raised").last().alias("raised_now")
        )
        panes = (
            panes.join(judged, on=KEY_ID, how="left")
            .join(last, on=KEY_ID, how="left")
            .with_columns(judged=pl.coalesce("judged_now", "judged"), raised=pl.coalesce("raised_now", "raised"))
        )
        alerts = changes.with_columns(at=pl.col("end"))
        return KeyedResult(self._kept(panes), alerts.select(KEY_ID, *self.output))

    def _merged(self) -> list[pl.Expr]:
        return [*(pl.col(name).sum() for name in self._SUMS), pl.col("least").min(), pl.col("greatest").max()]

    def _placed(self, panes: pl.DataFrame) -> pl.DataFrame:
        """Return each pane once for each window that it is in, whose start is ``at``."""
        backs = pl.DataFrame({"back": range(0, self._window, self._every)}, schema={"back": pl.Int64})
        return panes.join(backs, how="cross").with_columns(at=pl.col("pane") - pl.col("back"))

    def _windows(self, panes: pl.DataFrame) -> pl.DataFrame:
        return self._placed(panes).group_by(KEY_ID, "at").agg(self._merged()).sort(KEY_ID, "at")

    def _changes(self, due: pl.DataFrame) -> pl.DataFrame:
        """Return the windows that raise or end an alert: those above or below whose predecessor was not so."""
        if self._high is None or self._low is None:
            return due.clear().with_columns(change=pl.lit(None, pl.String))
        above, count = ("weighted", "weight") if self._by_weight else ("total", "events")
        scale = 1.0 if self._by_weight else float(SCALE)
        average = pl.col(above).cast(pl.Float64) / (pl.col(count) * scale)
        # Null between the limits: as before.
        verdict = pl.when(average > self._high).then(pl.lit(True)).when(average < self._low).then(pl.lit(False))
        said = due.with_columns(now_raised=pl.when(pl.col(count) > 0).then(verdict))
        state = said.with_columns(is_raised=pl.col("now_raised").forward_fill().over(KEY_ID))
        state = state.with_columns(is_raised=pl.coalesce("is_raised", "raised"))
        before = pl.col("is_raised").shift(1).over(KEY_ID)
        changed = state.filter(pl.col("is_raised") != pl.coalesce(before, pl.col("raised")))
        return changed.with_columns(change=pl.when("is_raised").then(pl.lit("raised")).otherwise(pl.lit("ended")))

    def _kept(self, panes: pl.DataFrame) -> pl.DataFrame:
        """Return the panes that a window has which is not judged, and the newest of each key, with their timer."""
        last_end = pl.col("pane") + self._window
        newest = pl.col("pane").max().over(KEY_ID)
        kept = panes.filter((last_end > pl.col("judged")) | (pl.col("pane") == newest))
        next_end = pl.max_horizontal("pane", "judged") + self._every
        timer = pl.when(last_end > pl.col("judged")).then(next_end).min().over(KEY_ID)
        return kept.select(
            KEY_ID,
            *self.fields,
            timer_at=(timer + 999) // 1000,
            # Not before its last window is judged, however far the watermark leaps.
            expires_at=pl.when(timer.is_null()).then((newest + self._forget) // 1000),
        )


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Return the changed windows and alerts of each batch, and rows that are no events.

    Parameters
    ----------
    source
        Events with the columns that the options name.
    settings
        Needs a watermark: by it, windows end.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without a watermark, or without the options that name columns.
    """
    options = settings.options
    if not isinstance(options, Options):
        raise StreamwardenError("CONFIG_INVALID", "rolling_metrics: options: key, time and value are required")
    if settings.watermark is None:
        raise StreamwardenError("CONFIG_INVALID", "rolling_metrics: watermark: is required, or no window ends")
    named = [options.key, options.time, options.value, *([options.weight] if options.weight else [])]
    unknown = sorted(set(named) - set(source.columns))
    if unknown:
        what = f"rolling_metrics: options: the source has no column {', '.join(unknown)}"
        raise StreamwardenError("CONFIG_INVALID", f"{what}; it has {', '.join(source.columns)}")
    weight = F.col(options.weight) if options.weight else F.lit(1.0)
    rows = source.select(
        F.col(options.key).cast("string").alias("key"),
        F.col(options.time).alias("at"),
        F.col(options.value).cast("double").alias("value"),
        weight.cast("double").alias("weight"),
        row_text(source, [options.key]).alias("raw"),
    ).withColumn("weighted", F.col("value") * F.col("weight"))
    called = {"key": options.key, "at": options.time, "value": options.value}
    amounts = ["value"]
    if options.weight:
        called |= {"weight": options.weight, "weighted": f"{options.value} times {options.weight}"}
        amounts += ["weight", "weighted"]
    rows = checked(rows, options, keys=["key"], times=["at"], amounts=amounts, largest=LARGEST, called=called)
    negative = F.when(F.col("weight") < 0, f"{options.weight} is negative")
    rows = rows.withColumn("reasons", F.array_compact(F.concat("reasons", F.array(negative))))
    scaled = [F.round(F.col(name) * SCALE).cast("long").alias(name) for name in ("value", "weight", "weighted")]
    events = (
        rows.where(is_good())
        .withWatermark("at", f"{settings.watermark // timedelta(milliseconds=1)} milliseconds")
        .select("key", "at", *scaled)
    )
    found = with_keyed_state(
        events,
        ["key"],
        RollingMetrics(options),
        buckets=settings.buckets,
        ttl=None,
        time="event",
        event_time="at",
        initial=settings.initial_state,
    )
    made = found.select(
        "key",
        F.timestamp_micros("at").alias("window_start"),
        F.timestamp_micros(F.col("at") + options.window // timedelta(microseconds=1)).alias("window_end"),
        "events",
        (F.col("total").cast("double") / (F.col("events") * float(SCALE))).alias("average"),
        _weighted(options).alias("weighted_average"),
        (F.col("least").cast("double") / float(SCALE)).alias("least"),
        (F.col("greatest").cast("double") / float(SCALE)).alias("greatest"),
        "change",
        *nothing(REFUSED),
    )
    refused = rows.where(~is_good()).select(
        *nothing(made.schema[:9]),
        F.lit("source").alias("source"),
        "raw",
        "reasons",  # type: ignore[arg-type]
    )
    return made.unionByName(refused)


def _weighted(options: Options) -> Column:
    if options.weight is None:
        return F.lit(None).cast("double")
    return F.when(F.col("weight") > 0, F.col("weighted").cast("double") / F.col("weight").cast("double"))


def outputs(batch: DataFrame) -> Mapping[str, DataFrame]:
    """Split a batch into windows, alerts and quarantined rows."""
    is_refused, is_alert = F.col("reasons").isNotNull(), F.col("change").isNotNull()
    windows = [name for name in _WINDOWS.names if name != "is_final"]
    average = F.coalesce("weighted_average", "average").alias("average")
    return {
        "main": batch.where(~is_refused & ~is_alert).select(*windows),
        "alerts": batch.where(~is_refused & is_alert).select(
            "key", F.col("window_start").alias("at"), "change", average
        ),
        "quarantine": batch.where(is_refused).select(*REFUSED.names),
    }
