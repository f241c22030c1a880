"""The rows that a range of a Delta table's versions added, without Spark.

A range begins after a version and ends with one. Its rows are those of the files that its commits added and that the
last version still has. A file that only holds rows of older files, as after OPTIMIZE, is not new. For a table that is
upserted these are all rows of the rewritten files, so some rows are older than the range.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.store.workspace import Workspace

__all__ = ["NewFile", "NewFiles", "TableVersions", "UnreadableHereError", "check_features"]


class UnreadableHereError(Exception):
    """Only Spark can read these rows: deletion vectors, mapped columns, or more rows than fit into memory."""


@dataclass(frozen=True)
class NewFile:
    """A file of a range.

    Parameters
    ----------
    path
        As in the log: relative to the table, and URL-encoded.
    size
        Its bytes.
    rows
        Its rows; None if the log does not say.
    action
        The log's action.
    """

    path: str
    size: int
    rows: int | None
    action: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class NewFiles:
    """What a range added.

    Parameters
    ----------
    files
        The files, in the order in which they were added.
    changes
        Whether its commits also removed rows, by DELETE, UPDATE, MERGE, an overwrite or RESTORE.
    transactions
        The batches that wrote it: (application, batch).
    """

    files: tuple[NewFile, ...]
    changes: bool
    transactions: tuple[tuple[str, int], ...] = ()

    @property
    def bytes(self) -> int:
        """Their size on disk."""
        return sum(one.size for one in self.files)

    @property
    def rows(self) -> int | None:
        """Their rows; None if the log does not say."""
        counts = [one.rows for one in self.files]
        return None if None in counts else sum(counts)  # type: ignore[arg-type]


class TableVersions:
    """The versions of one table.

    Parameters
    ----------
    workspace
        Where it is.
    table
        Its name.
    """

    def __init__(self, workspace: Workspace, table: str) -> None:
        self.name = table
        self.log = DeltaLog(workspace.files, table)
        self._uri, self._options = workspace.delta_rs(table)
        self.folder = self._uri
        """The table's folder or address."""

    def opened(self, version: int | None = None) -> DeltaTable:
        """Return the table at a version, default its newest.

        Raises
        ------
        StreamwardenError
            ``TABLE_NOT_FOUND``: there is no such table or version.
        """
        try:
            return DeltaTable(self._uri, version=version, storage_options=self._options)
        except TableNotFoundError as error:
            self._reach()
            raise StreamwardenError("TABLE_NOT_FOUND", f"{self.name}: no Delta table at {self._uri}") from error
        except (DeltaError, OSError) as error:
            self._reach()
            what = f"{self.name}: no version {version} at {self._uri}: {error}"
            raise StreamwardenError("TABLE_NOT_FOUND", what) from error

    def added(self, after: int, version: int) -> NewFiles:
        """Return what the versions from `after` + 1 to `version` added.

        Raises
        ------
        StreamwardenError
            ``TABLE_DAMAGED``, or a commit of the range is no longer in the log: ``GATE_LOG_GONE``.
        """
        there = set(self.log.since(after + 1))
        gone = [number for number in range(after + 1, version + 1) if number not in there]
        if gone:
            raise StreamwardenError("GATE_LOG_GONE", f"{self.name}: the log has no commit {gone[0]} any more")
        new: dict[str, NewFile] = {}
        changes = False
        transactions: list[tuple[str, int]] = []
        for number in range(after + 1, version + 1):
            actions = self.log.actions(number)
            removed = [action["remove"] for action in actions if "remove" in action]
            changes = changes or any(one.get("dataChange", True) for one in removed)
            # Removals first: a commit names a file twice if it gives the file another deletion vector.
            gone_now = [new.pop(one["path"], None) for one in removed]
            # A commit that rearranged new files: their rows are in its own files now, perhaps beside older ones.
            moves = any(one is not None for one in gone_now)
            for action in actions:
                if "add" in action and (moves or action["add"].get("dataChange", True)):
                    one = _file(action["add"])
                    new[one.path] = one
                elif "txn" in action:
                    transactions.append((str(action["txn"]["appId"]), int(action["txn"]["version"])))
        return NewFiles(tuple(new.values()), changes, tuple(transactions))

    def identity(self) -> str:
        """Return the table's id; it changes if the table is removed and created anew."""
        return str(self.opened().metadata().id)

    def has_rows(self, version: int) -> bool:
        """Return whether a version has rows."""
        return any(one.rows != 0 for one in self.whole(version).files)

    def whole(self, version: int) -> NewFiles:
        """Return all files of a version."""
        return NewFiles(tuple(_files_of(self.opened(version))), changes=False)

    def read(self, files: Iterable[NewFile], version: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of some files, with the columns that the table has at a version.

        Parameters
        ----------
        columns
            Only these, of those that the table has.

        Raises
        ------
        UnreadableHereError
            Only Spark can read them.
        StreamwardenError
            ``TABLE_DAMAGED``: a file is missing or is no Parquet.
        """
        found = self.scan(files, version)
        names = [name for name in found.schema.names if columns is None or name in columns]
        try:
            return found.to_table(columns=names)
        except (OSError, pa.ArrowException) as error:
            self._reach()
            raise StreamwardenError("TABLE_DAMAGED", f"{self.name} at version {version}: {error}") from error

    def scan(self, files: Iterable[NewFile], version: int) -> pads.Dataset:
        """Return the rows of some files, not read yet; see :meth:`read`."""
        table = self.opened(version)
        check_features(table)
        return self._dataset(
            table, list(files), pa.schema(table.schema().to_arrow()), table.metadata().partition_columns
        )

    def _reach(self) -> None:
        """Raise the storage's own error if it does not answer: delta-rs and Arrow name no cause that code can read."""
        self.log.since(0)

    def _dataset(
        self, table: DeltaTable, files: Sequence[NewFile], schema: pa.Schema, partitions: Sequence[str]
    ) -> pads.Dataset:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow import fs

        sizes = {urllib.parse.unquote(one.path): one.size for one in files}
        storage = fs.PyFileSystem(DeltaStorageHandler.from_table(table._table, self._options, sizes))
        form = pads.ParquetFileFormat()
        fragments = []
        for one in files:
            values = one.action.get("partitionValues") or {}
            where: pc.Expression | None = None
            for name in partitions:
                text = values.get(name)
                column = pc.field(name)
                # In the log they are text; empty text and null are one.
                part = column.is_null() if text in (None, "") else column == _partition(text, schema.field(name).type)
                where = part if where is None else where & part
            fragments.append(form.make_fragment(urllib.parse.unquote(one.path), storage, partition_expression=where))
        return pads.FileSystemDataset(fragments, schema, form, storage)


def _partition(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return a partition's value; times without a zone are in UTC."""
    if not pa.types.is_timestamp(kind):
        return pa.scalar(text).cast(kind)
    moment = datetime.fromisoformat(text)
    if kind.tz is None:
        moment = moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
        return pa.scalar(moment, kind)
    return pa.scalar(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC), kind)


def check_features(table: DeltaTable) -> None:
    """Return if Arrow reads a table's files as Spark does.

    Raises
    ------
    UnreadableHereError
        It does not: the table's columns are mapped, or it may have deletion vectors.
    """
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise UnreadableHereError("the table's columns are mapped")
    if "deletionVectors" in set(table.protocol().reader_features or ()):
        raise UnreadableHereError("the table may have deletion vectors")


def _file(add: dict[str, Any]) -> NewFile:
    stats = parse(add["stats"]) if add.get("stats") else {}
    return NewFile(add["path"], int(add["size"]), stats.get("numRecords"), add)


def _files_of(table: DeltaTable) -> Iterable[NewFile]:
    for row in pa.table(table.get_add_actions(flatten=False)).to_pylist():
        partition = {
            name: None if value is None else str(value) for name, value in (row.get("partition") or {}).items()
        }
        action = {"path": row["path"], "partitionValues": partition, "min": row.get("min"), "max": row.get("max")}
        yield NewFile(row["path"], row["size_bytes"], row["num_records"], action)
