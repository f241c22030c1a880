"""Building a Spark session: Delta, UTC, local files for jars, and settings that suit machines of any size."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from streamwarden.spark import class_archive, conditional_put, quick_py4j
from streamwarden.spark.conditional_put import DISK_CHECKPOINT_FILE_MANAGER, DISK_LOG_STORE
from streamwarden.spark.jars import find_java, require
from streamwarden.spark.s3 import S3Server, s3_settings

__all__ = ["BASE", "build_session"]

# The settings that every session of ours has, each with its reason.
BASE: dict[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # One meaning for every timestamp, whatever the machine's zone.
    "spark.sql.session.timeZone": "UTC",
    # Of Python workers, here and on a cluster: what they take from a timestamp has no zone, and is by their clock.
    "spark.executorEnv.TZ": "UTC",
    # Its lines get mixed into the logs.
    "spark.ui.showConsoleProgress": "false",
    # 50 tasks to read a table's log of a few kilobytes. Each generates code for a hundred columns, which takes longer
    # than the rows do: one is the fastest up to tables of 100,000s of files. A profile may say more.
    "spark.databricks.delta.snapshotPartitions": "1",
    # The defaults start a process for every readlink and chmod of a local file, 64 in a batch with two partitions of
    # state; with those that these two extend it is 17. All of them write under another name and rename, which writes
    # over what is there; these link, and so one of two writers fails.
    "spark.sql.streaming.checkpointFileManagerClass": DISK_CHECKPOINT_FILE_MANAGER,
    "spark.delta.logStore.file.impl": DISK_LOG_STORE,
    # The wheel brings the JVM the Python workers belong to; loopback by default.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # On by default in Spark 4.2, and there a plain Python UDF over a table's columns hangs: worker and JVM wait for
    # each other, and the batch neither ends nor fails.
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
}


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
) -> SparkSession:
    """Start a JVM, or reuse this process's one, with a session that reads and writes Delta.

    Parameters
    ----------
    name
        The application's name.
    master
        A Spark master: ``local[2]``, ``spark://host:7077``.
    memory
        JVM heap of the driver (and of each executor), as Spark writes it: ``1g``.
    settings
        Further Spark settings; they win over the defaults of this module.
    java_options
        Further options for the driver's JVM.
    s3
        The S3 server that ``s3a://`` addresses are on; without it they can't be read. Its jars load only then: a
        session on local disk starts no slower for them.
    kafka
        Whether it is to read Kafka. Its jars are added to a session and not to the class path, for which there is an
        archive of classes.
    archived
        Whether the JVM may take its classes from the archive that set-up made. Only a local one can: the class path of
        a cluster's is not known.

    Raises
    ------
    StreamwardenError
        ``JAVA_MISSING`` or ``JAR_MISSING``.
    """
    find_java()
    quick_py4j.install()
    jars = [*(require("s3") if s3 is not None else require()), conditional_put.jar()]
    added = [path for path in require("kafka") if path not in jars] if kafka else []
    # PySpark starts Python workers by these; without them transformWithState's driver-side worker takes any `python3`.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name).master(master)
    merged = {**BASE, **(s3_settings(s3) if s3 is not None else {}), **(settings or {})}
    if master.startswith("local"):
        # On the class path as they lie: spark.jars would copy them at every start.
        merged["spark.driver.extraClassPath"] = os.pathsep.join(str(path) for path in jars)
    else:
        added = [*jars, *added]
    if added:
        merged["spark.jars"] = ",".join(path.as_uri() for path in added)
    merged["spark.driver.memory"] = memory
    merged["spark.executor.memory"] = memory
    # A small heap collects faster without parallel threads than with them; two-core machines have none to spare.
    options = "-XX:+UseSerialGC"
    if archived and master.startswith("local"):
        options = f"{options} {class_archive.java_options('s3' if s3 is not None else '')}".rstrip()
    options = f"{options} {java_options}".rstrip()
    merged["spark.driver.extraJavaOptions"] = f"{options} {merged.get('spark.driver.extraJavaOptions', '')}".strip()
    for key, value in merged.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
