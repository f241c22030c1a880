"""The history of a job's source: the driver reads it first, with the job's own query, and then moves on to the source.

The move replaces the source's position in the newest two entries of the checkpoint's offset log, between two queries.
State, watermark and batch ids stay, so the next query continues with the source as any restarted query does.

Source: Spark 4.2's ``MicroBatchExecution.populateStartOffsets``. A query begins where the newest committed entry ends.
A source of the first version, such as Delta's, also gets the range of that entry, and rejects another table's start.
So both entries are replaced.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from streamwarden.driver.backlog import DeltaBacklog
from streamwarden.driver.kafka import begin_at
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader, moved_offsets
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.history_spec import HistorySpec
from streamwarden.model.record import utc_now
from streamwarden.model.source_spec import DeltaSource, KafkaSource
from streamwarden.model.spec import JobSpec
from streamwarden.savepoints.history import is_on_history, table_id
from streamwarden.store.workspace import Workspace

__all__ = ["History"]

_log = logging.getLogger(__name__)


class History:
    """What a driver's next query reads, the history or the source.

    Parameters
    ----------
    workspace, spec
        The job.
    path
        Its checkpoint's folder, relative to the storage's root.
    guard
        Raises if this driver may not write any more.
    """

    def __init__(self, workspace: Workspace, spec: JobSpec, path: str, guard: Callable[[], None]) -> None:
        self._workspace = workspace
        self._spec = spec
        self._path = path
        self._guard = guard
        self._checkpoint = CheckpointReader(workspace.storage, path)
        # Files of the history's version that is read first.
        self._files: dict[int, int] = {}
        self.is_read = spec.history is None or not is_on_history(workspace, spec, self._offset(self._last))
        """Whether the job reads its source, and no history any more."""

    def begin(self, session: SparkSession) -> JobSpec:
        """Return the spec of the query to start. If the history is all read, then move to the source first.

        Raises
        ------
        StreamwardenError
            ``HISTORY_INVALID``.
        """
        last = self._last
        newest = [] if last is None else [number for number in (last, last - 1) if number >= 0]
        old = [number for number in newest if is_on_history(self._workspace, self._spec, self._offset(number))]
        if self._spec.history is not None and newest and newest != old:
            # Moved before. A driver that was killed meanwhile, or a savepoint of that moment, may have one of the two.
            moved = next(number for number in newest if number not in old)
            self._move(old, self._offset(moved))
        elif self.is_all_read:
            position = self._live_position(session)
            self._move(old, position)
            _log.info("the history is read up to batch %s; the source begins at %s", last, position)
        elif not self.is_read:
            self._check(session, first=last is None)
            return self._spec.on_history()
        self.is_read = True
        return self._spec

    @property
    def is_all_read(self) -> bool:
        """Whether the checkpoint is in the history, and the history has no more rows."""
        last = self._last
        if self.is_read or last is None or not self._checkpoint.is_committed(last):
            return False
        offset = self._offset(last)
        if offset is None or json.loads(offset).get("isStartingVersion"):
            return False
        return self._pending(offset) == 0

    @property
    def progress(self) -> str:
        """How much of the history is read, in words; empty if the job does not read it."""
        history = self._spec.history
        if self.is_read or history is None:
            return ""
        try:
            return f"reading history {history.table}{self._progress(history)}"
        except (OSError, DeltaError, StreamwardenError):
            return f"reading history {history.table}"

    def _progress(self, history: HistorySpec) -> str:
        offset = self._offset(self._last)
        position = json.loads(offset) if offset is not None else {}
        if not position:
            return ""
        if not position.get("isStartingVersion"):
            return f": {self._pending(offset)} versions left"
        version = int(position["reservoirVersion"])
        if version not in self._files:
            uri, options = self._workspace.delta_rs(history.table)
            self._files = {version: len(DeltaTable(uri, version=version, storage_options=options).file_uris())}
        return f": file {int(position['index']) + 1} of {self._files[version]}"

    @property
    def _last(self) -> int | None:
        return self._checkpoint.last_offset()

    def _offset(self, batch: int | None) -> str | None:
        entry = self._checkpoint.offsets(batch) if batch is not None else None
        return entry.sources[0] if entry is not None else None

    def _pending(self, offset: str | None) -> int:
        source = self._spec.on_history().source
        assert isinstance(source, DeltaSource)
        left = DeltaBacklog(self._workspace, source).after(offset, offset)
        return left.pending or 0 if left is not None else 0

    def _move(self, batches: list[int], position: str | None) -> None:
        """Replace the source's position in entries of the offset log, the newest first."""
        for batch in batches:
            assert position is not None
            self._guard()
            key, files = f"{self._path}/offsets/{batch}", self._workspace.files
            entry = moved_offsets(files.read(key), position)
            # Hadoop's checksum of the replaced entry.
            files.delete(f"{self._path}/offsets/.{batch}.crc")
            files.write(key, entry)

    def _live_position(self, session: SparkSession) -> str:
        source = self._spec.source
        if isinstance(source, KafkaSource):
            return json.dumps({source.topic: {str(number): at for number, at in self._kafka(session, source).items()}})
        assert isinstance(source, DeltaSource)
        # Before the first file of the table's current state, where a query without a checkpoint begins, too.
        return json.dumps(
            {
                "sourceVersion": 1,
                "reservoirId": table_id(self._workspace, source.table),
                "reservoirVersion": DeltaLog(self._workspace.files, source.table).latest,
                "index": -1,
                "isStartingVersion": True,
            }
        )

    def _check(self, session: SparkSession, *, first: bool) -> None:
        """Raise for what would stop the job after it has read its history: found before, it costs nothing."""
        history, source = self._spec.history, self._spec.source
        assert history is not None
        if isinstance(source, KafkaSource):
            self._kafka(session, source)
        elif isinstance(source, DeltaSource) and table_id(self._workspace, source.table) == table_id(
            self._workspace, history.table
        ):
            what = f"table {history.table} has the id of {source.table}: one is a copy of the other's files"
            remedy = "Write the history into a table of its own: a copy with `CREATE TABLE … AS SELECT` has its own id."
            raise StreamwardenError("HISTORY_INVALID", f"{self._spec.name}: {what}", remedy=remedy)
        if first and session.read.format("delta").load(self._workspace.table(history.table)).isEmpty():
            what = f"{self._spec.name}: table {history.table} has no rows"
            raise StreamwardenError("HISTORY_INVALID", what, remedy="Fill it, or remove `source.history`, and deploy.")

    def _kafka(self, session: SparkSession, source: KafkaSource) -> dict[int, int]:
        """Return the topic's first offsets after the history; raise if its retention has removed some of them."""
        assert source.history is not None and source.history.live_from is not None
        since = source.history.live_from
        begin = begin_at(session, source, since)
        kept = utc_now() - begin.retention if begin.retention is not None else since
        # A partition whose offsets begin with 0 has lost nothing.
        cut = [number for number, at in begin.offsets.items() if 0 < at == begin.oldest[number]]
        if cut and since < kept:
            what = f"topic {source.topic} keeps records since {kept:%Y-%m-%dT%H:%M:%SZ}, and live_from is {since}"
            remedy = "Set `source.history.live_from` to a time that the topic still has; the history must have all rows"
            remedy += " before it. Deploy the job under another name if `source.history.where` changes with it."
            raise StreamwardenError("HISTORY_INVALID", f"{self._spec.name}: {what}", remedy=remedy)
        return begin.offsets
