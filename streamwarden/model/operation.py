"""Models of an operation on a job: its record, its steps, and its plan, from which another process can finish it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import ErrorInfo, ErrorText
from streamwarden.model.status import CheckpointRef, Desired, Parallelism, ParallelismOverride

__all__ = ["Cancel", "InForce", "Operation", "OperationPlan", "OperationState", "Step", "StepName"]


class OperationState(StrEnum):
    """Whether an operation runs, or how it ended."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ROLLED_BACK = "rolled back"
    INTERRUPTED = "interrupted"
    """Its process died, and another operation took its place."""


class StepName(StrEnum):
    """The steps of restores, rollouts and rescales."""

    PRECHECK = "precheck"
    START_SPARK = "start Spark"
    STOP = "stop"
    PRE_RESTORE_SAVEPOINT = "pre-restore savepoint"
    PRE_ROLLOUT_SAVEPOINT = "pre-rollout savepoint"
    PRE_RESCALE_SAVEPOINT = "pre-rescale savepoint"
    FRESH_CHECKPOINT = "fresh checkpoint"
    COPY = "copy"
    DIGEST_BEFORE = "digest before"
    REPARTITION = "repartition"
    DIGEST_AFTER = "digest after"
    FOLLOW = "follow"
    FOLLOW_TO_END = "follow to the end"
    SWITCH = "switch"
    CUT_LOG = "cut the log"
    START = "start"
    WAIT_FOR_HEALTH = "wait for health"
    FIRST_BATCH = "first batch"
    DIGEST_AT_STOP = "digest at the stop"
    CATCH_UP = "catch up"
    START_AGAIN = "start again"
    ROLL_BACK = "roll back"
    VERIFY_ROLLBACK = "wait for health after the rollback"

    @classmethod
    def _missing_(cls, value: object) -> StepName | None:
        # Records of 0.1 have the old name.
        return cls.VERIFY_ROLLBACK if value == "wait for health after the way back" else None


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Step(_Record):
    """One step of an operation. The performing process updates it."""

    model_config = ConfigDict(frozen=False, validate_assignment=True)

    name: str = Field(description="A StepName; text, so that the record of another version stays readable.")
    started_at: datetime
    ended_at: datetime | None = None
    detail: ErrorText = ""


class InForce(_Record):
    """The three documents that decide how a job runs."""

    checkpoint: CheckpointRef | None = None
    desired: Desired | None = None
    parallelism: ParallelismOverride | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_version_0_1(cls, value: Any) -> Any:
        # It recorded the checkpoint alone: `repair` still reads the history for it.
        return {"checkpoint": value} if isinstance(value, dict) and "generation" in value else value


class OperationPlan(_Record):
    """What a process needs to finish, or to roll back, an operation that another process began.

    Everything is recorded before it is needed: `before` and `after` before the first write of the switch, `failure`
    before the first write of the rollback.
    """

    before: InForce | None = Field(default=None, description="In force before the switch.")
    after: InForce | None = Field(default=None, description="Put in force by the switch; a part that is None stays.")
    base: int | None = Field(default=None, description="The last batch before the switch's first one.")
    was_alive: bool | None = Field(default=None, description="Whether a driver ran when the operation began.")
    was_running: bool | None = Field(default=None, description="Whether the job was to run when the operation began.")
    stopping: bool = Field(default=False, description="The driver was asked to stop: a failure starts it again.")
    savepoint: str | None = Field(default=None, description="Held in use until the end.")
    incarnation: str | None = Field(default=None, description="The driver that it started last.")
    failure: ErrorInfo | None = Field(default=None, description="Why it is rolled back.")
    undone: str = Field(default="", description="What its rollback put in force, in words.")

    # Restores
    cut: dict[str, int] = Field(default_factory=dict, description="The first version to cut off, by damaged table.")
    versions: dict[str, int | None] = Field(
        default_factory=dict, description="At the switch, of the tables that the restore puts back."
    )

    # Rollouts
    effect: str = Field(default="", description="The largest effect of the changes.")
    waits: bool | None = Field(default=None, description="Whether the job waited for its source table.")
    edited: bool = Field(default=False, description="The module was edited, which a rollback can't undo.")

    # Rescales
    was: Parallelism | None = None
    to: Parallelism | None = None
    over: Parallelism | None = Field(default=None, description="What the YAML said at the precheck.")
    critical: list[str] = Field(default_factory=list, description="Health rules that were critical before.")
    backlog: int | None = Field(default=None, description="Left to read before the stop.")
    offline: str = Field(default="", description="Why the job is stopped first although online was asked for.")
    proof: dict[str, dict[str, Any]] | None = Field(default=None, description="The states to compare after the start.")
    unproved: bool = Field(default=False, description="These are the only digests of the copy that is in force.")
    state_rows: int | None = None
    stopped_at: datetime | None = None
    downtime_s: float | None = None
    back_base: int | None = Field(default=None, description="The old checkpoint's last batch, before it starts again.")
    approved_by: str = ""
    approved: str = Field(default="", description="The approved change in words.")
    stop_timeout: float | None = None
    health_timeout: float | None = None

    @property
    def generation(self) -> int:
        """The generation that the switch put in force, or left in force."""
        for one in (self.after, self.before):
            if one is not None and one.checkpoint is not None:
                return one.checkpoint.generation
        return 1


class Operation(_Record):
    """A change of a job in several steps, such as a restore. A job has at most one at a time."""

    id: str
    kind: Literal["restore", "rollout", "rescale"]
    job: str
    by: str
    params: dict[str, Any] = Field(description="The requested parameters.")
    plan: OperationPlan = Field(default_factory=OperationPlan)
    state: OperationState = OperationState.RUNNING
    started_at: datetime
    ended_at: datetime | None = None
    seen_at: datetime = Field(description="The last sign of life of its process.")
    process: ProcessRef | None = Field(description="The process that performs it; None: that process has released it.")
    steps: list[Step] = Field(default_factory=list)
    error: ErrorInfo | None = None


class Cancel(_Record):
    """A request to roll an operation back."""

    operation: str
    by: str
    at: datetime
