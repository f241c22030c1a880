"""Judge a range of versions by Spark: for rows that do not fit into memory, or that only Spark can read.

Takes as long as a start of Spark, and more. Needs the same JVM and jars as a driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.quality.arguments import SOURCE_FILE, UNIQUE, row_condition, without_condition
from streamwarden.quality.engine import SparkChecker, build, unevaluated
from streamwarden.quality.failing_rows import own_columns
from streamwarden.quality.results import ExpectationResult
from streamwarden.quality.runner import own_session
from streamwarden.quality.suites import Expectation, Suite
from streamwarden.quality.table_versions import NewFiles
from streamwarden.spark.utc import in_utc
from streamwarden.store.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["judge_by_spark", "judge_wider_by_spark"]

_SOURCES = 20
"""Names of landed files. 20: as in a hold."""
_NO_FILE = re.compile("FILE_NOT_EXIST|does not exist|FileNotFound|NoSuchKey|FAILED_READ_FILE")


def judge_by_spark(
    workspace: Workspace, suite: Suite, path: Path, added: NewFiles, version: int, *, examples: int
) -> tuple[int, list[ExpectationResult], list[str]]:
    """Evaluate a suite on what a range added; return the number of rows, the results, and the rows' landed files.

    Keys that must be unique are compared with those of older rows, too. For expectations about recent rows and other
    tables see :func:`judge_wider_by_spark`.

    Parameters
    ----------
    path
        The suite's file, for messages.
    added
        The range's files.
    version
        The range's last version.
    examples
        Failing rows to keep of each expectation.

    Raises
    ------
    StreamwardenError
        ``TABLE_DAMAGED``.
    """
    with _opened(workspace, suite, version) as whole:
        rows = whole.where(_is_of(added)).persist()
        try:
            count, results = rows.count(), []
            if count:
                checker = SparkChecker(examples=examples)
                for chosen, frame in _frames(suite, whole.where(~_is_of(added)), rows):
                    results += checker.run(chosen, build(chosen, path), frame, count)
            sources = _sources(rows) if count else []
        finally:
            rows.unpersist()
    return count, results, sources


def judge_wider_by_spark(
    workspace: Workspace, suite: Suite, path: Path, version: int, added: NewFiles | None, *, examples: int
) -> list[ExpectationResult]:
    """Evaluate expectations about recent rows and other tables; for parameters see :func:`judge_by_spark`.

    Parameters
    ----------
    suite
        With these expectations only.
    added
        None: no row is new, and expectations about new rows are left out.
    """
    found = []
    with _opened(workspace, suite, version) as whole:
        checker = SparkChecker(examples=examples)
        for expectation in suite.expectations:
            if expectation.meta.recent is None and added is None:
                continue
            frame, begin = (whole.where(_is_of(added)) if added is not None else whole), None
            if (recent := expectation.meta.recent) is not None:
                if recent.column not in whole.columns:
                    found.append(unevaluated(expectation, f'The column "{recent.column}" does not exist'))
                    continue
                begin = whole.agg({recent.column: "max"}).collect()[0][0]
                if begin is None:
                    continue
                begin -= timedelta(days=recent.days)
                frame = whole.where(whole[recent.column] >= begin)
            try:
                named = _reading(workspace, expectation, whole.sparkSession, begin)
            except StreamwardenError as error:
                found.append(unevaluated(expectation, str(error).splitlines()[0]))
                continue
            alone, frame = suite.only([named]), frame.persist()
            try:
                results = checker.run(alone, build(alone, path), frame, frame.count())
            finally:
                frame.unpersist()
            found += [item.model_copy(update={"arguments": expectation.arguments}) for item in results]
    return found


def _reading(workspace: Workspace, expectation: Expectation, spark: SparkSession, begin: Any) -> Expectation:
    """Return an expectation whose query reads other tables by the names of temporary views."""
    arguments = dict(expectation.arguments)
    for name, column in expectation.meta.tables.items():
        if DeltaLog(workspace.files, name).latest is None:
            raise StreamwardenError("TABLE_NOT_FOUND", f"{name}: no Delta table, which a query reads")
        other = spark.read.format("delta").load(workspace.table(name))
        view = f"streamwarden_{name}"
        (other if column is None or begin is None else other.where(other[column] >= begin)).createOrReplaceTempView(
            view
        )
        arguments = {key: _named(value, name, view) for key, value in arguments.items()}
    return expectation.model_copy(update={"arguments": arguments})


def _named(value: Any, name: str, view: str) -> Any:
    return value.replace(f"{{tables.{name}}}", view) if isinstance(value, str) else value


def _frames(suite: Suite, older: DataFrame, rows: DataFrame) -> Iterator[tuple[Suite, DataFrame]]:
    """Yield expectations, and the rows to judge them on: those of unique keys get older rows with the same keys."""
    unique = [one for one in suite.expectations if one.type in UNIQUE and _has(own_columns(one.arguments), rows)]
    others = [one for one in suite.expectations if one not in unique]
    if others:
        yield suite.only(others), rows
    for expectation in unique:
        condition, columns = row_condition(expectation.arguments), own_columns(expectation.arguments)
        new, old = (rows, older) if condition is None else (rows.where(condition), older.where(condition))
        keys = new.select([new[name].alias(f"key_{number}") for number, name in enumerate(columns)]).distinct()
        same = [old[name].eqNullSafe(keys[f"key_{number}"]) for number, name in enumerate(columns)]
        plain = expectation.model_copy(update={"arguments": without_condition(expectation.arguments)})
        yield suite.only([plain]), new.unionByName(old.join(keys, same, "left_semi"))


def _has(columns: Sequence[str], rows: DataFrame) -> bool:
    return all(name.split(".")[0] in rows.columns or name in rows.columns for name in columns)


def _is_of(added: NewFiles) -> Any:
    """Return the condition for rows of a range's files."""
    from pyspark.sql import functions as F

    # A file's name is unique in its table, whatever its folder is.
    names = [unquote(one.path).rsplit("/", 1)[-1] for one in added.files]
    name = F.element_at(F.split(F.col("_metadata.file_path"), "/"), -1)
    # Spark encodes file names.
    return F.url_decode(name).isin(names)


def _sources(rows: DataFrame) -> list[str]:
    if SOURCE_FILE not in rows.columns:
        return []
    found = rows.select(SOURCE_FILE).where(rows[SOURCE_FILE].isNotNull()).distinct().limit(_SOURCES).collect()
    return sorted(str(row[0]) for row in found)


@contextmanager
def _opened(workspace: Workspace, suite: Suite, version: int) -> Iterator[DataFrame]:
    """Yield a table at a version; errors of its files are named."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    with in_utc(), _session(workspace) as spark:
        try:
            yield spark.read.format("delta").option("versionAsOf", version).load(workspace.table(suite.name))
        except (PySparkException, Py4JJavaError) as error:
            if not _NO_FILE.search(str(error)):
                raise
            what = f"{suite.name} at version {version}: {str(error).strip().splitlines()[0][:500]}"
            raise StreamwardenError("TABLE_DAMAGED", what) from error


@contextmanager
def _session(workspace: Workspace) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    settings = workspace.profile.spark if workspace.profile.master.startswith("local") else {}
    session = own_session(settings=settings, s3=workspace.s3)
    try:
        yield session
    finally:
        session.stop()
