"""Prepare output tables before the first batch: clean up a killed creation, and set a generation's initial contents.

A driver may be paused here and resume after its successor, of the same generation, has done all of this and committed
batches on top. A repeated restore would lose these batches: Delta skips a transaction id that it has seen. So before
each write the driver checks its lease and reads the checkpoint's document again. It may also be paused after that,
so each write is bound to what was read before the check: to the table's version, or to a transaction id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import SparkSession

from streamwarden.driver.pipeline.output_table import copy_record
from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_fence import fence
from streamwarden.formats.delta_log import DeltaLog, start_id
from streamwarden.formats.delta_restore import put_back
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import delta_log_key
from streamwarden.store.workspace import Workspace

__all__ = ["AUTHOR", "clear_unborn", "keep_facts", "keep_sources", "start_outputs"]

_log = logging.getLogger(__name__)

AUTHOR = "spark.databricks.delta.commitInfo.userMetadata"
"""A session's setting: the author, in the history of each table."""


_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"


def clear_unborn(workspace: Workspace, table: str, *, guard: Callable[[], None]) -> None:
    """Remove what a driver left that was killed while it created a table.

    This is a log folder without a commit. Delta treats it as a table when it creates one, and as no table when it reads
    one: the job could never start again.

    Parameters
    ----------
    guard
        Called before anything is removed; raises if this driver may not write.
    """
    folder = delta_log_key(table)
    left = [info.key for info in workspace.files.walk(folder)]
    if any(not key.rsplit("/", 1)[1].startswith(".") for key in left):
        return
    guard()
    # One by one, not the whole tree: that would include a commit that a successor has made since the listing.
    for key in left:
        workspace.files.delete(key)
    workspace.files.prune(folder)


def start_outputs(
    session: SparkSession,
    workspace: Workspace,
    reference: CheckpointRef,
    tables: Iterable[str],
    *,
    guard: Callable[[], None],
) -> None:
    """Fence off other generations from the output tables, and set this generation's initial contents, once.

    Done before the generation's first batch, and then removed from the checkpoint's document. After a crash in between
    it is repeated, with the same result: no batch was written yet.

    In one case the write is bound to nothing: Spark must restore a table, because its protocol has changed or delta-rs
    can't write it. If the driver is then paused between the check and the write for longer than its lease, it damages
    the table.

    Parameters
    ----------
    tables
        The job's output tables.
    guard
        Called before each write; raises if this driver may not write any more.

    Raises
    ------
    StreamwardenError
        ``RESTORE_OUTPUT_GONE``; ``DOCUMENT_CONFLICT`` if the document has changed since it was read.
    """
    if reference.fenced and not reference.outputs:
        return
    document = JobDocuments(workspace.storage, reference.job).checkpoint

    def may_write() -> None:
        guard()
        _check_same(document.read(), reference)

    if not reference.fenced:
        # Fence first: otherwise a late commit after the restore of the tables would stay.
        for table in sorted({*tables, *(output.table for output in reference.outputs)}):
            version = fence(workspace, table, reference, guard=may_write)
            if version is not None:
                _log.info("%s: from version %d on, only generation %d can commit", table, version, reference.generation)
    for output in reference.outputs:
        try:
            _start(session, workspace, reference, output, may_write)
        except (AnalysisException, IllegalArgumentException) as error:
            raise StreamwardenError(
                "RESTORE_OUTPUT_GONE", f"{output.table} at version {output.version}: {error}"
            ) from error

    def strike(found: CheckpointRef | None) -> CheckpointRef:
        guard()
        return _check_same(found, reference).model_copy(update={"outputs": [], "fenced": True})

    document.update(strike)


def keep_facts(
    workspace: Workspace, job: str, tables: Iterable[str], version: int, *, guard: Callable[[], None]
) -> None:
    """Record in the checkpoint's document what its drivers have found, so that a later one finds the same.

    Parameters
    ----------
    tables
        The output tables, which exist: from now on a missing one is an error.
    version
        The module's ``VERSION``: from now on state is of this version.
    """
    document = JobDocuments(workspace.storage, job).checkpoint
    found = document.read()
    if found is None or (set(tables) <= set(found.tables) and found.version == version):
        return

    def keep(now: CheckpointRef | None) -> CheckpointRef:
        guard()
        assert now is not None
        return now.model_copy(update={"tables": sorted({*now.tables, *tables}), "version": version})

    document.update(keep)


def keep_sources(
    workspace: Workspace, job: str, names: Sequence[str], topics: Mapping[str, str], *, guard: Callable[[], None]
) -> None:
    """Record in the checkpoint's document what the query reads.

    Parameters
    ----------
    names
        The names of its sources, in Spark's order.
    topics
        Kafka's ids of its topics, by name.
    """
    document = JobDocuments(workspace.storage, job).checkpoint
    found = document.read()
    if found is None or (found.sources == list(names) and found.topics == {**found.topics, **topics}):
        return

    def keep(now: CheckpointRef | None) -> CheckpointRef:
        guard()
        assert now is not None
        return now.model_copy(update={"sources": list(names), "topics": {**now.topics, **topics}})

    document.update(keep)


def _check_same(found: CheckpointRef | None, reference: CheckpointRef) -> CheckpointRef:
    """Return the document if its request is unchanged since it was read.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_CONFLICT``: an operation has changed it while this driver was paused.
    """
    if found is None or _asks(found) != _asks(reference):
        what = f"checkpoint.json differs from when generation {reference.generation} started"
        raise StreamwardenError("DOCUMENT_CONFLICT", f"{reference.job}: {what}")
    return found


def _asks(reference: CheckpointRef) -> tuple[object, ...]:
    return reference.generation, reference.path, reference.highest, reference.fenced, reference.outputs


def _start(
    session: SparkSession,
    workspace: Workspace,
    reference: CheckpointRef,
    output: OutputStart,
    may_write: Callable[[], None],
) -> None:
    path = workspace.table(output.table)
    # The number increases with each restore of a job's tables. Delta skips a later write with this or an earlier
    # number, and fails a write that began before.
    application, number = start_id(reference.job), max(reference.highest, reference.generation)
    if output.version is None:
        # The table was created after the savepoint. It is emptied, not removed, because others may read it.
        if DeltaLog(workspace.files, output.table).latest is not None:
            _log.info("%s: emptied, as it was at the savepoint", output.table)
            may_write()
            # DELETE takes its transaction id from the session.
            session.conf.set(_TXN_APP, application)
            session.conf.set(_TXN_VERSION, str(number))
            try:
                DeltaTable.forPath(session, path).delete()
            finally:
                session.conf.unset(_TXN_APP)
                session.conf.unset(_TXN_VERSION)
    elif output.source is not None:
        _log.info("%s: starts as a copy of %s, version %d", output.table, output.source, output.version)
        source = workspace.table(output.source)
        rows = session.read.format("delta").option("versionAsOf", output.version).load(source)
        may_write()
        # Overwrites what an earlier try, or an earlier life of the clone, has left.
        (
            rows.write.format("delta")
            .mode("overwrite")
            .option("overwriteSchema", "true")
            .option("txnAppId", application)
            .option("txnVersion", number)
            .save(path)
        )
        may_write()
        copy_record(session, source, path, rows.columns)
    else:
        _log.info("%s: restored to version %d", output.table, output.version)
        author = session.conf.get(AUTHOR, "") or ""
        if not put_back(workspace, output.table, output.version, author=author, guard=may_write):
            may_write()
            DeltaTable.forPath(session, path).restoreToVersion(output.version)
