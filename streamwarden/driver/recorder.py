"""Write every batch into the table ``job_progress``, in parallel to the batches and without delaying them."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from streamwarden.errors import StreamwardenError
from streamwarden.model.profile import ProgressTableSpec
from streamwarden.model.progress import BatchProgress
from streamwarden.model.record import utc_now
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

if TYPE_CHECKING:
    from streamwarden.formats.progress_table import ProgressTable

__all__ = ["BatchRecorder"]

_log = logging.getLogger(__name__)

_HELD = 1000
"""Rows held while the table can't be written: a night with a batch per minute. Then older rows are dropped."""

_AFTER_START_S = 10.0
"""Seconds until the table is opened for rows of earlier incarnations. 10 s: a start and its first batch take less."""

_LOOKED_BACK = 20
"""Earlier incarnations that are searched for unwritten rows."""

_OLDEST = timedelta(days=7)
"""Maximum age of their end: after 30 days the table forgets the transactions of an incarnation."""


class BatchRecorder:
    """Collects batches, and appends them in its own thread: after some time, after some batches, and at the end.

    First it appends what earlier incarnations of the job reported and did not append. So a batch in a progress document
    is in the table once. A batch that a killed driver had committed and not yet reported is in neither.

    If the table can't be written, this only causes warnings. Its rows wait, up to a thousand of them.

    Parameters
    ----------
    workspace, job, incarnation, generation
        The driver whose batches they are.
    spec
        When they are written.
    """

    def __init__(
        self, workspace: Workspace, job: str, incarnation: str, generation: int, spec: ProgressTableSpec
    ) -> None:
        self._documents = JobDocuments(workspace.storage, job)
        self._workspace = workspace
        self._job = job
        self._incarnation = incarnation
        self._generation = generation
        self._every = spec.every.total_seconds()
        self._batches = spec.batches
        self._held: list[BatchProgress] = []
        self._dropped = 0
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="job_progress", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, done: BatchProgress) -> None:
        """Add a batch. Returns at once."""
        with self._lock:
            self._held.append(done)
            if len(self._held) > _HELD:
                self._held.pop(0)
                self._dropped += 1
            if len(self._held) >= self._batches:
                self._due.set()

    def close(self, timeout: float) -> bool:
        """Write the remaining rows, once; return whether all were written within `timeout` seconds."""
        self._closing.set()
        self._due.set()
        self._thread.join(timeout)
        if self._thread.is_alive() or self._held:
            _log.warning(
                "the last %d batches are not in the table job_progress yet; the next start adds them", self.held
            )
            return False
        return True

    @property
    def held(self) -> int:
        """Number of batches that wait to be written."""
        return len(self._held)

    @cached_property
    def _table(self) -> ProgressTable:
        # Imported here, late and in the thread: pyarrow and delta-rs would add a good part of a second to a start.
        from streamwarden.formats.progress_table import ProgressTable

        return ProgressTable(self._workspace)

    def _work(self) -> None:
        trouble = ""
        recovered = False
        due = self._due.wait(min(self._every, _AFTER_START_S))
        while True:
            # Clear first: what is added after the check then wakes the wait.
            self._due.clear()
            closing = self._closing.is_set()
            try:
                # Before our own rows: if an incarnation has rows in the table, so do the incarnations before it.
                recovered = recovered or self._recover()
                if due or closing:
                    self._flush()
                trouble = ""
            except Exception as error:
                # No exception may end this thread: rows are still held. Logged once, not every half minute.
                known = isinstance(error, StreamwardenError)
                said = error.code if isinstance(error, StreamwardenError) else type(error).__name__
                if said != trouble:
                    _log.warning("batches wait to be written to the table job_progress: %s", error, exc_info=not known)
                trouble = said
            if closing:
                return
            # After a failure, more rows are no reason to retry sooner.
            (self._closing if trouble else self._due).wait(self._every)
            due = True

    def _flush(self) -> None:
        with self._lock:
            rows = list(self._held)
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _log.warning(
                "%d batches will be missing in the table job_progress: it could not be written for too long", dropped
            )
        if rows:
            self._table.append(self._job, self._incarnation, self._generation, rows)
            with self._lock:
                # New rows may have arrived meanwhile; some of the written rows may have been dropped.
                self._held = [done for done in self._held if done.batch > rows[-1].batch]

    def _recover(self) -> bool:
        """Append what earlier incarnations reported and did not append, and return True."""
        earlier = [name for name in self._documents.incarnations() if name < self._incarnation]
        left = []
        for name in reversed(earlier[-_LOOKED_BACK:]):
            progress = self._documents.progress(name).read()
            if progress is None or progress.last is None:
                continue
            if utc_now() - progress.at > _OLDEST:
                break
            there = self._table.last_batch(self._job, name)
            if there is None or there < progress.last.batch:
                heartbeat = self._documents.heartbeat(name).read()
                left.append((name, heartbeat.generation if heartbeat else 0, progress.recent))
            if there is not None:
                # An incarnation writes its own rows only after those of the incarnations before it.
                break
        for name, generation, recent in reversed(left):
            added = self._table.append(self._job, name, generation, recent)
            _log.info(
                "%d batches of incarnation %s, which ended before it wrote them, are in the table job_progress",
                added,
                name,
            )
        return True
