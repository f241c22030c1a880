"""The advisor's part of the job spec, with every default and its reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from streamwarden.model.durations import Duration

__all__ = ["AdvisorSpec"]


class AdvisorSpec(BaseModel):
    """How wide the job should run, and whether that is acted upon.

    Names and most defaults follow the autoscaler of Flink's Kubernetes operator, which goes by DS2 as well.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    apply: bool = Field(
        default=False,
        description="Let the DAG `advise` trigger the rescale that it recommends. false: it only says so; a rescale"
        " stops the job for some seconds, which is for its owner to allow.",
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
        description="From this share on more cores are recommended. 0.9: between it and the target nothing is changed,"
        " so that noise is not answered.",
    )
    window: Duration = Field(
        default=timedelta(minutes=15), description="What the load is measured over. 15m, as Flink's metrics.window."
    )
    catch_up: Duration = Field(
        default=timedelta(minutes=30),
        description="Within which a backlog should be worked off. 30m, as Flink's catch-up.duration.",
    )
    down_after: Duration = Field(
        default=timedelta(hours=1),
        description="Fewer cores are recommended only when they would have done throughout this time. 1h, as Flink's"
        " scale-down.interval: a lull is not worth two rescales.",
    )
    cool_down: Duration = Field(
        default=timedelta(minutes=15),
        description="After the end of a rescale, a restore or a rollout nothing is applied for so long. 15m: a window"
        " in which nothing but the new state is seen. A rescale that was refused at its first look is none.",
    )
    per_day: int = Field(
        default=8,
        ge=1,
        description="Rescales in 24 hours that stopped the job, whoever asked for them, above which nothing is applied."
        " 8: up and down twice a day, in two steps each.",
    )
    min_cores: int = Field(default=1, ge=1, description="Never fewer. 1.")
    max_cores: int = Field(default=4, ge=1, le=1024, description="Never more. 4: the machine's owner should say more.")
    min_partitions: int = Field(default=1, ge=1, description="Never fewer. 1.")
    max_partitions: int = Field(
        default=64, ge=1, le=4096, description="Never more. 64: each is a store to commit in every batch."
    )
    bytes_per_partition: int = Field(
        default=2**30,
        ge=2**20,
        description="State of one partition from which more partitions are recommended. 1 GiB: what a task has to"
        " fetch and open when it moves, some ten seconds of network or disk.",
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
