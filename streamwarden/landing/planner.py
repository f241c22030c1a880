"""Plan what a job reads next: each landed file once, independent of its name, age and size."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.landing.file import LandedFile, shown
from streamwarden.landing.folder import LandingFolder, Listing, landing_folder
from streamwarden.landing.plans import Plans, Read, plans_of, read_plans
from streamwarden.model.progress import SourceProgress
from streamwarden.model.source_spec import FileSource
from streamwarden.model.status import CheckpointRef, LandingState
from streamwarden.storage import Conflict
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["Planner", "is_same", "newest_readings"]

_log = logging.getLogger(__name__)

_SETTLED_MS = 2_000
"""A file on disk that changed in the last 2 s may be incomplete. It waits for the next listing, unless it is unchanged
since the previous one. S3 has no incomplete objects."""

_REREADS_S3_S = 30.0
"""Seconds between two looks for re-read requests on S3, where each is a LIST. The folder may be listed every second."""

_TOLD = 20
"""Number of files that a heartbeat names; `streamwarden landing list` shows all."""


def newest_readings(workspace: Workspace, plans: Plans, reads: Iterable[Read], folder: str) -> dict[str, LandedFile]:
    """Return, by name, the newest reading of each file that a job has planned or read.

    Parameters
    ----------
    plans
        The plans that the job continues with.
    reads
        What its checkpoint has read; for a clone these are plans of the other job.
    folder
        The landing folder's address, for files that a version without plans has read: their length is -1, unknown.
    """
    known: dict[str, LandedFile] = {}
    taken: set[int] = set()
    for read in reads:
        plan = read.plan_of()
        if plan is None:
            name = _name_below(folder, read.path)
            known[name] = LandedFile(name, folder, -1, read.modified_ms)
        elif plan[0] == plans.folder:
            taken.add(plan[1])
        else:
            known |= {file.name: file for file in Plans(workspace.storage, plan[0]).read(plan[1])}
    return known | plans.known(taken)[0]


def is_same(planned: LandedFile, found: LandedFile | None) -> bool:
    """Return whether a file is unchanged since it was planned."""
    return found is not None and planned.modified_ms == found.modified_ms and planned.length in (-1, found.length)


def _name_below(folder: str, path: str) -> str:
    # Spark writes file:///a or s3a://b/a.
    plain = path.removeprefix("file://") if folder.startswith("/") else path
    inner = plain.removeprefix(f"{folder.rstrip('/')}/")
    return inner if inner != plain else path.rsplit("/", 1)[-1]


class Planner:
    """Lists landed files and plans them into batches, for the driver that holds the job's lease.

    Runs in a thread: in a large folder :meth:`look` may take long. Also a
    :class:`~streamwarden.driver.backlog.Backlog`.

    Parameters
    ----------
    workspace, job, source
        The job and its file source.
    reference
        The checkpoint in force.
    guard
        Called before a plan is written; raises if this driver may not write.
    """

    def __init__(
        self,
        workspace: Workspace,
        job: str,
        source: FileSource,
        reference: CheckpointRef,
        guard: Callable[[], None],
    ) -> None:
        self._workspace = workspace
        self._documents = JobDocuments(workspace.storage, job)
        self._source = source
        self._checkpoint = reference.path
        self._guard = guard
        self._folder: LandingFolder = landing_folder(workspace, source)
        self._plans = plans_of(workspace, job)
        self._lock = threading.RLock()
        self._known: dict[str, LandedFile] = {}
        self._waiting: dict[int, int] = {}
        self._next = 0
        self._before: dict[str, LandedFile] = {}
        self._young: dict[str, LandedFile] = {}
        self._unplanned = 0
        self._asked_at = -_REREADS_S3_S
        self._refused: dict[str, str] = {}
        self._troubles: list[str] = []
        self._trouble = ""
        self.unsettled = False
        """Whether the last listing left files that may be incomplete: another listing soon is worthwhile."""

    @property
    def looks_often(self) -> bool:
        """Whether a listing is free of charge."""
        return not self._folder.atomic

    def open(self) -> None:
        """Load previous plans and reads. Call it before the first listing, and again after a lost race."""
        with self._lock:
            self._plans.make_folder()
            reads = list(read_plans(self._workspace, self._checkpoint))
            taken = {plan for read in reads if (plan := read.plan_of()) is not None}
            self._known = newest_readings(self._workspace, self._plans, reads, self._address)
            numbers = self._plans.numbers()
            self._waiting = {
                number: len(self._plans.read(number)) for number in numbers if (self._plans.folder, number) not in taken
            }
            # Also count plans that were deleted: Spark never reads a second file with the same name.
            read = [number for folder, number in taken if folder == self._plans.folder]
            self._next = max([*numbers, *read], default=-1) + 1
            self._refused = self._plans.refused()

    @property
    def _address(self) -> str:
        return self._workspace.source_path(self._source.path).removeprefix("file://")

    def look(self, *, rest: bool = True) -> int:
        """List the folder, plan full batches, and return how many plans were written.

        Parameters
        ----------
        rest
            Whether to also plan files that do not fill a batch, if no plan waits.

        Raises
        ------
        OSError, StreamwardenError
            If the folder can't be read or a plan can't be written: retry later.
        """
        try:
            listing = self._folder.look()
            with self._lock:
                return self._plan(listing, rest=rest)
        except (OSError, StreamwardenError) as error:
            self._trouble = f"landed files can't be planned: {error}".splitlines()[0]
            raise

    def _plan(self, listing: Listing, *, rest: bool) -> int:
        now_ms = time.time_ns() // 1_000_000
        self._young, self.unsettled = {}, False
        found = [*self._fresh(listing, now_ms), *self._rereads(listing, now_ms)]
        self._before = self._young
        fresh = [_judged(file, self._source.max_file_bytes) for file in found]
        written = 0
        batches = list(_batches(fresh, self._source))
        for number, files in enumerate(batches, start=1):
            if number == len(batches) and not _is_full(files, self._source) and (self._waiting or not rest):
                break
            if not self._write(files):
                break
            written += 1
        self._unplanned = sum(self._known.get(file.name) != file for file in fresh)
        self._troubles = list(self._told(listing))
        self._trouble = ""
        return written

    def _fresh(self, listing: Listing, now_ms: int) -> Iterator[LandedFile]:
        # Oldest first, by modification time.
        for file in sorted(listing.files.values(), key=lambda file: (file.modified_ms, file.name)):
            if file.name not in self._known and self._is_settled(file, now_ms):
                yield file

    def _rereads(self, listing: Listing, now_ms: int) -> Iterator[LandedFile]:
        """Yield files to read again, and remove requests that are done."""
        if self._workspace.s3 is not None and time.monotonic() - self._asked_at < _REREADS_S3_S:
            return
        self._asked_at = time.monotonic()
        requests = self._documents.rereads()
        names = {shown(name): name for name in self._known} if requests else {}
        chosen: set[str] = set()
        for request in requests:
            left = 0
            for written, reading in request.files.items():
                name = names.get(written)
                found = listing.files.get(name) if name is not None else None
                # A file that was removed meanwhile can't be read; when it lands again it counts as replaced.
                if found is None or self._known[found.name].reading >= reading:
                    continue
                left += 1
                if found.name not in chosen and self._is_settled(found, now_ms):
                    chosen.add(found.name)
                    yield replace(found, reading=reading)
            if not left:
                self._documents.reread(request.id).delete()

    def _is_settled(self, file: LandedFile, now_ms: int) -> bool:
        """Return whether a file is complete by its modification time; if it may not be, it is listed again."""
        if self._folder.atomic or file.modified_ms <= now_ms - _SETTLED_MS:
            return True
        # A complete file, too: if it is not planned now because a plan waits, it must not have to settle again while a
        # later file is planned before it. Its rows would then be late for jobs with a watermark.
        self._young[file.name] = file
        if self._before.get(file.name) == file:
            return True
        self.unsettled = True
        return False

    def _write(self, files: list[LandedFile]) -> bool:
        """Write a plan; return whether the next plans may follow."""
        self._guard()
        try:
            self._plans.create(self._next, files)
        except Conflict:
            # By this driver, whose earlier try had no answer, or by one that has lost its lease: both plans are valid.
            _log.info("plan %d exists already", self._next)
            self.open()
            return False
        _log.info("plan %d: %d landed files, %d bytes", self._next, len(files), sum(file.length for file in files))
        self._waiting[self._next] = len(files)
        self._next += 1
        self._known |= {file.name: file for file in files}
        return True

    def _told(self, listing: Listing) -> Iterator[str]:
        """Yield messages about what a person should check."""
        yield from listing.troubles
        for name, found in listing.files.items():
            known = self._known.get(name)
            if known is None:
                continue
            if not is_same(known, found):
                yield f"{known.label} was replaced after it had been read"
            elif known.label in self._refused:
                yield f"{known.label} was quarantined whole: {self._refused[known.label]}"

    def state(self) -> LandingState:
        """Return the folder's state for the heartbeat."""
        with self._lock:
            told = [self._trouble] if self._trouble else self._troubles
            return LandingState(
                waiting=sum(self._waiting.values()), unplanned=self._unplanned, told=len(told), first=told[:_TOLD]
            )

    def refused(self, reasons: Mapping[str, str]) -> None:
        """Record files that the job has quarantined as a whole: the reason by label."""
        with self._lock:
            self._plans.add_refused(dict(reasons))
            self._refused |= reasons

    def after(self, start: str | None, end: str | None, *_: object) -> SourceProgress | None:
        """Return how many files a batch read, and how many wait; see :class:`~streamwarden.driver.backlog.Backlog`."""
        last = _log_offset(end)
        if last is None:
            return None
        began = _log_offset(start)
        first = 0 if began is None else began + 1
        taken = 0
        with self._lock:
            for read in read_plans(self._workspace, self._checkpoint, first=first) if first <= last else ():
                plan = read.plan_of()
                if read.batch <= last and plan is not None:
                    own = self._waiting.pop(plan[1], 0) if plan[0] == self._plans.folder else 0
                    # A batch that an earlier driver has begun does not count as waiting.
                    taken += own or len(Plans(self._workspace.storage, plan[0]).read(plan[1]))
            pending = sum(self._waiting.values()) + self._unplanned
            # A plan is a batch: if another plan waits, this batch read as much as it could.
            return SourceProgress(unit="files", taken=taken, pending=pending, cut=bool(self._waiting))


def _log_offset(offset: str | None) -> int | None:
    try:
        return int(parse(offset)["logOffset"]) if offset else None
    except (ValueError, KeyError, TypeError):
        return None


def _judged(file: LandedFile, most_bytes: int) -> LandedFile:
    if file.refused is None and file.length > most_bytes:
        return replace(file, refused=f"FILE_TOO_LARGE: {file.length} bytes, and source.max_file_size is {most_bytes}")
    return file


def _batches(files: Iterable[LandedFile], source: FileSource) -> Iterator[list[LandedFile]]:
    batch: list[LandedFile] = []
    for file in files:
        # A single file always forms a batch, however large it is.
        if batch and (_is_full(batch, source) or _size([*batch, file]) > source.max_batch_bytes):
            yield batch
            batch = []
        batch.append(file)
    if batch:
        yield batch


def _is_full(files: list[LandedFile], source: FileSource) -> bool:
    return len(files) >= source.max_files_per_batch or _size(files) >= source.max_batch_bytes


def _size(files: list[LandedFile]) -> int:
    # Refused files are not read.
    return sum(file.length for file in files if file.refused is None)
