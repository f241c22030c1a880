"""A job's Spark session, and its settings."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from streamwarden.driver.executors import executor_settings
from streamwarden.driver.logs import write_log4j
from streamwarden.model.profile import Profile
from streamwarden.model.spec import JobSpec
from streamwarden.spark.cluster_mode import is_cluster_mode
from streamwarden.spark.java_options import SHORT_LIVED, quoted
from streamwarden.spark.session import build_session, join_session, start_settings
from streamwarden.store.workspace import Workspace

__all__ = ["PROVIDERS", "adapt_session", "checkpoint_session", "cluster_settings", "start_session", "temporary"]

PROVIDERS = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
"""State store providers by the spec's names of backends."""

_EXIT_WITHOUT_MEMORY = "-XX:+ExitOnOutOfMemoryError"


def start_session(workspace: Workspace, spec: JobSpec, incarnation: str, *, owner: str | None = None) -> SparkSession:
    """Start a JVM with a session for a job; in cluster deploy mode, start the session in the JVM that is there.

    Parameters
    ----------
    workspace, spec
        The place and the job.
    incarnation
        The incarnation whose logs and scratch folder the session uses.
    owner
        Whose incarnation it is; default the job's.
    """
    if is_cluster_mode():
        return join_session(_name(spec), _settings(workspace.profile, spec), workspace.s3)
    # A standby driver works on state for an operation. Where a cluster starts drivers, it never becomes one itself.
    profile = _on_this_machine(workspace.profile) if workspace.profile.deploys_to_cluster else workspace.profile
    logs = workspace.log_dir(owner or spec.name, incarnation)
    scratch = workspace.scratch_dir(owner or spec.name, incarnation)
    return build_session(
        _name(spec),
        master=profile.master.format(cores=spec.resources.cores),
        memory=spec.resources.memory,
        settings=_settings(profile, spec),
        java_options=f"{write_log4j(logs, profile.logs)} {_ends_itself(logs)} {temporary(scratch)}",
        s3=workspace.s3,
        kafka=spec.uses_kafka,
        same_image=profile.same_image,
    )


def cluster_settings(workspace: Workspace, spec: JobSpec) -> dict[str, str]:
    """Return the settings with which a cluster starts a job's JVM, for `spark-submit` in cluster deploy mode.

    The cluster has its own places for logs and temporary files.
    """
    profile = workspace.profile
    return {
        "spark.app.name": _name(spec),
        # As in spark.log. A cluster keeps a container's output whole: at INFO, Spark would fill its disk within weeks.
        "spark.log.level": "WARN",
        "spark.executor.syncLogLevel.enabled": "true",
        **start_settings(
            master=profile.master,
            memory=spec.resources.memory,
            settings=_settings(profile, spec),
            # Of the driver's JVM; `in_utc` comes too late for it.
            java_options=f"-Duser.timezone=UTC {_EXIT_WITHOUT_MEMORY}",
            s3=workspace.s3,
            kafka=spec.uses_kafka,
            same_image=profile.same_image,
            deploy_mode="cluster",
        ),
    }


def _name(spec: JobSpec) -> str:
    return f"streamwarden {spec.name}"


def checkpoint_session(workspace: Workspace, spec: JobSpec, scratch: Path) -> SparkSession:
    """Start a session with a job's settings that works on checkpoints on this machine, wherever the job runs."""
    return build_session(
        f"{_name(spec)} checkpoint",
        master="local[2]",
        memory=spec.resources.memory,
        settings=_settings(_on_this_machine(workspace.profile), spec),
        java_options=f"{SHORT_LIVED} {temporary(scratch)}",
        s3=workspace.s3,
        kafka=spec.uses_kafka,
    )


def adapt_session(session: SparkSession, workspace: Workspace, spec: JobSpec) -> None:
    """Give a session that was started for another job of the same size the settings of this one."""
    for name, value in _settings(workspace.profile, spec).items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)


def _on_this_machine(profile: Profile) -> Profile:
    """Return a profile without what is meant for a cluster."""
    if profile.master.startswith("local"):
        return profile
    return profile.model_copy(update={"master": "local[{cores}]", "spark": {}})


def _settings(profile: Profile, spec: JobSpec) -> dict[str, str]:
    settings = {
        # The job's settings override the profile's; the spec's own fields override both.
        **profile.spark,
        **spec.spark,
        "spark.sql.shuffle.partitions": str(spec.state.partitions),
        "spark.sql.streaming.stateStore.providerClass": PROVIDERS[spec.state.backend],
        "spark.sql.streaming.minBatchesToRetain": str(spec.state.min_batches_to_retain),
        "spark.sql.streaming.multipleWatermarkPolicy": spec.watermark_policy,
        # Interval of the event that reports no new data; with Spark's default of 10 s, a restore would wait for it.
        "spark.sql.streaming.noDataProgressEventInterval": "2000",
    }
    if spec.state.backend == "rocksdb":
        changelog = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
        settings[changelog] = str(spec.state.changelog_enabled).lower()
    return {**settings, **executor_settings(profile.master, spec.resources)}


def temporary(scratch: Path) -> str:
    """Return the option that sets the JVM's temporary folder.

    Spark's temporary files, including working state, are there too, unless a profile sets ``spark.local.dir``: a
    cluster's executors would use that setting as well.
    """
    return quoted(f"-Djava.io.tmpdir={scratch}")


def _ends_itself(logs: Path) -> str:
    """Return options that make a JVM exit if it can't continue, with its last output among the logs.

    A JVM that ran out of heap may have lost any of its threads: it may look alive and do nothing.
    """
    # The JVM replaces %p by its process id, even in a folder's name.
    folder = str(logs).replace("%", "%%")
    return f"{_EXIT_WITHOUT_MEMORY} {quoted(f'-XX:ErrorFile={folder}/hs_err_%p.log')}"
