"""The control documents: their contents, and typed access.

``ROOT/control/JOB/`` holds ``desired.json``, ``checkpoint.json``, ``lease.json``, ``supervision.json``,
``supervisor.json``, ``health.json``, ``parallelism.json``, ``cancel.json``, ``operation.json`` (past ones:
``operations/ID.json``); savepoints' changing part in ``savepoints/ID.json``; a generation's ``totals/gNNNNNN.json``; an
incarnation's ``incarnations/ID/{launch,stop,heartbeat,progress,exit}.json``. The control side writes desired state,
launches, stop requests and supervision; the driver writes the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Cancel, Operation
from streamwarden.model.status import (
    CheckpointRef,
    Desired,
    Exit,
    HealthRecord,
    Heartbeat,
    Launch,
    Lease,
    Parallelism,
    Progress,
    Reread,
    StopRequest,
    Supervision,
    Totals,
    utc_now,
)
from streamwarden.storage import Conflict, Storage

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
    seldom
        Whether it is read far more often than it changes. Then readers of the same bytes share one object.
    derived
        Whether the driver or supervisor recreates it. Then a damaged document counts as missing. Other damaged
        documents are errors until ``streamwarden repair`` has restored them.
    """

    def __init__(
        self, storage: Storage, key: str, model: type[M], *, seldom: bool = False, derived: bool = False
    ) -> None:
        self.storage = storage
        self.key = key
        self.model = model
        self.derived = derived
        self._parse = _parsed if seldom else _parse

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
            return cast(M, self._parse(self.model, entry.data)), entry.etag
        except ValidationError as error:
            if self.derived:
                return None, entry.etag
            words = "; ".join(f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip() for one in error.errors()[:3])
            what = f"{self.key}: {words if entry.data else 'it is empty'}"
            raise StreamwardenError("DOCUMENT_INVALID", what, remedy=_remedy(self.key)) from error

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


def _parse(model: type[BaseModel], data: bytes) -> BaseModel:
    return model.model_validate_json(data)


def _remedy(key: str) -> str | None:
    """Return the remedy for a job's damaged document; None (the catalogue's remedy) for other documents."""
    folder, _, rest = key.partition("/")
    if folder != "control" or "/" not in rest:
        return None
    job = rest.split("/")[0]
    return f"`streamwarden repair {job}` shows what it can be restored from; with --yes it does so."


# Every check of a job reads its spec twice, wanted and launched. Parsing took as long as the rest of the check. 256 is
# enough for a fleet of a hundred jobs, with some changes.
_parsed = lru_cache(maxsize=256)(_parse)


class JobDocuments:
    """The documents of one job.

    Parameters
    ----------
    Where the documents are kept.
        Where they are kept.
    job
        The job's name.
    """

    def __init__(self, storage: Storage, job: str) -> None:
        self.storage = storage
        self.job = job
        self.base = f"control/{job}"
        self.desired = self._document("desired.json", Desired, seldom=True)
        self.checkpoint = self._document("checkpoint.json", CheckpointRef)
        self.lease = self._document("lease.json", Lease)
        self.supervision = self._document("supervision.json", Supervision, derived=True)
        self.operation = self._document("operation.json", Operation)
        self.health = self._document("health.json", HealthRecord, derived=True)
        self.parallelism = self._document("parallelism.json", Parallelism)
        self.cancel = self._document("cancel.json", Cancel, derived=True)

    def totals(self, generation: int) -> Document[Totals]:
        """Return the totals document of a generation."""
        return self._document(f"totals/g{generation:06}.json", Totals, derived=True)

    def current_totals(self) -> Totals | None:
        """Return the totals of the current generation; None before its first batch."""
        reference = self.checkpoint.read()
        return self.totals(reference.generation).read() if reference is not None else None

    def launch(self, incarnation: str) -> Document[Launch]:
        """Return the launch document of an incarnation."""
        return self._document(f"incarnations/{incarnation}/launch.json", Launch, seldom=True, derived=True)

    def heartbeat(self, incarnation: str) -> Document[Heartbeat]:
        """Return the heartbeat document of an incarnation."""
        return self._document(f"incarnations/{incarnation}/heartbeat.json", Heartbeat, derived=True)

    def progress(self, incarnation: str) -> Document[Progress]:
        """Return the progress document of an incarnation."""
        return self._document(f"incarnations/{incarnation}/progress.json", Progress, derived=True)

    def exit(self, incarnation: str) -> Document[Exit]:
        """Return the exit document of an incarnation."""
        return self._document(f"incarnations/{incarnation}/exit.json", Exit, derived=True)

    def stop(self, incarnation: str) -> Document[StopRequest]:
        """Return the stop request to an incarnation."""
        return self._document(f"incarnations/{incarnation}/stop.json", StopRequest, derived=True)

    def request_stop(self, incarnation: str, *, by: str, reason: str = "") -> None:
        """Ask an incarnation to stop, unless it was asked before."""
        request = StopRequest(at=utc_now(), by=by, reason=reason)
        # An update, not a creation: it also replaces a damaged request, which the driver can't read.
        self.stop(incarnation).update(lambda first: first or request)

    def reread(self, request: str) -> Document[Reread]:
        """Return a request to read landed files again; the driver removes it after planning them."""
        return self._document(f"rereads/{request}.json", Reread, derived=True)

    def rereads(self) -> list[Reread]:
        """Return the open requests to read landed files again, oldest first."""
        # A damaged request is made again: its file is reported until it has been read.
        keys = self.storage.list(f"{self.base}/rereads")
        names = [key.rsplit("/", 1)[1].removesuffix(".json") for key in keys]
        found = [request for name in names if (request := self.reread(name).read())]
        return sorted(found, key=lambda request: (request.at, request.id))

    def past_operation(self, operation: str) -> Document[Operation]:
        """Return the document of an ended operation."""
        return self._document(f"operations/{operation}.json", Operation, derived=True)

    def past_operations(self) -> list[str]:
        """Return the ids of ended operations, oldest first."""
        keys = self.storage.list(f"{self.base}/operations")
        return sorted(key.rsplit("/", 1)[1].removesuffix(".json") for key in keys)

    def incarnations(self) -> list[str]:
        """Return the ids of all launched incarnations, oldest first: ids begin with the time."""
        keys = self.storage.list(f"{self.base}/incarnations")
        return sorted({key.split("/")[3] for key in keys if key.endswith("/launch.json")})

    def _document(self, name: str, model: type[M], *, seldom: bool = False, derived: bool = False) -> Document[M]:
        return Document(self.storage, f"{self.base}/{name}", model, seldom=seldom, derived=derived)


def _encode(value: BaseModel) -> bytes:
    return value.model_dump_json(indent=1).encode()


def dump(value: BaseModel | None) -> dict[str, Any] | None:
    """Return a document as plain JSON values, for ``--json`` output."""
    return value.model_dump(mode="json") if value is not None else None
