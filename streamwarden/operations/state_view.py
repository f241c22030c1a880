"""Look at a job's state: entries of a key, counts, the difference of two savepoints, a table of all of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from streamwarden.errors import StreamwardenError, is_code
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import StateFileMissing, closure
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.spec import JobSpec
from streamwarden.runtime.state_reader import spark_answers
from streamwarden.savepoints import catalog
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.store.workspace import Workspace

__all__ = ["StateView"]


@dataclass(frozen=True)
class _At:
    """A state: a checkpoint's folder, relative to the root, and the batch after which it is read."""

    checkpoint: str
    batch: int
    spec: JobSpec
    words: str


class StateView:
    """Answers questions about a job's state. Each answer starts a JVM. Changes nothing.

    Parameters
    ----------
    workspace, job
        The job.

    Raises
    ------
    StreamwardenError
        From each method: ``STATE_UNREADABLE``; ``SAVEPOINT_NOTHING`` without a committed batch;
        ``SAVEPOINT_NOT_FOUND``.
    """

    def __init__(self, workspace: Workspace, job: str) -> None:
        self._workspace = workspace
        self._job = job

    def show(self, *, at: str | None = None, key: str | None = None, limit: int = 20) -> dict[str, Any]:
        """Return entries: operator, variable, partition, key and value (JSON), time to live, timer.

        Parameters
        ----------
        at
            A savepoint's id, label or ``latest``; or a batch of the job's checkpoint. Default the newest batch.
        key
            Only entries of this key: ``NAME=VALUE`` for one of its columns, or the value of any. Default all.
        limit
            At most so many.

        Returns
        -------
        dict
            ``at`` in words, ``entries``, and whether there are ``more``.
        """
        where = self._at(at)
        found = self._ask(where, {"do": "show", "key": key, "limit": limit})
        return {"at": where.words, **found}

    def stats(self, *, at: str | None = None, limit: int = 10) -> dict[str, Any]:
        """Return counts by variable and partition, and the heaviest keys.

        Parameters
        ----------
        at
            As for :meth:`show`.
        limit
            How many of the heaviest keys.

        Returns
        -------
        dict
            ``at``; ``variables``, ``partitions`` and ``heaviest`` with ``entries``, ``keys`` and ``json_bytes`` (of key
            and value as JSON); ``file_bytes`` by ``OPERATOR/PARTITION``.
        """
        where = self._at(at)
        found = self._ask(where, {"do": "stats", "limit": limit})
        return {"at": where.words, **found, "file_bytes": self._file_bytes(where)}

    def diff(self, before: str, after: str, *, limit: int = 20) -> dict[str, Any]:
        """Return how many entries were added, removed and changed from one state to another, and examples.

        Moves between partitions count as no change, and neither do times to live and timers.

        Parameters
        ----------
        before, after
            As ``at`` of :meth:`show`.
        limit
            The number of examples.
        """
        a, b = self._at(before), self._at(after)
        found = self._ask(a, {"do": "diff", "with": [b.checkpoint, b.batch], "limit": limit})
        return {"before": a.words, "after": b.words, **found}

    def export(self, table: str, *, at: str | None = None) -> dict[str, Any]:
        """Write all entries to a new Delta table; return the number of rows.

        Parameters
        ----------
        table
            Its name.
        at
            As for :meth:`show`.

        Raises
        ------
        StreamwardenError
            ``STATE_UNREADABLE`` if there is such a table.
        """
        if DeltaLog(self._workspace.files, table).latest is not None:
            raise StreamwardenError("STATE_UNREADABLE", f"{self._job}: table {table} exists; name another")
        where = self._at(at)
        return {"at": where.words, "table": table, **self._ask(where, {"do": "export", "table": table})}

    def _at(self, at: str | None) -> _At:
        documents = JobDocuments(self._workspace.storage, self._job)
        if at is not None and not at.isdigit():
            found = catalog.find(self._workspace, self._job, at)
            key = savepoint_checkpoint_key(self._job, found.id)
            return _At(key, found.manifest.batch, found.manifest.spec, f"savepoint {found.id}")
        reference, desired = documents.checkpoint.read(), documents.desired.read()
        reader = CheckpointReader(self._workspace.storage, reference.path) if reference is not None else None
        last = reader.last_commit() if reader is not None else None
        if reference is None or desired is None or reader is None or last is None:
            raise StreamwardenError("SAVEPOINT_NOTHING", f"{self._job}: no batch is committed yet")
        batch = last if at is None else int(at)
        if not reader.is_committed(batch):
            what = f"{self._job}: batch {batch} is not committed, or no longer kept; the newest is {last}"
            raise StreamwardenError("STATE_UNREADABLE", what)
        words = f"batch {batch} of generation {reference.generation}"
        return _At(reference.path, batch, desired.spec, words)

    def _ask(self, at: _At, question: dict[str, Any]) -> dict[str, Any]:
        question = {**question, "at": [at.checkpoint, at.batch]}
        arguments = ["--spec", at.spec.model_dump_json(), "--question", json.dumps(question)]
        program = "streamwarden.driver.state_view"
        (answer,) = spark_answers(
            self._workspace, program, arguments, number=1, code="STATE_UNREADABLE", heed=lambda: None
        )
        if "error" in answer:
            code = answer["code"]
            raise StreamwardenError(code if is_code(code) else "STATE_UNREADABLE", answer["error"])
        return answer

    def _file_bytes(self, at: _At) -> dict[str, int]:
        offsets = CheckpointReader(self._workspace.storage, at.checkpoint).offsets(at.batch)
        if offsets is None:
            return {}
        try:
            files = closure(self._workspace.files, at.checkpoint, offsets).files
        except StateFileMissing:
            # Spark has removed the batch's files since they were read.
            return {}
        found: dict[str, int] = {}
        for path, size in files.items():
            parts = path.split("/")
            if parts[0] == "state" and len(parts) > 3 and parts[2].isdigit():
                found[f"{parts[1]}/{parts[2]}"] = found.get(f"{parts[1]}/{parts[2]}", 0) + size
        return found
