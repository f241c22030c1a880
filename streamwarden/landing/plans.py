"""Plans of batches: the landed files that a job reads together.

Spark's own file source remembers files by path and selects them by modification time. It never reads a file with an old
time; a file with a future time hides all others; it misses replaced files; and it takes some names for patterns. So the
driver writes the names into plans, one file of JSON lines per batch, and Spark streams over the plans.

``arrivals/JOB/gNNNNNN/NUMBER.jsonl`` is a plan, written once and never changed. The generation is the first in which
the job had plans there; all later ones continue in that folder. A checkpoint's own log (``sources/N``) records which
plans it has read, so a restored or copied checkpoint reads exactly the plans that it has not read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse, parse_object
from streamwarden.landing.file import LandedFile
from streamwarden.model.status import CheckpointRef
from streamwarden.storage import Storage
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import ARRIVALS, job_key, plans_folder_of, plans_key
from streamwarden.store.workspace import Workspace

__all__ = ["Plans", "Read", "plans_of", "read_plans"]

_KNOWN = "_known.jsonl"
_REFUSED = "_refused.json"
# Number of plans after which the next start reads a summary of them.
_SUMMARISED = 64
_REMEDY = (
    "Remove this file, and deploy the job: the landed files that it named are planned again. Rows that a table has"
    " already are dropped by its keys."
)


@dataclass(frozen=True)
class Read:
    """An entry of a checkpoint's log of its reads.

    Parameters
    ----------
    batch
        The batch's number in the log.
    path
        The file that Spark read, in Spark's notation, unescaped.
    modified_ms
        That file's modification time.
    """

    batch: int
    path: str
    modified_ms: int

    def plan_of(self) -> tuple[str, int] | None:
        """Return the plan's folder and number, or None: an older version read the landed file itself."""
        folder, number = plans_folder_of(self.path), self.path.rpartition("/")[2].removesuffix(".jsonl")
        return (folder, int(number)) if folder is not None and number.isdecimal() else None


def read_plans(workspace: Workspace, checkpoint: str, *, first: int = 0) -> Iterator[Read]:
    """Yield what a checkpoint has read, or has begun to read, oldest first.

    Parameters
    ----------
    checkpoint
        The checkpoint's folder, relative to the root.
    first
        The log's number to start with.

    Raises
    ------
    StreamwardenError
        ``CHECKPOINT_DAMAGED``.
    """
    folder, names = _log(workspace, checkpoint)
    # A compact entry repeats the entries before it.
    compacted = max((int(name.split(".")[0]) for name in names if name.endswith(".compact")), default=-1)
    later = sorted(int(name) for name in names if name.isdecimal() and int(name) > max(compacted, first - 1))
    chosen = [f"{compacted}.compact"] if compacted >= first else []
    for name in [*chosen, *map(str, later)]:
        entry = workspace.storage.read(f"{folder}/{name}")
        lines = entry.data.decode(errors="replace").splitlines()[1:] if entry is not None else []
        for line in lines:
            try:
                found = parse_object(line)
                read = Read(int(found["batchId"]), unquote(str(found["path"])), int(found.get("timestamp", 0)))
            except (ValueError, KeyError, TypeError) as error:
                raise StreamwardenError(
                    "CHECKPOINT_DAMAGED", f"{folder}/{name}: {line[:80]!r} is not an entry"
                ) from error
            if read.batch >= first:
                yield read


def _log(workspace: Workspace, checkpoint: str) -> tuple[str, set[str]]:
    """Return the log of a checkpoint's source of files, and the names of its entries."""
    logs: dict[str, set[str]] = {}
    # One listing: on S3 each is a request, at every look for new files.
    for key in workspace.storage.list(f"{checkpoint}/sources"):
        folder, name = key.rsplit("/", 1)
        logs.setdefault(folder, set()).add(name)
    for folder, names in logs.items():
        # Kafka's source keeps its first offsets in such a folder, and a job may have both.
        if _logs_paths(workspace, f"{folder}/{min(names)}"):
            return folder, names
    return f"{checkpoint}/sources/0", set()


def _logs_paths(workspace: Workspace, entry: str) -> bool:
    found = workspace.storage.read(entry)
    return found is not None and b'"path"' in found.data


def plans_of(workspace: Workspace, job: str) -> Plans:
    """Return the plans that a job's checkpoint continues with; the first generation's if it has none."""
    reference = JobDocuments(workspace.storage, job).checkpoint.read()
    return Plans(workspace.storage, _folder(workspace, job, reference))


def _folder(workspace: Workspace, job: str, reference: CheckpointRef | None) -> str:
    if reference is None:
        return plans_key(job, 1)
    newest = max(read_plans(workspace, reference.path), key=lambda read: read.batch, default=None)
    plan = newest.plan_of() if newest is not None else None
    if plan is not None and plan[0].startswith(f"{job_key(ARRIVALS, job)}/"):
        return plan[0]
    # A clone's checkpoint has read the other job's plans; a checkpoint from before plans has read the files themselves.
    return plans_key(job, reference.generation)


class Plans:
    """The plans in one folder.

    Parameters
    ----------
    storage
        The storage of the plans.
    folder
        The prefix of their keys; see :func:`plans_of`.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self.folder = folder

    def numbers(self) -> list[int]:
        """Return the numbers of the plans, ascending."""
        names = (key.rsplit("/", 1)[1].removesuffix(".jsonl") for key in self._storage.list(self.folder))
        return sorted(int(name) for name in names if name.isdecimal())

    def read(self, number: int) -> list[LandedFile]:
        """Return a plan's files; empty if the plan no longer exists.

        Raises
        ------
        StreamwardenError
            ``DOCUMENT_INVALID`` if it is damaged.
        """
        name = f"{number:010}.jsonl"
        try:
            return [LandedFile.from_json(line) for line in self._lines(name)]
        except (ValueError, TypeError, KeyError) as error:
            raise StreamwardenError("DOCUMENT_INVALID", f"{self.folder}/{name}: {error}", remedy=_REMEDY) from error

    def create(self, number: int, files: Sequence[LandedFile]) -> None:
        """Write a plan.

        Raises
        ------
        streamwarden.storage.Conflict
            If it exists.
        """
        self._storage.create(f"{self.folder}/{number:010}.jsonl", _encoded(files))

    def make_folder(self) -> None:
        """Ensure that the folder exists: Spark refuses to stream from a missing folder."""
        if self._storage.read(f"{self.folder}/{_REFUSED}") is None:
            self._write_refused({})

    def known(self, taken: Collection[int]) -> tuple[dict[str, LandedFile], list[int]]:
        """Return, by name, the newest reading of each planned file, and the numbers of the plans.

        Parameters
        ----------
        taken
            Plans that were read. Files of other plans count as long as their plan exists.
        """
        numbers = self.numbers()
        through, summary = self._summary()
        there = {*numbers, *taken}
        planned = [(number, file) for number, file in summary if number in there]
        later = [number for number in numbers if number > through]
        planned += [(number, file) for number in later for file in self.read(number)]
        if len(later) >= _SUMMARISED:
            lines = [f"{later[-1]}", *(f"{number} {file.to_json()}" for number, file in planned)]
            self._storage.write(f"{self.folder}/{_KNOWN}", "".join(f"{line}\n" for line in lines).encode())
        return {file.name: file for _, file in planned}, numbers

    def _summary(self) -> tuple[int, list[tuple[int, LandedFile]]]:
        try:
            head, *lines = self._lines(_KNOWN) or ["-1"]
            entries = [line.split(" ", 1) for line in lines]
            return int(head), [(int(number), LandedFile.from_json(text)) for number, text in entries]
        except (ValueError, TypeError, KeyError, StreamwardenError):
            # Damaged: it only repeats the plans.
            return -1, []

    def refused(self) -> dict[str, str]:
        """Return why files were quarantined as a whole, by the label of the reading."""
        entry = self._storage.read(f"{self.folder}/{_REFUSED}")
        try:
            found = parse(entry.data) if entry is not None else {}
        except ValueError:
            found = None
        # A damaged document only informs people; the next refusal writes it anew.
        return {str(label): str(why) for label, why in found.items()} if isinstance(found, dict) else {}

    def add_refused(self, reasons: dict[str, str]) -> None:
        """Record that files were quarantined as a whole."""
        self._write_refused({**self.refused(), **reasons})

    def _write_refused(self, reasons: dict[str, str]) -> None:
        self._storage.write(f"{self.folder}/{_REFUSED}", json.dumps(reasons).encode())

    def _lines(self, name: str) -> list[str]:
        entry = self._storage.read(f"{self.folder}/{name}")
        if entry is None:
            return []
        lines = entry.data.decode().splitlines()
        if not lines or not entry.data.endswith(b"\n"):
            raise StreamwardenError(
                "DOCUMENT_INVALID", f"{self.folder}/{name}: it is empty or truncated", remedy=_REMEDY
            )
        return lines


def _encoded(files: Sequence[LandedFile]) -> bytes:
    return "".join(f"{file.to_json()}\n" for file in files).encode()
