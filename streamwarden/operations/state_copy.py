"""A repartitioned copy of a job's checkpoint: made from a savepoint, proved to have the same state, following the job.

A standby driver does Spark's part (:mod:`streamwarden.runtime.standby`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import repartitioned
from streamwarden.formats.checkpoint_follower import Follower, pays_to_start_ahead
from streamwarden.model.operation import Step, StepName
from streamwarden.model.progress import BatchProgress
from streamwarden.model.savepoint import Manifest
from streamwarden.model.status import CheckpointRef
from streamwarden.runtime.standby import Standby
from streamwarden.runtime.state_reader import StateAt
from streamwarden.savepoints.fresh_checkpoint import fresh_checkpoint
from streamwarden.savepoints.take import Report
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Phase, observe

__all__ = ["StateCopy", "differing", "follow"]

_FOLLOW_S = 900.0
"""How long a copy may take to catch up with the job. 15 minutes; after that, the job is stopped first."""

_TRIED = 10
"""After this many replayed batches, the copy must be closer than before them. 10: the job has no downtime meanwhile.
With 6, the noise of a busy machine has ended a copy that gained one batch in four."""

_OUTRUN = 3
"""If the job commits twice as many batches while this many are replayed, the copy will not come closer."""

_WORK_S = 3600.0
"""How long Spark may take to repartition or to digest. An hour: ten million keys take some minutes."""

_PROGRESS_S = 2.0
"""How long to wait for the report of a committed batch: it is written within milliseconds, as a rule."""


class _Follows(Protocol):
    @property
    def behind(self) -> int: ...

    @property
    def outrun(self) -> bool: ...


def follow(copy: _Follows, replay: Callable[[], float], *, again: float) -> bool:
    """Replay batches until a copy has caught up with its job, or comes no closer.

    Parameters
    ----------
    copy
        Returns how many batches it is behind, and whether it can no longer follow.
    replay
        Replays the next batch; returns the duration in seconds.
    again
        Seconds to repartition the state once more.

    Returns
    -------
    bool
        Whether replaying the rest is faster than repartitioning the state again. After the job's stop, one of the two
        is needed.
    """
    deadline = time.monotonic() + _FOLLOW_S
    behind: list[int] = []
    took = 0.0
    while (now := copy.behind) > 0:
        if copy.outrun:
            return False
        outrun = len(behind) >= _OUTRUN and now - behind[-_OUTRUN] >= _OUTRUN
        gaining = len(behind) < _TRIED or now < behind[-_TRIED]
        if outrun or not gaining or time.monotonic() >= deadline:
            # Plus 1: the batch in flight.
            return (now + 1) * took <= again
        behind.append(now)
        try:
            took = replay()
        except (StreamwardenError, FileNotFoundError) as error:
            # The job may have removed the batch from its logs since it was looked for.
            differs = isinstance(error, StreamwardenError) and error.code != "RESCALE_FAILED"
            if differs or not (copy.behind > 0 and copy.outrun):
                raise
            return False
    return True


def differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the stores whose digests differ."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


class StateCopy:
    """A copy of a savepoint, with another number of partitions and its own generation.

    Parameters
    ----------
    workspace, job
        The workspace, and the job's name.
    operation
        The id of the operation that makes the copy.
    made
        The savepoint.
    was, partitions
        State partitions of the savepoint and of the copy.
    generation
        Returns a generation that was never used.
    check
        Raises if another process has taken over the operation.
    spare
        The standby driver whose Spark works on the copy.
    step
        Begins a step of the operation.
    heed
        Called while Spark works; raises if the operation must not continue.
    say
        Called with messages about the progress.
    report
        Called with the progress of copying files.
    proved_later
        Whether the digests are computed once the job runs on the copy, see :meth:`proof`.
    """

    def __init__(
        self,
        workspace: Workspace,
        job: str,
        operation: str,
        made: Manifest,
        *,
        was: int,
        partitions: int,
        generation: Callable[[], int],
        check: Callable[[], None],
        spare: Standby,
        step: Callable[[StepName], AbstractContextManager[Step]],
        heed: Callable[[], None],
        say: Callable[[str], None],
        report: Report | None,
        proved_later: bool = False,
    ) -> None:
        self._workspace = workspace
        self._job = job
        self._operation = operation
        self._made = made
        self._was, self._partitions = was, partitions
        self._generation, self._check = generation, check
        self._spare = spare
        self._step = step
        self._heed = heed
        self._say = say
        self._report = report
        self.proved_later = proved_later
        self.rows = made.state_rows or 0
        """Rows of the savepoint's state, as the query reported them, or else as counted by the digests."""
        self._took_s = self._replay_s = 0.0
        self._make()

    @property
    def reference(self) -> CheckpointRef:
        """The reference that makes the copy the job's checkpoint: its folder, generation and last batch."""
        return self._fresh.model_copy(update={"base_batch": self._last_commit()})

    @property
    def batch(self) -> int:
        """The job's batch that the copy has reached."""
        return self._follower.batch

    @property
    def behind(self) -> int:
        """How many batches the job has committed after that batch."""
        return self._follower.behind

    @property
    def outrun(self) -> bool:
        """Whether the job has already removed the next batch from its log."""
        return self._follower.outrun

    def proof(self) -> dict[str, StateAt] | None:
        """Return the states that must be equal: the job's, and the copy's, which it reached by replaying.

        None if digests have proved it already: if the copy has replayed nothing, unless it was to be proved later.
        """
        batch = self.batch
        if batch == self._made.batch and not self.proved_later:
            return None
        at = self._last_commit()
        assert at is not None
        return {
            "job": StateAt(self._original, batch, self._was),
            "copy": StateAt(self._fresh.path, at, self._partitions),
        }

    def follow(self) -> bool:
        """Follow the running job. Return whether following pays: see :func:`follow`."""
        return follow(self, self._replay, again=self._took_s)

    def follow_to_end(self, interval: float) -> bool:
        """Replay the remaining batches of the job, whose query has ended.

        Parameters
        ----------
        interval
            The job's trigger interval, seconds.

        Returns
        -------
        bool
            Whether the last replay was done by the job's future query, which holds its batches until the driver runs.
        """
        while self.behind > 1:
            self._replay()
        if not pays_to_start_ahead(time.time(), interval, self._replay_s):
            if self.behind > 0:
                self._replay()
            return False
        batch = self._follower.begin() if self.behind > 0 else None
        rows = self._spare.start_ahead(self._fresh.path, timeout=_WORK_S, say=self._heed)
        if batch is not None:
            self._check_replayed(batch, rows or [])
        return True

    # -- making it ---------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        started = time.monotonic()
        documents = JobDocuments(self._workspace.storage, self._job)
        current = documents.checkpoint.read()
        assert current is not None
        with self._step(StepName.COPY) as step:
            self._fresh = fresh_checkpoint(
                self._workspace,
                self._job,
                self._made,
                self._generation(),
                outputs=[],
                operation=self._operation,
                reason=f"rescaled to {self._partitions} partitions, from savepoint {self._made.id}",
                check=self._check,
                report=self._report,
            ).model_copy(update={"rescaled": True})
            step.detail = f"{self._fresh.path}: {len(self._made.files)} files, {self._made.bytes} bytes"
        # What making it once more would take after the job's stop: the digests are then computed later.
        self._took_s = time.monotonic() - started
        before = None if self.proved_later else self._digest_before()
        began = time.monotonic()
        with self._step(StepName.REPARTITION) as step:
            self._spare.repartition(self._fresh.path, self._partitions, timeout=_WORK_S, say=self._heed)
            self._correct_metadata()
            batch = self._last_commit()
            if batch != self._made.batch + 1:
                what = f"batch {self._made.batch + 1} is expected, and {batch} is there"
                raise StreamwardenError("RESCALE_FAILED", what)
            step.detail = f"{self._partitions} partitions, as batch {batch}"
        self._took_s += time.monotonic() - began
        if before is not None:
            self._digest_after(batch, before)
        shift = batch - self._made.batch
        self._original = current.path
        self._follower = Follower(
            self._workspace, current.path, self._fresh.path, shift=shift, partitions=self._partitions
        )

    def _digest_before(self) -> dict[str, str]:
        with self._step(StepName.DIGEST_BEFORE) as step:
            before = self._digests(self._made.batch, self._was)
            self._compare_rows(before)
            self.rows = self._made.state_rows or sum(map(_count, before.values()))
            step.detail = _rows(before)
        return before

    def _digest_after(self, batch: int, before: dict[str, str]) -> None:
        with self._step(StepName.DIGEST_AFTER) as step:
            after = self._digests(batch, self._partitions)
            if stores := differing(before, after):
                raise StreamwardenError("RESCALE_STATE_DIFFERS", f"{self._job}: {', '.join(stores)}")
            step.detail = f"the same: {_rows(after)}"

    def _digests(self, batch: int, partitions: int) -> dict[str, str]:
        return self._spare.digests(self._fresh.path, batch, partitions, timeout=_WORK_S, say=self._heed)

    def _compare_rows(self, digests: dict[str, str]) -> None:
        """Compare with the query's last reported row counts, for operators whose state is a single table."""
        for operator in self._made.operators:
            counted = [_count(one) for name, one in digests.items() if name.split("/")[0] == str(operator.id)]
            if len(counted) == 1 and operator.rows is not None and counted != [operator.rows]:
                what = f"operator {operator.id} had {operator.rows} rows, and {counted[0]} are read back"
                raise StreamwardenError("RESCALE_STATE_DIFFERS", f"{self._job}: {what}")

    def _correct_metadata(self) -> None:
        files = self._workspace.files
        for operator in self._made.operators:
            key = f"{self._fresh.path}/state/{operator.id}/_metadata/metadata"
            with suppress(FileNotFoundError):
                # Spark itself writes metadata of version 2, with a file for each change.
                files.write(key, repartitioned(files.read(key), self._partitions))

    def _last_commit(self) -> int | None:
        return CheckpointReader(self._workspace.storage, self._fresh.path).last_commit()

    # -- keeping it up -----------------------------------------------------------------------------------------------

    def _replay(self) -> float:
        started = time.monotonic()
        batch = self._follower.begin()
        rows = self._spare.replay(self._fresh.path, timeout=_WORK_S, say=self._heed)
        self._check_replayed(batch, rows)
        self._replay_s = time.monotonic() - started
        return self._replay_s

    def _check_replayed(self, batch: int, rows: list[int]) -> None:
        self._follower.check(batch)
        known = self._progress(batch)
        if known is not None and [one.rows for one in known.operators] != rows:
            what = f"{[one.rows for one in known.operators]} rows of state after batch {batch}, {rows} in the copy"
            raise StreamwardenError("RESCALE_STATE_DIFFERS", f"{self._job}: {what}")
        self._say(f"batch {batch} replayed, {self.behind} behind")

    def _progress(self, batch: int) -> BatchProgress | None:
        """Return the job's report of a batch, which it writes a moment after the commit; None without a report."""
        deadline = time.monotonic() + _PROGRESS_S
        while True:
            seen = observe(self._workspace, self._job)
            recent = seen.progress.recent if seen.progress else []
            comes = seen.phase is Phase.RUNNING and (not recent or recent[-1].batch < batch)
            if not comes or time.monotonic() >= deadline:
                return next((one for one in recent if one.batch == batch), None)
            time.sleep(0.1)


def _count(digest: str) -> int:
    return int(digest.split(":")[0], 16)


def _rows(digests: dict[str, str]) -> str:
    return ", ".join(f"{name} {_count(digest)} rows" for name, digest in sorted(digests.items()))
