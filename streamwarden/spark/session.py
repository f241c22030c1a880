"""Build a Spark session: Delta, UTC, local jars, and settings for machines of any size."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Literal

from pyspark.sql import SparkSession

from streamwarden.spark import class_archive, conditional_put, quick_py4j
from streamwarden.spark.conditional_put import DISK_CHECKPOINT_FILE_MANAGER, DISK_LOG_STORE
from streamwarden.spark.jars import find_java, require, spark_jars
from streamwarden.spark.s3 import S3Server, s3_settings

__all__ = ["BASE", "build_session", "join_session", "start_settings"]

# Settings of all our sessions, each with its reason.
BASE: dict[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Timestamps have one meaning, whatever the machine's zone.
    "spark.sql.session.timeZone": "UTC",
    # For Python workers, here and on a cluster: they get timestamps without a zone, in their local time.
    "spark.executorEnv.TZ": "UTC",
    # The progress bar would mix with the logs.
    "spark.ui.showConsoleProgress": "false",
    # The default is 50 tasks for a table log of a few kilobytes. Each generates code for a hundred columns, which takes
    # longer than the rows. One task is fastest up to tables of 100,000s of files. A profile may set more.
    "spark.databricks.delta.snapshotPartitions": "1",
    # The defaults start a process for every readlink and chmod of a local file: 64 in a batch with two state
    # partitions. The classes that these two extend start 17. All of them overwrite an existing file by a rename; these
    # two create a hard link, so that one of two writers fails.
    "spark.sql.streaming.checkpointFileManagerClass": DISK_CHECKPOINT_FILE_MANAGER,
    "spark.delta.logStore.file.impl": DISK_LOG_STORE,
    "spark.ui.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Default in Spark 4.2, but it hangs a plain Python UDF over a table's columns: worker and JVM wait for each other,
    # and the batch neither ends nor fails.
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
}

# The wheel includes the JVM that Python workers connect to; loopback by default. In cluster deploy mode, Spark takes
# the name of the machine that the cluster has chosen.
_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

# A task has one core, and polars starts a thread for each of the machine's: keyed state took a fifth more time.
_POLARS = "POLARS_MAX_THREADS"


def build_session(
    name: str,
    *,
    master: str,
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
    java_options: str = "",
    s3: S3Server | None = None,
    kafka: bool = False,
    archived: bool = True,
    same_image: bool = False,
) -> SparkSession:
    """Start a JVM, or reuse the process's JVM, with a session for Delta.

    Parameters
    ----------
    name
        The application's name.
    master
        A Spark master: ``local[2]``, ``spark://host:7077``.
    memory
        JVM heap of the driver (and of each executor), in Spark's notation: ``1g``.
    settings
        Further Spark settings; they override this module's defaults.
    java_options
        Further options for the driver's JVM.
    s3
        The S3 server of ``s3a://`` addresses; without it they can't be read. Its jars load only then, so that sessions
        on local disk start faster, or if the only class archive is that of S3's class path.
    kafka
        Whether the session reads Kafka. Its jars are added to the session and not to the class path, which the class
        archive depends on.
    archived
        Whether the JVM may use the class archive made at set-up. Not on a cluster whose class path is unknown.
    same_image
        Whether a cluster's executors find the jars and the class archive where this process finds them. Then they load
        them from there, and start sooner.

    Raises
    ------
    StreamwardenError
        ``JAVA_MISSING`` or ``JAR_MISSING``.
    """
    find_java()
    # PySpark starts Python workers with it; otherwise transformWithState's driver-side worker uses any `python3`.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    started = start_settings(
        master=master,
        memory=memory,
        settings={**_LOOPBACK, **(settings or {})},
        java_options=java_options,
        s3=s3,
        kafka=kafka,
        archived=archived,
        same_image=same_image,
    )
    return _open(name, {"spark.master": master, **started})


def join_session(name: str, settings: Mapping[str, str], s3: S3Server | None) -> SparkSession:
    """Start a session in the JVM that has started this process, as in cluster deploy mode.

    What a JVM takes only at its start was settled by the submission; see :func:`start_settings`.
    """
    # The submission names the executors' Python, whose path may differ from this one's.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return _open(name, _session_settings(settings, s3))


def start_settings(
    *,
    master: str,
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
    java_options: str = "",
    s3: S3Server | None = None,
    kafka: bool = False,
    archived: bool = True,
    same_image: bool = False,
    deploy_mode: Literal["client", "cluster"] = "client",
) -> dict[str, str]:
    """Return the settings with which a session's JVM starts; the parameters are those of :func:`build_session`.

    Parameters
    ----------
    deploy_mode
        ``cluster``: for `spark-submit`, which has a cluster start the JVM. With `same_image`, jars have the scheme
        ``local:``, which is read on each machine; otherwise `spark-submit` sends them.

    Raises
    ------
    StreamwardenError
        ``JAR_MISSING``.
    """
    local = master.startswith("local")
    # Directly on the class path: spark.jars would copy the jars at every start.
    on_path = local or same_image
    use = "s3" if s3 is not None else ""
    if archived and on_path:
        use = class_archive.class_path(use)
    jars = [*require(use), conditional_put.jar()]
    added = [path for path in require("kafka") if path not in jars] if kafka else []
    merged = _session_settings(settings, s3)
    if on_path:
        # Spark's own jars too, one by one: the class archive fits only a class path that begins as its own did. Spark
        # adds its jars by a wildcard, in the folder's order, and in cluster deploy mode after a folder of settings.
        merged["spark.driver.extraClassPath"] = os.pathsep.join(str(path) for path in [*jars, *spark_jars()])
    else:
        added = [*jars, *added]
    if added:
        there = deploy_mode == "cluster" and same_image
        merged["spark.jars"] = ",".join(f"local://{path}" if there else path.as_uri() for path in added)
    merged["spark.driver.memory"] = memory
    merged["spark.executor.memory"] = memory
    # A small heap collects faster without parallel threads; two-core machines have none to spare.
    options = "-XX:+UseSerialGC"
    if archived and on_path:
        options = f"{options} {class_archive.java_options(use)}".rstrip()
    if same_image and not local:
        merged["spark.executor.extraClassPath"] = merged["spark.driver.extraClassPath"]
        own = merged.get("spark.executor.extraJavaOptions", "")
        merged["spark.executor.extraJavaOptions"] = f"{options} {own}".strip()
    options = f"{options} {java_options}".rstrip()
    merged["spark.driver.extraJavaOptions"] = f"{options} {merged.get('spark.driver.extraJavaOptions', '')}".strip()
    return merged


def _session_settings(settings: Mapping[str, str] | None, s3: S3Server | None) -> dict[str, str]:
    """Return the settings that do not depend on how the JVM is started."""
    # Spark makes this folder, and puts nothing into it: no job has a table by name. Its default is the current folder.
    warehouse = f"{tempfile.gettempdir()}/streamwarden-warehouse-{os.getuid()}"
    return {
        "spark.sql.warehouse.dir": warehouse,
        **BASE,
        **(s3_settings(s3) if s3 is not None else {}),
        f"spark.executorEnv.{_POLARS}": os.environ.get(_POLARS, "1"),
        **(settings or {}),
    }


def _open(name: str, settings: Mapping[str, str]) -> SparkSession:
    quick_py4j.install()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault(_POLARS, "1")
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
