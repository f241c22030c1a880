"""The health part of the job spec: limits for each rule, with every default and its reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from streamwarden.model.durations import Duration

__all__ = ["CountLimit", "DurationLimit", "FloorLimit", "HealthSpec", "ShareLimit"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DurationLimit(_Strict):
    """A time that should not be reached. None: no limit, or the rule's own."""

    warn: Duration | None = None
    critical: Duration | None = None

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.warn is not None and self.critical is not None and self.warn > self.critical:
            raise ValueError("warn must not be above critical")
        return self


class CountLimit(_Strict):
    """A number that should not be reached. None: no limit, or the rule's own."""

    warn: int | None = Field(default=None, ge=1)
    critical: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.warn is not None and self.critical is not None and self.warn > self.critical:
            raise ValueError("warn must not be above critical")
        return self


class ShareLimit(_Strict):
    """A ratio that should not be reached. None: no limit."""

    warn: float | None = Field(default=None, ge=0)
    critical: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.warn is not None and self.critical is not None and self.warn > self.critical:
            raise ValueError("warn must not be above critical")
        return self


class FloorLimit(_Strict):
    """A ratio that something should not fall to. None: no limit."""

    warn: float | None = Field(default=None, ge=0, le=1)
    critical: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.warn is not None and self.critical is not None and self.warn < self.critical:
            raise ValueError("warn must not be below critical: less is worse here")
        return self


class HealthSpec(_Strict):
    """When a job is well, and what is done if it is not. What each alarm means: docs/operations.md."""

    window: int = Field(
        default=10, ge=2, le=50, description="Batches that averages are over. 10: one slow batch makes no alarm."
    )
    hold: Duration = Field(
        default=timedelta(seconds=30),
        description="How long a level must last before it is told. 30s: a restart that works is not worth a page.",
    )
    no_batch: DurationLimit = Field(
        default=DurationLimit(),
        description="Since the last committed batch, or the last time that there was no input. By default critical at"
        " max(trigger.interval, trigger.timeout) x (failures.tolerable_consecutive + 2), as Flink's operator has it for"
        " checkpoints, and besides trigger.min_pause and the driver's waits between so many tries; warn at half of"
        " that.",
    )
    restart_when_stuck: bool = Field(
        default=True,
        description="At a critical `no_batch` the driver is killed and started again, within the restart budget. true,"
        " since a driver that lives and does nothing helps nobody. Not one that waits for its source table.",
    )
    failed_tries: CountLimit = Field(
        default=CountLimit(warn=1, critical=3),
        description="Failed tries in the window, and of the batch now in work: conflicts at the sink, errors of the"
        " job. 1: each has a reason in the log. 3: it is no accident any more.",
    )
    restarts: CountLimit = Field(
        default=CountLimit(warn=2),
        description="Restarts within restarts.window. 2: once may be an accident. Critical by default at the budget's"
        " last one, restarts.max, and warn no later.",
    )
    watermark_lag: DurationLimit = Field(
        default=DurationLimit(),
        description="Newest event time less the watermark, the least in the window. By default warn at 4 x `watermark`"
        " and critical at 12 x: it should be 1 x, and more for as long as batches of an old backlog hold hours. Without"
        " `watermark` only what is given here counts.",
    )
    backlog: DurationLimit = Field(
        default=DurationLimit(warn=timedelta(minutes=10), critical=timedelta(hours=1)),
        description="How long the job would take for the input that waits, at its batches' pace in the window: they"
        " follow each other at once until it is worked off. 10m and 1h: what an operator can still wait for, and what"
        " users have noticed.",
    )
    falling_behind: ShareLimit = Field(
        default=ShareLimit(warn=1.1, critical=1.5),
        description="Input that arrives over input that is processed, over the window, while more than three batches'"
        " worth waits and it grows. Above 1 the backlog grows for ever; 1.1 leaves room for noise.",
    )
    late_rows: ShareLimit = Field(
        default=ShareLimit(warn=0.05, critical=0.25),
        description="Late rows over rows in, in the window, from 100 rows on. 0.05: TLC's trips lose 0.01 at 2h.",
    )
    commit_time: DurationLimit = Field(
        default=DurationLimit(warn=timedelta(seconds=30), critical=timedelta(minutes=5)),
        description="Time of a batch's commits, sink and checkpoint, the median of the window. A commit to Delta takes"
        " about a second; 30s of it is a table without upkeep, or a slow store.",
    )
    checkpoint_time: DurationLimit = Field(
        default=DurationLimit(warn=timedelta(seconds=5), critical=timedelta(minutes=1)),
        description="Of that, Spark's offset and commit logs, the median. Two small files: 5s is a store in trouble.",
    )
    landing: CountLimit = Field(
        default=CountLimit(warn=1),
        description="Landed files that somebody should look at: replaced after they were read, or quarantined whole; or"
        " the folder can't be read. 1: each is input that no table has. `streamwarden landing list JOB` names them.",
    )
    state_rows: CountLimit = Field(
        default=CountLimit(),
        description="Keys in the state of all operators. No default: only you know how many cards there are. The"
        " critical one is the cardinality limit that `on_state_limit` acts on.",
    )
    on_state_limit: Literal["warn", "savepoint_and_stop", "fail"] = Field(
        default="warn",
        description="What the supervisor does at state_rows.critical. warn: tells. savepoint_and_stop: suspends the job"
        " with a savepoint, and its task fails; where none can be taken, without one, and the error says why. fail:"
        " stops it without one.",
    )
    state_bytes: CountLimit = Field(
        default=CountLimit(),
        description="Memory of the state stores, bytes. By default warn at resources.memory: RocksDB's comes on top of"
        " the heap, and the two together are what a container is killed for. Critical by default at twice that: a"
        " container made for the heap and as much again has nothing left, and state does not shrink by waiting.",
    )
    state_growth: ShareLimit = Field(
        default=ShareLimit(warn=1.0),
        description="Growth of the number of keys over the window, for an hour at that pace, as a share of what there"
        " is; from 10,000 keys on. 1: doubled within the hour. Critical by default at 10, when the driver has run for"
        " an hour: a first start or a replay fills the state as fast, and state that only grows evenly from nothing is"
        " below 1 by then. A critical limit that is given counts from the start.",
    )
    compaction: ShareLimit = Field(
        default=ShareLimit(warn=0.3, critical=0.8),
        description="Time of RocksDB's compactions over the batches' time x resources.cores, in the window. 0.3: a"
        " third of the machine is busy with upkeep. 0.8: hardly anything is left for the batches.",
    )
    write_stall: ShareLimit = Field(
        default=ShareLimit(warn=0.05, critical=0.3),
        description="Time in which RocksDB held writers back over the batches' time, in the window. It should be none.",
    )
    cache_hits: FloorLimit = Field(
        default=FloorLimit(),
        description="Share of RocksDB's block reads that its cache answers, in the window, from 1,000 reads on. No"
        " default: where the state fits into memory tables a low share means nothing.",
    )

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.on_state_limit != "warn" and self.state_rows.critical is None:
            raise ValueError(f"on_state_limit {self.on_state_limit} needs state_rows.critical: it is what it acts on")
        return self
