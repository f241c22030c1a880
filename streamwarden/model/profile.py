"""A profile: settings of one place to run, in ``config/profiles/NAME.yaml``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from streamwarden.model.durations import Duration
from streamwarden.model.kubernetes_spec import KubernetesSpec
from streamwarden.model.spec import ResourceSpec
from streamwarden.model.spec_base import Strict

__all__ = [
    "ENDPOINT",
    "JobOverride",
    "LogSpec",
    "MetricsSpec",
    "OtlpSpec",
    "Profile",
    "ProgressTableSpec",
    "PrometheusSpec",
    "S3Spec",
    "YarnSpec",
]


ENDPOINT = re.compile(r"https?://[\w.-]+(:\d+)?/?")
"""An S3 server's address, without a login."""


class LogSpec(Strict):
    """Log files of a driver, one set per incarnation."""

    max_bytes: int = Field(default=10_000_000, ge=10_000, description="10 MB: opens in any editor.")
    backups: int = Field(default=5, ge=1, description="Rotated files kept for each log.")
    incarnations: int = Field(
        default=100,
        ge=20,
        description="How many driver runs of each job keep their logs and control documents; housekeeping removes"
        " older ones. 100: the restarts of a bad day. At least 20: the advisor reads that many.",
    )
    format: Literal["text", "json"] = Field(
        default="text",
        description="Format of driver.log. text: for people. json: one object per line, with job, incarnation and"
        " current batch, for a log store. `streamwarden logs` shows both as text.",
    )


class PrometheusSpec(Strict):
    """An endpoint of each driver for Prometheus: plain HTTP, without a login. It shows no data of rows."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address to listen on. 127.0.0.1: anybody who reaches the port can read it, so only this"
        " machine can.",
    )
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="0: any free port; `streamwarden targets` lists them for Prometheus. Each driver of the place"
        " needs its own port.",
    )
    ports: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="How many ports are tried, from `port` on, so that a fixed list can be scraped. If all are taken,"
        " the driver logs a warning and runs without the endpoint.",
    )

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.port == 0 and self.ports != 1:
            raise ValueError("ports needs a port to count from")
        if self.port + self.ports - 1 > 65535:
            raise ValueError("port + ports goes beyond 65535")
        return self


class OtlpSpec(Strict):
    """Metrics pushed to a collector by OTLP over HTTP. Headers and certificates come from OTEL_* variables."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/]+(/\S*)?$",
        description="The collector, `http(s)://host:port`; `/v1/metrics` is added. Default:"
        " OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, then OTEL_EXPORTER_OTLP_ENDPOINT, then"
        " http://localhost:4318.",
    )
    interval: Duration = Field(
        default=timedelta(seconds=15),
        description="The interval between two exports. 15s: an operator sees a hanging batch after 15 seconds.",
    )
    timeout: Duration = Field(
        default=timedelta(seconds=5),
        description="The longest time of one export with its retries. After that, its values wait for the next"
        " export. 5s.",
    )

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.interval < timedelta(milliseconds=100) or self.timeout < timedelta(milliseconds=100):
            raise ValueError("interval and timeout must be at least 100ms")
        return self


class MetricsSpec(Strict):
    """Metrics of each driver; see docs/observability.md. Both exporters may be used at once. Neither delays a batch."""

    prometheus: PrometheusSpec | None = Field(
        default=None, description="`{}` opens an endpoint with the defaults. Default: no endpoint."
    )
    otlp: OtlpSpec | None = Field(
        default=None,
        description="Push to a collector. Default: only if OTEL_EXPORTER_OTLP_METRICS_ENDPOINT or"
        " OTEL_EXPORTER_OTLP_ENDPOINT is set, with the standard variables alone.",
    )


class ProgressTableSpec(Strict):
    """The Delta table `job_progress`: one row per batch of every job; see docs/observability.md."""

    enabled: bool = Field(default=True, description="Whether drivers write the table, and housekeeping maintains it.")
    every: Duration = Field(
        default=timedelta(minutes=5),
        description="The longest time that a batch's row may wait. 5m: each write is a file and a commit. With two a"
        " minute, a hundred jobs make 12,000 in an hour. Pages and advice read newer batches elsewhere.",
    )
    batches: int = Field(
        default=20,
        ge=1,
        le=40,
        description="How many rows may wait. 20: the rows of a killed driver are taken from its progress document,"
        " which holds the newest 50.",
    )
    keep: Duration = Field(
        default=timedelta(days=90), description="How long rows are kept. 90d: a quarter for comparisons."
    )

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.every < timedelta(milliseconds=100):
            raise ValueError("every must be at least 100ms")
        if self.keep < timedelta(days=1):
            raise ValueError("keep must be at least 1d: it is applied once a day")
        return self


class QualitySpec(Strict):
    """Reports of checks; see docs/quality.md."""

    keep: Duration = Field(
        default=timedelta(days=14),
        description="How long the folders of runs in quality/ are kept. 14d: a decision of the gate is two files, and"
        " the table quality_results has the counts for longer. The reports of held ranges are kept.",
    )

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.keep < timedelta(hours=1):
            raise ValueError("keep must be at least 1h")
        return self


class JobOverride(Strict):
    """Overrides for every job in this place: speed and size, never the meaning of a job."""

    interval: Duration | None = Field(default=None, description="Replaces each job's trigger.interval.")
    partitions: int | None = Field(default=None, ge=1, le=4096, description="Replaces each job's state.partitions.")
    resources: ResourceSpec | None = Field(default=None, description="Replaces each job's resources.")
    options: dict[str, dict[str, object]] = Field(
        default_factory=dict, description="JOB: {option: value}, overrides that job's options."
    )


class S3Spec(Strict):
    """An S3 bucket for documents, checkpoints, savepoints and tables. Credentials come from the environment."""

    bucket: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
        description="The bucket. It must exist; Streamwarden does not create it.",
    )
    prefix: str = Field(
        default="",
        pattern=r"^([\w=-][\w.=-]*(/[\w=-][\w.=-]*)*)?$",
        description="The prefix of all keys, such as `team/streams`, so that several places can share a bucket.",
    )
    endpoint: str | None = Field(
        default=None,
        pattern=f"^{ENDPOINT.pattern}$",
        description="`http(s)://host:port` of a server that is not Amazon's. Default: AWS_ENDPOINT_URL_S3, then"
        " AWS_ENDPOINT_URL, then Amazon's.",
    )
    region: str | None = Field(
        default=None, description="Default: AWS_REGION, then AWS_DEFAULT_REGION, then us-east-1."
    )


class YarnSpec(Strict):
    """A YARN cluster that starts drivers on its machines; see docs/yarn.md."""

    resource_managers: tuple[Annotated[str, StringConstraints(pattern=f"^{ENDPOINT.pattern}$")], ...] = Field(
        min_length=1,
        description="REST addresses of the ResourceManager, such as `http://host:8088`; with high availability, of all"
        " of them. Drivers are found and killed there.",
    )
    queue: str = Field(default="default", pattern=r"^[\w-][\w.-]*$", description="The queue of drivers and executors.")
    python: str | None = Field(
        default=None,
        min_length=1,
        description="The Python of the containers. It has Streamwarden and the job modules. Default: the path of the"
        " Python that submits.",
    )
    config: str | None = Field(
        default=None,
        min_length=1,
        description="The configuration folder on the cluster's machines. Default: its path where the driver is"
        " submitted.",
    )
    hadoop_conf: str | None = Field(
        default=None,
        min_length=1,
        description="The folder of yarn-site.xml and core-site.xml on the machine that submits. Default:"
        " HADOOP_CONF_DIR.",
    )
    environment: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")], ...] = Field(
        default=(),
        description="Names of environment variables that containers get from the process that submits, such as"
        " AWS_ACCESS_KEY_ID. YARN keeps the values with the application.",
    )


class Profile(Strict):
    """Where documents and tables are, and how drivers run there."""

    name: str
    description: str = ""
    root: str = Field(
        description="Folder that holds control/, checkpoints/, tables/, landing/, logs/, quality/, serving/ and"
        " scratch/. A relative path starts at the folder that holds config/. STREAMWARDEN_ROOT replaces it. With `s3`"
        " it holds only the last five. Running drivers keep their state in scratch/: use a large, fast"
        " disk. The path may have blanks, # and the like; characters that Spark or Delta would misread"
        " are refused."
    )
    s3: S3Spec | None = Field(default=None, description="A bucket for everything that `root` does not hold.")
    master: str = Field(default="local[{cores}]", description="Spark master; {cores} is the job's resources.cores.")
    same_image: bool = Field(
        default=False,
        description="Whether a cluster's workers run from the drivers' image, with jars and class archive at the same"
        " paths. Executors then load them from there, and start sooner.",
    )
    launcher: Literal["local", "host", "yarn", "kubernetes"] = Field(
        default="local",
        description="Who starts drivers. local: the process that deploys or restarts the job, on its machine. host: a"
        " driver host. That is `streamwarden host`, on any machine that shares the place. yarn: a YARN cluster, on its"
        " machines. kubernetes: a Kubernetes cluster, in pods.",
    )
    yarn: YarnSpec | None = Field(default=None, description="For `launcher: yarn`, which also needs `master: yarn`.")
    kubernetes: KubernetesSpec | None = Field(
        default=None,
        description="For `launcher: kubernetes`, which also needs `master: k8s://https://HOST:PORT` and `same_image:"
        " true`.",
    )
    spark: dict[str, str] = Field(default_factory=dict, description="Spark settings for every job in this place.")
    heartbeat: Duration = Field(
        default=timedelta(seconds=2), description="How often a driver writes its heartbeat and renews its lease. 2s."
    )
    lease: Duration = Field(
        default=timedelta(seconds=20),
        description="How long a lease lasts without renewal, and a driver may be silent. 20s: ten heartbeats. A long"
        " garbage collection or a loaded machine must not look like a dead driver.",
    )
    spares: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Warm processes on each machine, for each size of driver: a start takes one and saves the start of"
        " Spark. Default: 1 if the machine has memory for it, or else 0. None on a cluster. STREAMWARDEN_SPARES"
        " replaces it.",
    )
    jobs: JobOverride = JobOverride()
    logs: LogSpec = LogSpec()
    metrics: MetricsSpec = MetricsSpec()
    progress_table: ProgressTableSpec = ProgressTableSpec()
    quality: QualitySpec = QualitySpec()

    @property
    def on_cluster(self) -> bool:
        """Whether executors run elsewhere, in slots that several drivers compete for."""
        return not self.master.startswith("local")

    @property
    def deploys_to_cluster(self) -> bool:
        """Whether a cluster starts drivers on its own machines: Spark's cluster deploy mode."""
        return self.launcher not in ("local", "host")

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.lease < 3 * self.heartbeat:
            raise ValueError("lease must be at least three heartbeats: one lost write must not cost a job its lease")
        for launcher, block in (("yarn", self.yarn), ("kubernetes", self.kubernetes)):
            if (self.launcher == launcher) != (block is not None):
                raise ValueError(f"launcher: {launcher} and the block `{launcher}` need each other")
        if self.yarn is not None and self.master != "yarn":
            raise ValueError("launcher: yarn needs `master: yarn`")
        if self.kubernetes is not None:
            if not re.fullmatch(r"k8s://https?://[^/@]+", self.master):
                raise ValueError("launcher: kubernetes needs `master: k8s://https://HOST:PORT`, the API server")
            if not self.same_image:
                raise ValueError("same_image: pods need `true`, since they run from one image")
            if not self.root.startswith("/"):
                raise ValueError("root: pods need an absolute path, such as the image's /var/lib/streamwarden")
            if self.s3 is None and self.kubernetes.driver_template is None:
                raise ValueError("s3: pods need it, or a pod template with a volume at root that all machines share")
        return self
