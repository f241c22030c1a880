"""Judge a range of versions by Spark: for rows that do not fit into memory, or that only Spark can read.

Takes as long as a start of Spark, and more. Needs the same JVM and jars as a driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from streamwarden.quality.engine import SparkChecker, build
from streamwarden.quality.failing_rows import UNIQUE
from streamwarden.quality.results import ExpectationResult
from streamwarden.quality.runner import own_session
from streamwarden.quality.suites import Suite
from streamwarden.quality.table_versions import NewFiles
from streamwarden.store.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["judge_by_spark"]


def judge_by_spark(
    workspace: Workspace, suite: Suite, path: Path, added: NewFiles, version: int
) -> tuple[int, list[ExpectationResult]]:
    """Evaluate a suite on what a range added; return the number of rows and the results in the suite's order.

    Keys that must be unique are looked for in the whole version. Leaves out expectations about recent rows, and queries
    that read other tables.

    Parameters
    ----------
    path
        The suite's file, for messages.
    added
        The range's files.
    version
        The range's last version.
    """
    with _session(workspace) as spark:
        whole = spark.read.format("delta").option("versionAsOf", version).load(workspace.table(suite.name))
        rows = _of_files(whole, added).persist()
        try:
            count = rows.count()
            found: dict[str, ExpectationResult] = {}
            if count:
                checker = SparkChecker()
                here = [one for one in suite.expectations if one.meta.recent is None and not one.meta.tables]
                unique = [one for one in here if one.type in UNIQUE]
                others = [one for one in here if one.type not in UNIQUE]
                for chosen, frame in ((others, rows), (unique, whole)):
                    if chosen:
                        part = suite.only(chosen)
                        results = checker.run(part, build(part, path), frame, count)
                        found |= {item.id: item for item in results}
        finally:
            rows.unpersist()
    return count, [found[one.meta.id] for one in suite.expectations if one.meta.id in found]


def _of_files(whole: DataFrame, added: NewFiles) -> DataFrame:
    from pyspark.sql import functions as F

    # A file's name is unique in its table, whatever its folder is.
    names = [unquote(one.path).rsplit("/", 1)[-1] for one in added.files]
    name = F.element_at(F.split(F.col("_metadata.file_path"), "/"), -1)
    # Spark encodes file names.
    return whole.where(F.url_decode(name).isin(names))


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
