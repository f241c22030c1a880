"""A profile: settings of one place to run, in ``config/profiles/NAME.yaml``."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from streamwarden.model.durations import Duration
from streamwarden.model.spec import ResourceSpec

__all__ = [
    "JobOverride",
    "LogSpec",
    "MetricsSpec",
    "OtlpSpec",
    "Profile",
    "ProgressTableSpec",
    "PrometheusSpec",
    "S3Spec",
]


class LogSpec(BaseModel):
    """Log files of a driver, one set an incarnation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_bytes: int = Field(default=10_000_000, ge=10_000, description="10 MB: opens in any editor.")
    backups: int = Field(default=5, ge=1, description="Rotated files kept for each log.")
    incarnations: int = Field(
        default=100,
        ge=20,
        description="Runs of each job's driver whose logs and control documents housekeeping keeps, the newest. 100: a"
        " bad day's restarts. At least 20: the advisor looks so far back.",
    )
    format: Literal["text", "json"] = Field(
        default="text",
        description="Of driver.log. text: for people. json: one object a line, with job, incarnation and the batch in"
        " flight, for a log store; `streamwarden logs` shows it as text all the same.",
    )


class PrometheusSpec(BaseModel):
    """An endpoint of each driver that Prometheus scrapes: plain HTTP, without a login, and with no row's data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Where it listens. 127.0.0.1: who reaches the port reads it, so only this machine may.",
    )
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="0: any free port; `streamwarden targets` lists them for Prometheus. Every driver of the place"
        " needs one of its own.",
    )
    ports: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="How many ports from `port` on are tried, so that a fixed list can be scraped. If all are taken"
        " the driver warns, and runs without the endpoint.",
    )

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.port == 0 and self.ports != 1:
            raise ValueError("ports needs a port to count from")
        if self.port + self.ports - 1 > 65535:
            raise ValueError("port + ports goes beyond 65535")
        return self


class OtlpSpec(BaseModel):
    """Metrics pushed to a collector by OTLP over HTTP. Headers and certificates come from OTEL_* variables."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/]+(/\S*)?$",
        description="The collector, `http(s)://host:port`; `/v1/metrics` is added. Where none is given,"
        " OTEL_EXPORTER_OTLP_METRICS_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318.",
    )
    interval: Duration = Field(
        default=timedelta(seconds=15),
        description="How often. 15s: an operator sees a batch that hangs within a quarter of a minute.",
    )
    timeout: Duration = Field(
        default=timedelta(seconds=5),
        description="How long one export may take, its repetitions included; then its figures wait for the next. 5s.",
    )

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.interval < timedelta(milliseconds=100) or self.timeout < timedelta(milliseconds=100):
            raise ValueError("interval and timeout must be at least 100ms")
        return self


class MetricsSpec(BaseModel):
    """Metrics of each driver; see docs/observability.md. Both ways may be used at once. Neither can delay a batch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prometheus: PrometheusSpec | None = Field(
        default=None, description="`{}` opens an endpoint with its defaults. By default there is none."
    )
    otlp: OtlpSpec | None = Field(
        default=None,
        description="Push to a collector. By default only where OTEL_EXPORTER_OTLP_METRICS_ENDPOINT or"
        " OTEL_EXPORTER_OTLP_ENDPOINT is set, then by the standard variables alone.",
    )


class ProgressTableSpec(BaseModel):
    """The Delta table `job_progress`: one row a batch of every job; see docs/observability.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=True, description="Whether drivers write it, and housekeeping looks after it.")
    every: Duration = Field(
        default=timedelta(seconds=30),
        description="How long a batch's row may wait. 30s: each write is a file and a commit.",
    )
    batches: int = Field(
        default=20,
        ge=1,
        le=40,
        description="How many rows may wait. 20: a killed driver's are taken from its progress document, which holds"
        " its newest 50.",
    )
    keep: Duration = Field(
        default=timedelta(days=90), description="How long rows are kept. 90d: a quarter to compare with."
    )

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.every < timedelta(milliseconds=100):
            raise ValueError("every must be at least 100ms")
        if self.keep < timedelta(days=1):
            raise ValueError("keep must be at least 1d: it is applied once a day")
        return self


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
        description="Folder that holds control/, checkpoints/, tables/, landing/, logs/, quality/ and scratch/. A"
        " relative one counts from the folder that holds config/. STREAMWARDEN_ROOT replaces it. With `s3` it holds"
        " the last four only. scratch/ is where running drivers work on their state: as large, on a fast disk. Its path"
        " may have blanks, # and the like; what Spark or Delta would take for something else is refused."
    )
    s3: S3Spec | None = Field(default=None, description="A bucket for all that `root` does not keep.")
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
    metrics: MetricsSpec = MetricsSpec()
    progress_table: ProgressTableSpec = ProgressTableSpec()

    @property
    def on_cluster(self) -> bool:
        """Whether executors run elsewhere, in slots that several drivers compete for."""
        return not self.master.startswith("local")

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.lease < 3 * self.heartbeat:
            raise ValueError("lease must be at least three heartbeats: one lost write must not cost a job its lease")
        return self
