"""The advisor's part of the job spec, with every default and its reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import Field, model_validator

from streamwarden.model.durations import Duration
from streamwarden.model.spec_base import Strict

__all__ = ["AdvisorSpec"]


class AdvisorSpec(Strict):
    """The targets for a job's parallelism, and whether advice is applied.

    Names and most defaults follow the autoscaler of Flink's Kubernetes operator, which also uses DS2.
    """

    apply: bool = Field(
        default=False,
        description="Let the DAG `advise` trigger the rescale that it recommends. false: it only reports it. A"
        " rescale stops the job for some seconds, and the job's owner must allow that.",
    )
    target_busy: float = Field(
        default=0.7,
        gt=0,
        lt=1,
        description="The share of the trigger interval that a batch should take. 0.7, as Flink's utilization.target.",
    )
    busy_above: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="More cores are recommended above this share. 0.9: between the target and this share nothing"
        " changes, so that noise has no effect.",
    )
    window: Duration = Field(
        default=timedelta(minutes=15),
        description="Time over which the load is measured. 15m, as Flink's metrics.window.",
    )
    catch_up: Duration = Field(
        default=timedelta(minutes=30),
        description="Time in which a backlog should be processed. 30m, as Flink's catch-up.duration.",
    )
    down_after: Duration = Field(
        default=timedelta(hours=1),
        description="Fewer cores are recommended only if they would have sufficed throughout this time. 1h, as"
        " Flink's scale-down.interval: a lull is not worth two rescales.",
    )
    cool_down: Duration = Field(
        default=timedelta(minutes=15),
        description="Time after a rescale, a restore or a rollout in which nothing is applied. 15m: a whole window"
        " then shows only the new state. A rescale that was refused by its precheck does not count.",
    )
    per_day: int = Field(
        default=8,
        ge=1,
        description="Number of rescales in 24 hours above which nothing is applied. Counts every rescale that stopped"
        " the job, whoever requested it. 8: up and down twice a day, in two steps each.",
    )
    min_cores: int = Field(default=1, ge=1, description="Never fewer. 1.")
    max_cores: int = Field(default=4, ge=1, le=1024, description="Never more. 4: the machine's owner can raise it.")
    min_partitions: int = Field(default=1, ge=1, description="Never fewer. 1.")
    max_partitions: int = Field(
        default=64, ge=1, le=4096, description="Never more. 64: each partition commits a store in every batch."
    )
    bytes_per_partition: int = Field(
        default=2**30,
        ge=2**20,
        description="More partitions are recommended above this state per partition. 1 GiB: a task that moves must"
        " fetch it, in some ten seconds.",
    )

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.target_busy >= self.busy_above:
            raise ValueError("target_busy must be below busy_above: between them nothing is changed")
        if self.min_cores > self.max_cores:
            raise ValueError("min_cores must not be above max_cores")
        if self.min_partitions > self.max_partitions:
            raise ValueError("min_partitions must not be above max_partitions")
        if self.down_after < self.window:
            raise ValueError("down_after must not be below window: the load is not known of a shorter time")
        return self
