"""The health part of the job spec: limits for each rule, with every default and its reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from streamwarden.model.durations import Duration
from streamwarden.model.spec_base import Strict

__all__ = ["CountLimit", "DurationLimit", "FloorLimit", "HealthSpec", "ShareLimit"]


class DurationLimit(Strict):
    """A time that should not be reached. None: no limit, or the rule's own."""

    warn: Duration | None = None
    critical: Duration | None = None

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.warn is not None and self.critical is not None and self.warn > self.critical:
            raise ValueError("warn must not be above critical")
        return self


class CountLimit(Strict):
    """A number that should not be reached. None: no limit, or the rule's own."""

    warn: int | None = Field(default=None, ge=1)
    critical: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.warn is not None and self.critical is not None and self.warn > self.critical:
            raise ValueError("warn must not be above critical")
        return self


class ShareLimit(Strict):
    """A ratio that should not be reached. None: no limit."""

    warn: float | None = Field(default=None, ge=0)
    critical: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.warn is not None and self.critical is not None and self.warn > self.critical:
            raise ValueError("warn must not be above critical")
        return self


class FloorLimit(Strict):
    """A ratio that something should not fall to. None: no limit."""

    warn: float | None = Field(default=None, ge=0, le=1)
    critical: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.warn is not None and self.critical is not None and self.warn < self.critical:
            raise ValueError("warn must not be below critical: less is worse here")
        return self


class HealthSpec(Strict):
    """The limits of a job's health, and the reaction to them. The meaning of each alarm: docs/operations.md."""

    window: int = Field(
        default=10,
        ge=2,
        le=50,
        description="Number of batches over which averages are taken. 10: one slow batch raises no alarm.",
    )
    hold: Duration = Field(
        default=timedelta(seconds=30),
        description="How long a level must last before it is reported. 30s: a successful restart is not worth a page.",
    )
    no_batch: DurationLimit = Field(
        default=DurationLimit(),
        description="Time since the last committed batch, or since the source was last found empty. Default for"
        " critical: max(trigger.interval, trigger.timeout) x (failures.tolerable_consecutive + 2), as"
        " Flink's operator does for checkpoints. trigger.min_pause and the driver's waits between tries"
        " are added. Default for warn: half of critical.",
    )
    restart_when_stuck: bool = Field(
        default=True,
        description="Kill and restart the driver at a critical `no_batch`, within the restart budget. true: a driver"
        " that makes no progress is useless. A driver that waits for its source table is not restarted.",
    )
    failed_tries: CountLimit = Field(
        default=CountLimit(warn=1, critical=3),
        description="Failed tries in the window and of the current batch, by sink conflicts or job errors. 1: the log"
        " has the reason. 3: hardly a coincidence.",
    )
    restarts: CountLimit = Field(
        default=CountLimit(warn=2),
        description="Restarts within restarts.window. 2: one may be a coincidence. Default for critical: the last one"
        " of the budget, restarts.max; warn is never above it.",
    )
    watermark_lag: DurationLimit = Field(
        default=DurationLimit(),
        description="Newest event time minus the watermark; the least value in the window. The normal value is 1 x"
        " `watermark`, and more while batches of an old backlog span hours. Default: warn at 4 x,"
        " critical at 12 x `watermark`. Without `watermark`, only limits given here apply.",
    )
    backlog: DurationLimit = Field(
        default=DurationLimit(warn=timedelta(minutes=10), critical=timedelta(hours=1)),
        description="Time to process the waiting input at the window's speed, without pauses between batches. 10m: an"
        " operator can still wait. 1h: users notice.",
    )
    falling_behind: ShareLimit = Field(
        default=ShareLimit(warn=1.1, critical=1.5),
        description="Arriving input divided by processed input over the window, while the waiting input grows and"
        " exceeds three batches. Above 1 the backlog never ends; 1.1 leaves room for noise.",
    )
    idle_source: DurationLimit = Field(
        default=DurationLimit(warn=timedelta(minutes=10)),
        description="How long one of several sources may be without input while others have some, and hold the"
        " watermark. With watermark_policy min only. 10m: longer than the gap between two deliveries.",
    )
    late_rows: ShareLimit = Field(
        default=ShareLimit(warn=0.05, critical=0.25),
        description="Share of late rows in the window, from 100 input rows on. 0.05: TLC's trips lose 0.01 at 2h.",
    )
    gate_held: DurationLimit = Field(
        default=DurationLimit(warn=timedelta(seconds=1), critical=timedelta(hours=6)),
        description="How long the gate has held a table of the job, or could not decide. Readers see nothing newer."
        " 1s: at once, since a person must decide. 6h: for most readers that is an outage.",
    )
    commit_time: DurationLimit = Field(
        default=DurationLimit(warn=timedelta(seconds=30), critical=timedelta(minutes=5)),
        description="Time of a batch's commits (sinks and checkpoint), the median of the window. A commit to Delta"
        " takes about a second. 30s means a table without maintenance, or a slow store.",
    )
    checkpoint_time: DurationLimit = Field(
        default=DurationLimit(warn=timedelta(seconds=5), critical=timedelta(minutes=1)),
        description="The part of commit_time for Spark's offset and commit logs, the median. They are two small"
        " files: 5s means a slow store.",
    )
    landing: CountLimit = Field(
        default=CountLimit(warn=1),
        description="Landed files that need attention: replaced after they were read, or quarantined whole. Also if"
        " the folder can't be read. 1: each is input that no table has. `streamwarden landing list JOB`"
        " lists them.",
    )
    state_rows: CountLimit = Field(
        default=CountLimit(),
        description="Keys in the state of all operators. No default: the right number depends on the data."
        " `on_state_limit` applies at the critical limit.",
    )
    on_state_limit: Literal["warn", "savepoint_and_stop", "fail"] = Field(
        default="warn",
        description="The supervisor's action at state_rows.critical. warn: only an alarm. savepoint_and_stop:"
        " suspends the job with a savepoint, and its task fails. If no savepoint can be taken, the job is"
        " suspended without one, and the error has the reason. fail: stops the job without a savepoint.",
    )
    state_bytes: CountLimit = Field(
        default=CountLimit(),
        description="Memory of the state stores, in bytes. Default for warn: resources.memory. RocksDB's memory is"
        " added to the heap, and a container is killed for their sum. Default for critical: twice that. A"
        " container of twice the heap is then full, and state does not shrink by itself.",
    )
    state_growth: ShareLimit = Field(
        default=ShareLimit(warn=1.0),
        description="Growth of the number of keys per hour, as a share of the keys, from 10,000 keys on. 1: doubled"
        " within the hour. Default for critical: 10, once the driver has run for an hour. The first start"
        " and a replay also fill the state fast; evenly growing state is below 1 after an hour. A"
        " critical limit given here applies from the start.",
    )
    compaction: ShareLimit = Field(
        default=ShareLimit(warn=0.3, critical=0.8),
        description="Time of RocksDB's compactions as a share of the batches' time x resources.cores, in the window."
        " 0.3: a third of the cores compacts. 0.8: little is left for batches.",
    )
    write_stall: ShareLimit = Field(
        default=ShareLimit(warn=0.05, critical=0.3),
        description="Time that RocksDB delayed writers, divided by the batches' time, in the window. It should be 0.",
    )
    cache_hits: FloorLimit = Field(
        default=FloorLimit(),
        description="Share of RocksDB's block reads that hit its cache, in the window, from 1,000 reads on. No"
        " default: if the state fits into memory tables, a low share means nothing.",
    )

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.on_state_limit != "warn" and self.state_rows.critical is None:
            raise ValueError(f"on_state_limit {self.on_state_limit} needs state_rows.critical: it is what it acts on")
        return self
