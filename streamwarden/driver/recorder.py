"""Writing every batch into the table ``job_progress``, beside the batches and never in their way."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from streamwarden.errors import StreamwardenError
from streamwarden.model.profile import ProgressTableSpec
from streamwarden.model.status import BatchProgress, utc_now
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

if TYPE_CHECKING:
    from streamwarden.formats.progress_table import ProgressTable

__all__ = ["BatchRecorder"]

_log = logging.getLogger(__name__)

_HELD = 1000
"""Rows held while the table can't be written: a night of minutes. Older ones are dropped then."""

_AFTER_START_S = 10.0
"""Until the table is opened for what earlier incarnations left. 10 s: a start and its first batch are mostly over."""

_LOOKED_BACK = 20
"""Incarnations that are looked through for rows that they did not get to write."""

_OLDEST = timedelta(days=7)
"""Of those, none that ended longer ago: the table forgets after 30 days what it has of an incarnation."""


class BatchRecorder:
    """Collects batches, and appends them in a thread of its own: after a while, after some, and at the end.

    First it appends what earlier incarnations of the job reported and did not get to append. So a batch that is in a
    progress document is in the table once; what a killed driver had committed and not yet reported is in neither.

    A table that can't be written costs warnings only. Its rows wait, up to a thousand of them.

    Parameters
    ----------
    workspace, job, incarnation, generation
        Whose batches they are.
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
        """Begin to write."""
        self._thread.start()

    def add(self, done: BatchProgress) -> None:
        """Take a batch. Returns at once."""
        with self._lock:
            self._held.append(done)
            if len(self._held) > _HELD:
                self._held.pop(0)
                self._dropped += 1
            if len(self._held) >= self._batches:
                self._due.set()

    def close(self, timeout: float) -> bool:
        """Write what is left, once; return whether all of it was written within `timeout` seconds."""
        self._closing.set()
        self._due.set()
        self._thread.join(timeout)
        if self._thread.is_alive() or self._held:
            _log.warning("the last %d batches are not in the table of batches yet; the next start adds them", self.held)
            return False
        return True

    @property
    def held(self) -> int:
        """Batches that wait to be written."""
        return len(self._held)

    @cached_property
    def _table(self) -> ProgressTable:
        # Here, in the thread and after a while: pyarrow and delta-rs take a good part of a second of a start's time.
        from streamwarden.formats.progress_table import ProgressTable

        return ProgressTable(self._workspace)

    def _work(self) -> None:
        trouble = ""
        recovered = False
        due = self._due.wait(min(self._every, _AFTER_START_S))
        while True:
            # In this order: what is said after a look wakes the wait.
            self._due.clear()
            closing = self._closing.is_set()
            try:
                # Before our own: the table then says of an incarnation that has rows that those before it have theirs.
                recovered = recovered or self._recover()
                if due or closing:
                    self._flush()
                trouble = ""
            except Exception as error:
                # Nothing here may end this thread: rows go on being held. Said once, and not every half minute.
                known = isinstance(error, StreamwardenError)
                said = error.code if isinstance(error, StreamwardenError) else type(error).__name__
                if said != trouble:
                    _log.warning("batches wait to be written into their table: %s", error, exc_info=not known)
                trouble = said
            if closing:
                return
            # In trouble, more rows are no reason to try sooner.
            (self._closing if trouble else self._due).wait(self._every)
            due = True

    def _flush(self) -> None:
        with self._lock:
            rows = list(self._held)
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _log.warning("%d batches were dropped from their table: it could not be written for too long", dropped)
        if rows:
            self._table.append(self._job, self._incarnation, self._generation, rows)
            with self._lock:
                # Some may have come meanwhile; some of those written may have been dropped.
                self._held = [done for done in self._held if done.batch > rows[-1].batch]

    def _recover(self) -> bool:
        """Append what earlier incarnations reported and did not write, and return True."""
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
                # What it wrote, it wrote after it had done this for those before it.
                break
        for name, generation, recent in reversed(left):
            added = self._table.append(self._job, name, generation, recent)
            _log.info("%d batches of incarnation %s, which ended before it wrote them, are in their table", added, name)
        return True
