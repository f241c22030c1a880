"""Delta's log and the checkpoint's logs on disk: of two who write the same entry one fails, and writes over nothing.

A local rename writes over what is there. Spark's and Delta's own classes look before it, as does the file system of
Hive's that Spark's jars bring: a race of many shows what comes between.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from streamwarden.spark.session import BASE

pytestmark = pytest.mark.spark

WRITERS = 8
ROUNDS = 30


class Classes:
    """What a session's settings name, each made anew for each writer, as if each had a JVM of its own."""

    def __init__(self, spark: SparkSession) -> None:
        self.jvm: Any = spark._jvm
        self.configuration = self.jvm.org.apache.hadoop.conf.Configuration()
        self.files, self.log = (
            spark.conf.get(name)
            for name in ("spark.sql.streaming.checkpointFileManagerClass", "spark.delta.logStore.file.impl")
        )

    def path(self, path: Path) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(str(path))

    def log_store(self) -> Any:
        made: Any = self.jvm
        for part in str(self.log).split("."):
            made = getattr(made, part)
        return made(self.configuration)

    def file_manager(self, folder: Path) -> Any:
        made: Any = self.jvm
        for part in str(self.files).split("."):
            made = getattr(made, part)
        return made(self.path(folder), self.configuration)

    def lines(self, *lines: str) -> Any:
        made = self.jvm.java.util.ArrayList()
        for line in lines:
            made.add(line)
        return made.iterator()

    def read(self, path: Path) -> bytes:
        """As Spark reads it, which compares Hadoop's checksums if there are any."""
        stream = self.file_manager(path.parent).open(self.path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()


@pytest.fixture
def classes(spark: SparkSession) -> Classes:
    return Classes(spark)


def refused(write: Callable[[], None], exception: str) -> bool:
    try:
        write()
    except Py4JJavaError as error:
        assert exception in str(error), error
        return True
    return False


def test_sessions_have_them(spark: SparkSession) -> None:
    for name in ("spark.sql.streaming.checkpointFileManagerClass", "spark.delta.logStore.file.impl"):
        assert spark.conf.get(name) == BASE[name] and BASE[name].startswith("streamwarden.")


def test_a_commit_that_came_while_another_was_written_stays(classes: Classes, tmp_path: Path) -> None:
    """The first look has come before: it reads its actions from a pipe, and goes on with them later."""
    version, pipe = tmp_path / "00000000000000000003.json", tmp_path / "pipe"
    os.mkfifo(pipe)

    def commit() -> None:
        reader = classes.jvm.java.io.BufferedReader(classes.jvm.java.io.FileReader(str(pipe)))
        store = classes.log_store()
        store.write(classes.path(version), reader.lines().iterator(), False, classes.configuration)

    with ThreadPoolExecutor(1) as thread:
        paused = thread.submit(refused, commit, "java.nio.file.FileAlreadyExistsException")
        with pipe.open("w") as actions:
            actions.write("{}\n")
            actions.flush()
            version.write_text("a successor's\n")
            actions.write("{}\n")
        assert paused.result(60)
    assert classes.read(version) == b"a successor's\n"
    pipe.unlink()
    assert [path.name for path in tmp_path.iterdir()] == [version.name], "nothing is left beside it"


@pytest.mark.long
def test_of_many_who_commit_a_version_one_does(classes: Classes, tmp_path: Path) -> None:
    def commit(writer: int, version: Path) -> None:
        begin.wait()
        lines = classes.lines(f"writer {writer}", "a second line")
        classes.log_store().write(classes.path(version), lines, False, classes.configuration)

    begin = Barrier(WRITERS)
    for number in range(ROUNDS):
        version = tmp_path / f"{number:020}.json"
        with ThreadPoolExecutor(WRITERS) as threads:
            tries = [
                threads.submit(refused, lambda w=writer, v=version: commit(w, v), "java.nio.file.FileAlreadyExists")
                for writer in range(WRITERS)
            ]
        (winner,) = [writer for writer, tried in enumerate(tries) if not tried.result()]
        assert classes.read(version) == f"writer {winner}\na second line\n".encode()
    classes.log_store().write(classes.path(version), classes.lines("meant to"), True, classes.configuration)
    assert classes.read(version) == b"meant to\n"


@pytest.mark.long
@pytest.mark.ci
def test_of_many_who_write_an_entry_of_a_checkpoints_log_one_does(classes: Classes, tmp_path: Path) -> None:
    def write(writer: int, entry: Path) -> None:
        out = classes.file_manager(tmp_path).createAtomic(classes.path(entry), False)
        out.write(b"writer %d" % writer)
        begin.wait()
        out.close()

    begin = Barrier(WRITERS)
    for number in range(ROUNDS):
        entry = tmp_path / str(number)
        with ThreadPoolExecutor(WRITERS) as threads:
            tries = [
                threads.submit(refused, lambda w=writer, e=entry: write(w, e), "FileAlreadyExistsException")
                for writer in range(WRITERS)
            ]
        (winner,) = [writer for writer, tried in enumerate(tries) if not tried.result()]
        assert classes.read(entry) == b"writer %d" % winner
    assert len(list(tmp_path.iterdir())) == ROUNDS


def test_an_entry_is_there_whole_or_not_at_all(classes: Classes, tmp_path: Path) -> None:
    files, entry = classes.file_manager(tmp_path), tmp_path / "offsets" / "0"
    cancelled = files.createAtomic(classes.path(entry), False)
    cancelled.write(b"half")
    cancelled.cancel()
    cancelled.close()
    assert not entry.exists()
    # The folder is made where it is missing, as Spark's own does.
    first = files.createAtomic(classes.path(entry), False)
    first.write(b"first")
    first.close()
    assert classes.read(entry) == b"first"
    # An entry again after it was removed, though the checksums that Hadoop wrote for the first are there.
    entry = tmp_path / "offsets" / "1"
    renamed = files.createAtomic(classes.path(entry), True)
    renamed.write(b"of a state file")
    renamed.close()
    assert classes.read(entry) == b"of a state file" and entry.with_name(".1.crc").exists()
    entry.unlink()
    third = files.createAtomic(classes.path(entry), False)
    third.write(b"third")
    third.close()
    assert classes.read(entry) == b"third"


@pytest.mark.long
def test_a_querys_logs_and_its_tables_are_written_by_them(spark: SparkSession, tmp_path: Path) -> None:
    rows, out, checkpoint = (str(tmp_path / name) for name in ("rows", "out", "checkpoint"))
    spark.range(3).write.format("delta").save(rows)

    def run() -> Any:
        stream = spark.readStream.format("delta").load(rows).writeStream.format("delta")
        query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(out)
        query.awaitTermination()
        return query

    run()
    spark.range(3, 5).write.format("delta").mode("append").save(rows)
    run()
    found = spark.read.format("delta").load(out)
    assert sorted(row.id for row in found.collect()) == [0, 1, 2, 3, 4]
    # Linked, and not renamed: nothing that Hadoop writes is beside.
    for folder in (
        tmp_path / "checkpoint" / "offsets",
        tmp_path / "checkpoint" / "commits",
        tmp_path / "out/_delta_log",
    ):
        assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [], folder
