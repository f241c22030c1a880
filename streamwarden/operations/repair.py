"""Repair a job's damaged control documents: recreate derived documents, restore deciding documents from other records.

An unreadable document usually has 0 bytes: a disk was full, or the machine lost power. Does not guess: if the remaining
records do not show what was in force, the repair is refused and names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Cancel, Operation
from streamwarden.model.progress import Progress, Totals
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, Record
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
from streamwarden.operations.repair_documents import Restored
from streamwarden.runtime.operation_lock import refuse_if_busy
from streamwarden.savepoints import catalog
from streamwarden.savepoints.documents import manifest_document, record_document
from streamwarden.storage import Conflict
from streamwarden.store import layout
from streamwarden.store.documents import JobDocuments
from streamwarden.store.invalid_documents import is_damaged
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.claim import Claim

__all__ = ["DOCUMENTS", "Mend", "repair"]

_DECIDES: dict[str, type[BaseModel]] = {
    "desired": Desired,
    "operation": Operation,
    "checkpoint": CheckpointRef,
    "parallelism": ParallelismOverride,
    "lease": Lease,
}
"""In the order in which they are restored: each restore may also use the documents before it."""

_DERIVED: dict[str, type[BaseModel]] = {
    "supervision": Supervision,
    "supervisor": Claim,
    "health": HealthRecord,
    "cancel": Cancel,
    layout.TOTALS: Totals,
    layout.OPERATIONS: Operation,
    layout.RECORDS: Record,
    layout.REREADS: Reread,
    layout.LAUNCH: Launch,
    f"{layout.INCARNATIONS}/stop": StopRequest,
    f"{layout.INCARNATIONS}/heartbeat": Heartbeat,
    f"{layout.INCARNATIONS}/progress": Progress,
    f"{layout.INCARNATIONS}/exit": Exit,
}
"""The models of derived documents, by kind."""

DOCUMENTS = {**_DECIDES, **_DERIVED}
"""The model of each control document of a job, by kind; see :func:`~streamwarden.store.layout.kind_of`."""


@dataclass(frozen=True)
class Mend:
    """A damaged document, and its repair.

    Parameters
    ----------
    document
        The document's key.
    how
        The repair in words.
    done
        Whether the repair was done.
    """

    document: str
    how: str
    done: bool = False


def repair(workspace: Workspace, job: str, *, by: str, dry_run: bool = False) -> list[Mend]:
    """Repair every damaged document of a job, and return the repairs. Does not change undamaged documents.

    Parameters
    ----------
    by
        The actor.
    dry_run
        Only return the planned repairs.

    Raises
    ------
    StreamwardenError
        ``LEASE_HELD`` or ``OPERATION_RUNNING`` while a driver or an operation uses a deciding document;
        ``REPAIR_IMPOSSIBLE`` if no record shows what was in force; ``DOCUMENT_INVALID`` if a later version of
        Streamwarden wrote a document. Nothing is changed in these cases.
    """
    planned = _Repair(workspace, job, by).plan()
    for _, _, do in planned if not dry_run else ():
        do()
    return [Mend(key, how, done=not dry_run) for key, how, _ in planned]


class _Repair:
    def __init__(self, workspace: Workspace, job: str, by: str) -> None:
        self._workspace = workspace
        self._storage = workspace.storage
        self._documents = JobDocuments(workspace.storage, job)
        self._job = job
        self._by = by
        self._restored = Restored(workspace, job, by)

    def plan(self) -> list[tuple[str, str, Callable[[], None]]]:
        """Return for each damaged document its key, its repair in words, and the function that repairs it."""
        models = {key: _DERIVED.get(layout.kind_of(key)) for key in self._storage.list(self._documents.base)}
        mends = [self._derived(key) for key, model in models.items() if model and is_damaged(self._storage, key, model)]
        for savepoint in self._workspace.files.folders(layout.job_key(layout.SAVEPOINTS, self._job)):
            key = manifest_document(self._workspace, self._job, savepoint).key
            if is_damaged(self._storage, key, Manifest):
                mends.append((key, "removed with its savepoint: its contents are unknown", self._dropper(savepoint)))
        known = self._restored
        restore: dict[str, Callable[[], tuple[BaseModel | None, str]]] = {
            "desired": known.desired,
            "operation": known.operation,
            "checkpoint": known.checkpoint,
            "parallelism": known.parallelism,
            "lease": known.lease,
        }
        damaged = [
            name
            for name, model in _DECIDES.items()
            if is_damaged(self._storage, layout.document_key(self._job, name), model)
        ]
        lost = self._lost() if "checkpoint" not in damaged and known.checkpoint_is_missing() else []
        if lost or set(damaged) - {"desired"}:
            self._refuse_while_it_runs(damaged)
        for name in (one for one in _DECIDES if one in damaged or one in lost):
            value, how = restore[name]()
            key = layout.document_key(self._job, name)
            if value is not None or name in damaged:
                mends.append((key, how, self._writer(key, value)))
        return mends + (self._lost_records() if lost else [])

    def _lost(self) -> list[str]:
        """Return the deciding documents that are missing beside a lost checkpoint.json: perhaps all were lost."""
        names = ("desired", "checkpoint", "parallelism", "lease")
        return [name for name in names if self._storage.read(layout.document_key(self._job, name)) is None]

    def _lost_records(self) -> list[tuple[str, str, Callable[[], None]]]:
        """Create the savepoints' lost records: a lost label may have protected any of them from retention."""
        mends = []
        for one in catalog.savepoints(self._workspace, self._job):
            key = record_document(self._workspace, self._job, one.id).key
            if self._storage.read(key) is None:
                anew = one.record.model_copy(update={"label": catalog.LOST, "summary": one.summary})
                how = f"made anew from its manifest, unverified, with the label {catalog.LOST!r}"
                mends.append((key, how, self._writer(key, anew)))
        return mends

    def _writer(self, key: str, value: BaseModel | None) -> Callable[[], None]:
        damaged = self._storage.read(key)

        def write() -> None:
            now = self._storage.read(key)
            if damaged is None and value is not None:
                with suppress(Conflict):
                    self._storage.create(key, value.model_dump_json(indent=1).encode())
                return
            if damaged is None or now is None or now.etag != damaged.etag:
                # Another process has written the document since.
                return
            if value is None:
                self._storage.delete(key)
                return
            with suppress(Conflict):
                self._storage.replace(key, value.model_dump_json(indent=1).encode(), damaged.etag)

        return write

    def _dropper(self, savepoint: str) -> Callable[[], None]:
        return lambda: catalog.drop(self._workspace, self._job, savepoint)

    def _refuse_while_it_runs(self, damaged: list[str]) -> None:
        if "operation" not in damaged:
            refuse_if_busy(self._workspace, self._job)
        living = self._restored.living()
        if living is not None:
            remedy = f"Stop it (`streamwarden stop {self._job}`); if that fails, end process {living.pid} on"
            raise StreamwardenError(
                "LEASE_HELD",
                f"{self._job}: its driver is alive, process {living.pid} on {living.host}",
                remedy=f"{remedy} {living.host}: the next start finishes the batch. Then repair again.",
            )

    def _derived(self, key: str) -> tuple[str, str, Callable[[], None]]:
        kind = layout.kind_of(key)
        if kind == layout.LAUNCH:
            # The launch document represents its incarnation: without it an older incarnation would count as the newest.
            anew = Launch(incarnation=layout.id_of(key), at=utc_now(), by=self._by, reason="repaired", digest="")
            return key, "created anew, without the spec that it was launched with", self._writer(key, anew)
        if kind == layout.RECORDS:
            there = {one.manifest.id: one.record for one in catalog.savepoints(self._workspace, self._job)}
            record = there.get(layout.id_of(key))
            if record is not None:
                how = f"made anew from its manifest, unverified, with the label {record.label!r} in place of its own"
                return key, how, self._writer(key, record)
        return key, "removed: it is created anew when it is needed", self._writer(key, None)
