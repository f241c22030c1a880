"""A profile: one place to run, in ``config/profiles/NAME.yaml``."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from streamwarden.control.durations import Duration
from streamwarden.control.spec import ResourceSpec

__all__ = ["JobOverride", "LogSpec", "Profile", "S3Spec"]


class LogSpec(BaseModel):
    """Log files of a driver, one set an incarnation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_bytes: int = Field(default=10_000_000, ge=10_000, description="10 MB: opens in any editor.")
    backups: int = Field(default=5, ge=1, description="Rotated files kept for each log.")


class JobOverride(BaseModel):
    """What a place may say differently for every job that runs there: pace and size, never meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    interval: Duration | None = Field(default=None, description="Replaces each job's trigger.interval.")
    partitions: int | None = Field(default=None, ge=1, le=4096, description="Replaces each job's state.partitions.")
    resources: ResourceSpec | None = Field(default=None, description="Replaces each job's resources.")
    options: dict[str, dict[str, object]] = Field(
        default_factory=dict, description="JOB: {option: value}, laid over that job's options."
    )


class S3Spec(BaseModel):
    """Documents, checkpoints, savepoints and tables in a bucket of S3. Credentials come from the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bucket: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", description="The bucket. It must exist; it is never made."
    )
    prefix: str = Field(
        default="",
        pattern=r"^([\w=-][\w.=-]*(/[\w=-][\w.=-]*)*)?$",
        description="What all keys begin with, as `team/streams`, so that places can share a bucket.",
    )
    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[\w.-]+(:\d+)?$",
        description="`http(s)://host:port` of a server that is not Amazon's. Where none is given,"
        " AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL if one is set, else Amazon's.",
    )
    region: str | None = Field(
        default=None, description="Where none is given, AWS_REGION or AWS_DEFAULT_REGION if one is set, else us-east-1."
    )


class Profile(BaseModel):
    """Where documents and tables are, and how drivers run there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str = ""
    root: str = Field(
        description="Folder that holds control/, checkpoints/, tables/, landing/ and logs/. A relative one counts from"
        " the folder that holds config/. STREAMWARDEN_ROOT replaces it. With `s3` it holds landing/, logs/ and"
        " quality/ only."
    )
    s3: S3Spec | None = Field(default=None, description="A bucket for all but the landing folder, logs and reports.")
    master: str = Field(default="local[{cores}]", description="Spark master; {cores} is the job's resources.cores.")
    spark: dict[str, str] = Field(default_factory=dict, description="Spark settings for every job in this place.")
    heartbeat: Duration = Field(
        default=timedelta(seconds=2), description="How often a driver writes its heartbeat and renews its lease. 2s."
    )
    lease: Duration = Field(
        default=timedelta(seconds=20),
        description="How long a lease lasts unrenewed, and a driver may be silent. 20s: ten heartbeats, so that a long"
        " garbage collection or a loaded machine does not look like a death.",
    )
    jobs: JobOverride = JobOverride()
    logs: LogSpec = LogSpec()

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.lease < 3 * self.heartbeat:
            raise ValueError("lease must be at least three heartbeats: one lost write must not cost a job its lease")
        return self
