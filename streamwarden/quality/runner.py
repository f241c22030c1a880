"""One run: check every suite on its whole table at a fixed Delta version.

Tables that fit are checked in memory. One Spark session checks the others.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from streamwarden.errors import StreamwardenError
from streamwarden.quality import engine
from streamwarden.quality.documents import write_run
from streamwarden.quality.opened_table import OpenedTable, TableUnreadable, judged
from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult
from streamwarden.quality.suites import Expectation, Suite, load_suites, suite_digest
from streamwarden.spark.utc import in_utc
from streamwarden.storage import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from streamwarden.quality.whole_table import WholeTable
    from streamwarden.spark.s3 import S3Server

__all__ = ["check", "own_session"]

# A check has many small jobs. A streaming job's session would work too, but more slowly.
_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    # A stream's tables are many small files. With Spark's 4 MB a file they would become dozens of tasks.
    "spark.sql.files.openCostInBytes": "65536",
}


# Great Expectations compares collected values with the suite's bounds, which have no zone either.
@in_utc()
def check(
    *,
    tables_dir: str | Path,
    expectations_dir: Path,
    results_dir: Path,
    tables: Iterable[str] | None = None,
    spark: SparkSession | None = None,
    versions: Mapping[str, int] | None = None,
    master: str = "local[2]",
    memory: str | None = None,
    settings: Mapping[str, str] | None = None,
    s3: S3Server | None = None,
    examples: int = 5,
) -> QualityRun:
    """Run suites over tables, and write ``RUN_ID/results.json``, ``RUN_ID/report.html`` and ``index.html``.

    A missing, empty or unreadable table fails; the others are still checked. A failed run returns like a passed run:
    :meth:`QualityRun.raise_for_failures` raises. The check does not change, publish or quarantine anything, and ignores
    tables without a suite.

    Parameters
    ----------
    tables_dir
        Folder or URI of the Delta tables.
    expectations_dir
        Folder of the suites, ``TABLE.json``.
    results_dir
        Folder for the results.
    tables
        Tables to check; default all that have a suite and exist.
    spark
        A session with Delta, which then checks all tables, and is left running. Default: tables are checked in memory
        if they fit; the others by the active session, else by a new one, stopped at the end.
    versions
        Delta version to check by TABLE; default the latest. Later commits have no effect.
    master, memory, settings
        For a new session: Spark master, heap (default a quarter of the machine's memory, 1 to 4 GB), further settings.
    s3
        For a new session: the S3 server of the tables, or None on disk.
    examples
        Maximum failing rows to keep for a failed expectation.

    Raises
    ------
    StreamwardenError
        ``SUITE_INVALID``, before Spark starts if possible; ``TABLE_NOT_FOUND``: there is none at all;
        ``JAVA_MISSING`` or ``JAR_MISSING``.
    """
    began = time.monotonic()
    started = datetime.now(UTC)
    suites = [suite.only(_alone(suite)) for suite in load_suites(expectations_dir, tables)]
    asked, root = dict(versions or {}), str(tables_dir).rstrip("/")
    paths = {suite.name: expectations_dir / f"{suite.name}.json" for suite in suites}
    here = {} if spark is not None else _opened_here(suites, root, asked, s3)
    beyond = [suite for suite in suites if suite.name not in here]
    found: dict[str, TableResult] = {}
    if here:
        found |= _judged_here(suites, here, paths, examples)
    version, ready = None, 0.0
    if beyond:
        by_spark = _judged_by_spark(beyond, root, asked, paths, examples, spark, master, memory, settings, s3)
        found |= by_spark.results
        version, ready = by_spark.version, by_spark.ready - began
    results = [found[suite.name] for suite in suites if suite.name in found]
    if tables is None:
        # A job that was never deployed has no table, and that is no fault.
        results = [one for one in results if one.status != "not_found"]
        if not results:
            names = ", ".join(suite.name for suite in suites)
            raise StreamwardenError("TABLE_NOT_FOUND", f"{root}: no table that has a suite; suites: {names or 'none'}")
    run = QualityRun(
        # Sortable by time; two runs may start in the same second.
        run_id=f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        started=_moment(started),
        ended=_moment(datetime.now(UTC)),
        seconds=round(time.monotonic() - began, 3),
        seconds_to_spark=round(ready, 3),
        tables_dir=root,
        great_expectations=str(engine.import_great_expectations().__version__),
        spark=version,
        tables=tuple(results),
    )
    write_run(LocalStorage(results_dir.parent), results_dir.name, run)
    return run


def _opened_here(
    suites: Sequence[Suite], root: str, asked: Mapping[str, int], s3: S3Server | None
) -> dict[str, WholeTable]:
    """Return the tables that can be checked in memory. All versions are read before the first table is checked."""
    # Imported here: at module level, loading a suite would load delta-rs and pandas.
    from streamwarden.quality.table_versions import UnreadableHereError
    from streamwarden.quality.whole_table import open_whole_table

    found = {}
    for suite in suites:
        with suppress(UnreadableHereError):
            found[suite.name] = open_whole_table(suite.name, f"{root}/{suite.name}", asked.get(suite.name), s3)
    return found


def _judged_here(
    suites: Sequence[Suite], opened: Mapping[str, WholeTable], paths: Mapping[str, Path], examples: int
) -> dict[str, TableResult]:
    from streamwarden.quality.arrow_checker import ArrowChecker

    checker = ArrowChecker(examples=examples)
    # An unusable suite fails before any table is read, also if Spark is to check its table.
    built = {suite.name: engine.build(suite, paths[suite.name]) for suite in suites}
    return {
        suite.name: opened[suite.name].judge(checker, suite, built[suite.name], suite_digest(paths[suite.name]))
        for suite in suites
        if suite.name in opened
    }


@dataclass(frozen=True)
class _BySpark:
    results: dict[str, TableResult]
    version: str
    ready: float


def _judged_by_spark(
    suites: Sequence[Suite],
    root: str,
    asked: Mapping[str, int],
    paths: Mapping[str, Path],
    examples: int,
    spark: SparkSession | None,
    master: str,
    memory: str | None,
    settings: Mapping[str, str] | None,
    s3: S3Server | None,
) -> _BySpark:
    # Before the thread starts, so that two threads don't import its modules at the same time.
    from pyspark.sql import SparkSession

    # An existing session is not ours to stop, and a JVM has room for one only.
    spark = spark or SparkSession.getActiveSession()
    # The JVM starts in its own process and reads its first Delta log. This process can import in the meantime, which
    # saves five of some twenty seconds on a small machine.
    importing = threading.Thread(target=engine.import_great_expectations, name="import-great-expectations")
    importing.start()
    try:
        session = spark or own_session(master=master, memory=memory, settings=settings, s3=s3)
    except BaseException:
        importing.join()
        raise
    ready = time.monotonic()
    try:
        # All versions are read close together, before the first table is checked.
        opened = {suite.name: _open(session, suite, f"{root}/{suite.name}", asked.get(suite.name)) for suite in suites}
        # If the import failed, its next call raises the reason.
        importing.join()
        built = {suite.name: engine.build(suite, paths[suite.name]) for suite in suites}
        checker = engine.SparkChecker(examples=examples)
        results = {
            suite.name: _judge(checker, suite, built[suite.name], opened[suite.name], suite_digest(paths[suite.name]))
            for suite in suites
        }
        return _BySpark(results, session.version, ready)
    finally:
        importing.join()
        if spark is None:
            session.stop()


def _alone(suite: Suite) -> list[Expectation]:
    """Return the expectations about a table alone. The gate judges the others."""
    return [one for one in suite.expectations if one.meta.recent is None and not one.meta.tables]


def own_session(
    *,
    master: str = "local[2]",
    memory: str | None = None,
    settings: Mapping[str, str] | None = None,
    s3: S3Server | None = None,
) -> SparkSession:
    """Start a session for a check, with Delta. The caller stops it."""
    from streamwarden.spark.session import build_session

    return build_session(
        "streamwarden-check",
        master=master,
        # What comes here is more than five million rows, as a rule. They are read from the cache many times.
        memory=memory or f"{min(max(psutil.virtual_memory().total // 2**32, 1), 4)}g",
        settings={**_SETTINGS, **(settings or {})},
        s3=s3,
    )


@dataclass(frozen=True)
class _Table(OpenedTable):
    """A table that Spark has opened."""

    frame: DataFrame | None = None


def _open(spark: SparkSession, suite: Suite, path: str, version: int | None) -> _Table:
    from delta.tables import DeltaTable
    from pyspark.errors import PySparkException

    began = time.monotonic()

    def missing(what: str) -> _Table:
        seconds = time.monotonic() - began
        return _Table(seconds, version=version, status="not_found", code="TABLE_NOT_FOUND", what=what)

    version_time: str | None = None
    try:
        if not DeltaTable.isDeltaTable(spark, path):
            return missing(f"{suite.name}: no Delta table at {path}")
        if version is None:
            row = DeltaTable.forPath(spark, path).history(1).select("version", "timestamp").collect()[0]
            version, version_time = int(row["version"]), str(engine.jsonable(row["timestamp"]))
        # Fixed by number, so that every pass reads the same rows while its job writes.
        frame = spark.read.format("delta").option("versionAsOf", version).load(path)
    except PySparkException as error:
        said = _first_line(error)
        if "VERSION" in (error.getCondition() or "") or "Cannot time travel" in said:
            return missing(f"{suite.name}: no version {version} at {path}: {said}")
        return _Table(time.monotonic() - began, version=version, what=f"the table cannot be read: {said}")
    return _Table(time.monotonic() - began, version=version, version_time=version_time, frame=frame)


def _judge(checker: engine.Checker, suite: Suite, built: Any, table: _Table, digest: str) -> TableResult:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    def check() -> tuple[int, tuple[ExpectationResult, ...]]:
        assert table.frame is not None
        frame = table.frame.persist()
        try:
            rows = frame.count()
            return rows, tuple(checker.run(suite, built, frame, rows)) if rows else ()
        except (PySparkException, Py4JJavaError) as error:
            # PySpark wraps most JVM exceptions, but not all.
            raise TableUnreadable(_first_line(error)) from error
        finally:
            frame.unpersist()

    return judged(table, suite, digest, check if table.frame is not None else None)


def _first_line(error: Exception) -> str:
    # Spark's messages continue with plans and stack traces; Py4J's start with its own text.
    thrown = getattr(error, "java_exception", None)
    lines = str(error if thrown is None else thrown.getMessage()).strip().splitlines()
    return lines[0][:500] if lines else type(error).__name__


def _moment(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
