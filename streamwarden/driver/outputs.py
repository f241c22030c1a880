"""Output tables before the first batch: what a killed creation left, and contents that a generation starts with."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import SparkSession

from streamwarden.control.delta_log import DeltaLog
from streamwarden.control.documents import CheckpointRef, JobDocuments, OutputStart
from streamwarden.control.fence import fence
from streamwarden.control.put_back import put_back
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError

__all__ = ["AUTHOR", "clear_unborn", "start_outputs"]

_log = logging.getLogger(__name__)

AUTHOR = "spark.databricks.delta.commitInfo.userMetadata"
"""A session's setting: who writes, in the history of each table."""


def clear_unborn(workspace: Workspace, table: str) -> None:
    """Remove what a driver left that was killed while it made a table.

    That is a log folder without a commit, which Delta takes for a table when it is to make one, and for none when it is
    to read it: the job could never start again.
    """
    folder = f"tables/{table}/_delta_log"
    left = [info.key.rsplit("/", 1)[1] for info in workspace.files.walk(folder)]
    if all(name.startswith(".") for name in left):
        workspace.files.delete_tree(folder)


def start_outputs(session: SparkSession, workspace: Workspace, reference: CheckpointRef, tables: Iterable[str]) -> None:
    """Keep other generations out of the output tables, and give them the contents that this one starts with, once.

    Done before the generation's first batch, and then struck from the checkpoint's document. A crash in between repeats
    it, which is the same as once: no batch was written yet.

    Parameters
    ----------
    tables
        The job's output tables.

    Raises
    ------
    StreamwardenError
        ``RESTORE_OUTPUT_GONE``.
    """
    if reference.fenced and not reference.outputs:
        return
    if not reference.fenced:
        # First: a late commit after the tables were put back would stay.
        for table in sorted({*tables, *(output.table for output in reference.outputs)}):
            version = fence(workspace, table, reference)
            if version is not None:
                _log.info("%s: from version %d on only generation %d commits", table, version, reference.generation)
    for output in reference.outputs:
        try:
            _start(session, workspace, output)
        except (AnalysisException, IllegalArgumentException) as error:
            raise StreamwardenError(
                "RESTORE_OUTPUT_GONE", f"{output.table} at version {output.version}: {error}"
            ) from error

    def strike(found: CheckpointRef | None) -> CheckpointRef:
        same = found is not None and (found.path, found.generation) == (reference.path, reference.generation)
        return found.model_copy(update={"outputs": [], "fenced": True}) if found and same else found or reference

    JobDocuments(workspace.storage, reference.job).checkpoint.update(strike)


def _start(session: SparkSession, workspace: Workspace, output: OutputStart) -> None:
    path = workspace.table(output.table)
    if output.version is None:
        # It was made after the savepoint. Emptied and not removed, for those who read it.
        if DeltaLog(workspace.files, f"tables/{output.table}").latest is not None:
            _log.info("%s: emptied, as it was at the savepoint", output.table)
            DeltaTable.forPath(session, path).delete()
    elif output.source is not None:
        _log.info("%s: starts as a copy of %s, version %d", output.table, output.source, output.version)
        source = workspace.table(output.source)
        rows = session.read.format("delta").option("versionAsOf", output.version).load(source)
        # Over what an earlier try, or an earlier life of the clone, has left.
        rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    else:
        _log.info("%s: put back to version %d", output.table, output.version)
        if not put_back(workspace, output.table, output.version, author=session.conf.get(AUTHOR, "") or ""):
            DeltaTable.forPath(session, path).restoreToVersion(output.version)
