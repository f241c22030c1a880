"""Archive of Spark's loaded classes, made once at set-up. A driver's JVM maps it instead of loading each class.

It uses the JVM's class data sharing (JEP 350, "Dynamic CDS Archives"). Starts, recoveries, restores and rescales all
wait for these classes. If Java's version or the class path differ from the archive's, the JVM ignores it: a missing or
old archive only costs time.

``python -m streamwarden.spark.class_archive`` makes the archives anew, for instance after an update of Java. With the
argument ``s3`` it makes only that one, and all sessions take S3's class path: an image is smaller by 200 MB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from streamwarden.spark.jars import jar_dir
from streamwarden.spark.java_options import quoted

__all__ = ["archive_path", "build", "class_path", "java_options"]

_KINDS = ("", "s3")
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Otherwise the JVM would print differences to the console at each start, among the job's own output."""

_TIMEOUT_S = 600


@dataclass(frozen=True)
class _NoServer:
    """Only puts S3's jars on the class path; nothing connects to it."""

    endpoint: str | None = "http://127.0.0.1:9"
    region: str = "us-east-1"


def archive_path(use: str = "") -> Path:
    """Return the archive's path for a class path: that of local files, or ``s3`` for the one with S3's jars."""
    return jar_dir() / (f"classes-{use}.jsa" if use else "classes.jsa")


def class_path(use: str) -> str:
    """Return the class path that a session takes: that of its own use, or S3's if there is an archive of that alone."""
    only = archive_path("s3").is_file() and not archive_path().is_file()
    return "s3" if only else use


def java_options(use: str = "") -> str:
    """Return the JVM options that use the archive; empty if there is no archive."""
    path = archive_path(use)
    return f"{quoted(f'-XX:SharedArchiveFile={path}')} {_QUIET}" if path.is_file() else ""


def build(use: str = "") -> Path:
    """Make an archive of the classes that a small stateful job over Delta loads.

    Raises
    ------
    subprocess.CalledProcessError
        With the process's output. A JVM without dynamic archives fails like this.
    """
    path = archive_path(use)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".classes-") as work:
        made = Path(work) / path.name
        # In a separate process: the JVM writes the archive when it exits.
        command = [sys.executable, "-m", "streamwarden.spark.class_archive", "--record", str(made), use]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
        made.replace(path)
    return path


def _record(archive: Path, use: str) -> None:
    # Imported here: the session module imports this module.
    from streamwarden.spark.session import BASE, build_session

    files = "spark.sql.streaming.checkpointFileManagerClass"
    session = build_session(
        "streamwarden-classes",
        master="local[2]",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            # S3's own file manager refuses the local folders used here.
            files: BASE[files],
        },
        java_options=f"{quoted(f'-XX:ArchiveClassesAtExit={archive}')} {_QUIET}",
        s3=_NoServer() if use == "s3" else None,
        archived=False,
    )
    with tempfile.TemporaryDirectory(prefix="streamwarden-classes-") as folder:
        _stream(session, Path(folder))
        gateway = session.sparkContext._gateway
        assert gateway is not None
        jvm = gateway.proc
        session.stop()
        jvm.stdin.close()
        jvm.wait(_TIMEOUT_S)


def _stream(session: SparkSession, folder: Path) -> None:
    rows, counts = str(folder / "rows"), str(folder / "counts")
    numbers = session.range(100).selectExpr("id", "id % 3 AS key", "timestamp_seconds(id) AS at")
    numbers.write.format("json").save(f"{folder}/json")
    numbers.write.format("delta").save(rows)

    def upsert(batch: DataFrame, number: int) -> None:
        batch.persist()
        if number == 0:
            batch.write.format("delta").option("txnAppId", "a").option("txnVersion", number).save(counts)
        merge = DeltaTable.forPath(batch.sparkSession, counts).alias("t").merge(batch.alias("s"), "t.key = s.key")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        batch.unpersist()

    counted = (
        session.readStream.format("delta")
        .load(rows)
        .withWatermark("at", "1 minute")
        .groupBy("key")
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .foreachBatch(upsert)
        .trigger(availableNow=True)
        .start()
    )
    counted.awaitTermination()
    files = (
        session.readStream.schema(numbers.schema)
        .json(f"{folder}/json")
        .dropDuplicates(["id"])
        .writeStream.option("checkpointLocation", f"{folder}/files")
        .format("delta")
        .trigger(availableNow=True)
        .start(f"{folder}/copied")
    )
    files.awaitTermination()


def main(arguments: list[str]) -> int:
    """Make all archives, or the named ones, and print them; with ``--required``, fail if one cannot be made."""
    if arguments[:1] == ["--record"]:
        _record(Path(arguments[1]), arguments[2])
        return 0
    failed = 0
    for use in [use for use in _KINDS if use in arguments] or _KINDS:
        began = time.monotonic()
        try:
            path = build(use)
        except (OSError, subprocess.SubprocessError) as error:
            # Everything works without the archive, with a slower start. An image is built once and started often.
            sys.stderr.write(f"classes: no archive for {use or 'local files'}: {error}\n")
            sys.stderr.write(str(getattr(error, "stderr", "") or "")[-2000:])
            failed += 1
            continue
        size = path.stat().st_size / 2**20
        sys.stdout.write(f"classes: {path.name}, {size:.0f} MiB in {time.monotonic() - began:.0f} s\n")
    return 1 if failed and "--required" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
