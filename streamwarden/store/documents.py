"""The control documents of a job: reads, writes, and compare-and-swap, with types.

Their contents are in :mod:`streamwarden.model`, their keys in :mod:`streamwarden.store.layout`; docs/architecture.md
says who writes each. The supervisor's claim and the catalogue of savepoints have modules of their own:
:mod:`streamwarden.supervision.claim` and :mod:`streamwarden.savepoints.documents`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Cancel, Operation
from streamwarden.model.progress import Progress, Totals
from streamwarden.model.record import utc_now
from streamwarden.model.status import (
    CheckpointRef,
    Desired,
    Exit,
    Heartbeat,
    Launch,
    Lease,
    ParallelismOverride,
    Reread,
    StopRequest,
)
from streamwarden.model.supervision import HealthRecord, Supervision
from streamwarden.names import is_part
from streamwarden.storage import Conflict, Storage
from streamwarden.store import layout
from streamwarden.store.invalid_documents import invalid

__all__ = ["Document", "JobDocuments", "dump"]

M = TypeVar("M", bound=BaseModel)


class Document(Generic[M]):
    """Typed access to one key.

    Parameters
    ----------
    storage
        Where the document is kept.
    key
        Its key.
    model
        Its content's type.
    shared
        Whether it is read more often than it changes. Then readers of the same bytes share one object.
    derived
        Whether the driver or supervisor recreates it. Then a damaged document counts as missing. Other damaged
        documents are errors until ``streamwarden repair`` has restored them.
    """

    def __init__(
        self, storage: Storage, key: str, model: type[M], *, shared: bool = False, derived: bool = False
    ) -> None:
        self.storage = storage
        self.key = key
        self.model = model
        self.derived = derived
        self._shared = shared

    def read(self) -> M | None:
        """Return the document, or None.

        Raises
        ------
        StreamwardenError
            ``DOCUMENT_INVALID``.
        """
        return self._read()[0]

    def read_versioned(self) -> tuple[M, str] | None:
        """Return the document and its etag, or None."""
        value, etag = self._read()
        return (value, etag) if value is not None and etag is not None else None

    def _read(self) -> tuple[M | None, str | None]:
        """Return the document and its etag; for a damaged derived document only the etag."""
        entry = self.storage.read(self.key)
        if entry is None:
            return None, None
        try:
            if self._shared:
                return cast(M, _parsed.get(self.model, self.key, entry.data)), entry.etag
            return self.model.model_validate_json(entry.data), entry.etag
        except ValidationError as error:
            if self.derived:
                return None, entry.etag
            raise invalid(self.key, error, is_empty=not entry.data) from error

    def write(self, value: M) -> str:
        """Write unconditionally."""
        return self.storage.write(self.key, _encode(value))

    def create(self, value: M) -> str:
        """Write if the document does not exist; raises :class:`~streamwarden.storage.Conflict` otherwise."""
        return self.storage.create(self.key, _encode(value))

    def replace(self, value: M, etag: str) -> str:
        """Replace one version; raises :class:`~streamwarden.storage.Conflict` for any other."""
        return self.storage.replace(self.key, _encode(value), etag)

    def delete(self) -> None:
        """Remove the document; no error if it does not exist."""
        self.storage.delete(self.key)

    def update(self, change: Callable[[M | None], M], *, tries: int = 10) -> M:
        """Read, change and write back; retry after a lost race.

        Raises
        ------
        StreamwardenError
            ``DOCUMENT_CONFLICT`` after `tries` lost races.
        """
        for _ in range(tries):
            found, etag = self._read()
            value = change(found)
            try:
                if etag is not None:
                    self.replace(value, etag)
                else:
                    self.create(value)
            except Conflict:
                continue
            return value
        raise StreamwardenError("DOCUMENT_CONFLICT", self.key)


class _Parsed:
    """Keeps what was parsed of the newest content of each document; drops what was not read for longest.

    Parameters
    ----------
    room
        How many bytes of JSON.
    """

    def __init__(self, room: int) -> None:
        self._room, self._size = room, 0
        self._kept: OrderedDict[tuple[type[BaseModel], str], tuple[bytes, BaseModel]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, model: type[BaseModel], key: str, data: bytes) -> BaseModel:
        """Return the kept object if it is of the same bytes, else parse them."""
        name = (model, key)
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None and kept[0] == data:
                self._kept.move_to_end(name)
                return kept[1]
        value = model.model_validate_json(data)
        with self._lock:
            self._size += len(data) - len(self._kept.pop(name, (b"",))[0])
            self._kept[name] = (data, value)
            while self._size > self._room:
                self._size -= len(self._kept.popitem(last=False)[1][0])
        return value


# Every check of a job reads its spec twice, wanted and launched, and each list reads the last 50 batches of all jobs.
# Parsing took as long as the rest. 12 MB: 250 jobs of 45 kB each, whose objects take 80 MB.
_parsed = _Parsed(12_000_000)


class JobDocuments:
    """The documents of one job.

    Parameters
    ----------
    storage
        Where they are kept.
    job
        The job's name.
    """

    def __init__(self, storage: Storage, job: str) -> None:
        self.storage = storage
        self.job = job
        self.base = layout.job_key(layout.CONTROL, job)

    # Made when they are asked for: a list of a hundred jobs made four thousand.
    @cached_property
    def desired(self) -> Document[Desired]:
        """The desired state."""
        return self._document(Desired, "desired", shared=True)

    @cached_property
    def checkpoint(self) -> Document[CheckpointRef]:
        """The generation in force."""
        return self._document(CheckpointRef, "checkpoint")

    @cached_property
    def lease(self) -> Document[Lease]:
        """The right to run the job."""
        return self._document(Lease, "lease")

    @cached_property
    def supervision(self) -> Document[Supervision]:
        """Restarts and decisions of the supervisor."""
        return self._document(Supervision, "supervision", derived=True)

    @cached_property
    def operation(self) -> Document[Operation]:
        """The current or last operation."""
        return self._document(Operation, "operation")

    @cached_property
    def health(self) -> Document[HealthRecord]:
        """The alarms that were raised."""
        return self._document(HealthRecord, "health", derived=True)

    @cached_property
    def parallelism(self) -> Document[ParallelismOverride]:
        """What a rescale decided."""
        return self._document(ParallelismOverride, "parallelism")

    @cached_property
    def cancel(self) -> Document[Cancel]:
        """The request to roll the current operation back."""
        return self._document(Cancel, "cancel", derived=True)

    def totals(self, generation: int) -> Document[Totals]:
        """Return the totals document of a generation."""
        return Document(self.storage, layout.totals_key(self.job, generation), Totals, derived=True)

    def current_totals(self) -> Totals | None:
        """Return the totals of the current generation; None before its first batch."""
        reference = self.checkpoint.read()
        return self.totals(reference.generation).read() if reference is not None else None

    def launch(self, incarnation: str) -> Document[Launch]:
        """Return the launch document of an incarnation."""
        return self._document(Launch, layout.INCARNATIONS, incarnation, "launch", shared=True, derived=True)

    def heartbeat(self, incarnation: str) -> Document[Heartbeat]:
        """Return the heartbeat document of an incarnation."""
        return self._document(Heartbeat, layout.INCARNATIONS, incarnation, "heartbeat", derived=True)

    def progress(self, incarnation: str) -> Document[Progress]:
        """Return the progress document of an incarnation."""
        return self._document(Progress, layout.INCARNATIONS, incarnation, "progress", shared=True, derived=True)

    def exit(self, incarnation: str) -> Document[Exit]:
        """Return the exit document of an incarnation."""
        return self._document(Exit, layout.INCARNATIONS, incarnation, "exit", derived=True)

    def stop(self, incarnation: str) -> Document[StopRequest]:
        """Return the stop request to an incarnation."""
        return self._document(StopRequest, layout.INCARNATIONS, incarnation, "stop", derived=True)

    def request_stop(self, incarnation: str, *, by: str, reason: str = "") -> None:
        """Ask an incarnation to stop, unless it was asked before."""
        request = StopRequest(at=utc_now(), by=by, reason=reason)
        # An update, not a creation: it also replaces a damaged request, which the driver can't read.
        self.stop(incarnation).update(lambda first: first or request)

    def reread(self, request: str) -> Document[Reread]:
        """Return a request to read landed files again; the driver removes it after planning them."""
        return self._document(Reread, layout.REREADS, request, derived=True)

    def rereads(self) -> list[Reread]:
        """Return the open requests to read landed files again, oldest first."""
        # A damaged request is made again: its file is reported until it has been read.
        found = [request for one in self._ids(layout.REREADS) if (request := self.reread(one).read())]
        return sorted(found, key=lambda request: (request.at, request.id))

    def past_operation(self, operation: str) -> Document[Operation]:
        """Return the document of an ended operation."""
        return self._document(Operation, layout.OPERATIONS, operation, derived=True)

    def past_operations(self) -> list[str]:
        """Return the ids of ended operations, oldest first."""
        return sorted(self._ids(layout.OPERATIONS))

    def incarnations(self) -> list[str]:
        """Return the ids of all launched incarnations, oldest first: ids begin with the time."""
        return sorted(self._ids(layout.INCARNATIONS, layout.LAUNCH))

    def _ids(self, folder: str, kind: str | None = None) -> set[str]:
        """Return the ids of the documents in a folder. A file whose name is no id is not ours, and left out."""
        keys = self.storage.list(layout.job_key(layout.CONTROL, self.job, folder))
        ids = {layout.id_of(key) for key in keys if layout.kind_of(key) == (kind or folder)}
        return set(filter(is_part, ids))

    def _document(self, model: type[M], *names: str, shared: bool = False, derived: bool = False) -> Document[M]:
        return Document(self.storage, layout.document_key(self.job, *names), model, shared=shared, derived=derived)


def _encode(value: BaseModel) -> bytes:
    return value.model_dump_json(indent=1).encode()


def dump(value: BaseModel | None) -> dict[str, Any] | None:
    """Return a document as plain JSON values, for ``--json`` output."""
    return value.model_dump(mode="json") if value is not None else None
