"""The state of each landed file, and requests to read a file again: for people."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.landing.file import LandedFile, shown
from streamwarden.landing.folder import landing_folder
from streamwarden.landing.planner import is_same, newest_readings
from streamwarden.landing.plans import Plans, Read, plans_of, read_plans
from streamwarden.model.record import utc_now
from streamwarden.model.source_spec import FileSource
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Reread
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["FileState", "Landed", "ask_reread", "landed_files", "planned_names"]


class FileState(StrEnum):
    """The state of a landed file."""

    NEW = "new"
    WAITING = "waiting"
    READ = "read"
    REPLACED = "replaced"
    QUARANTINED = "quarantined"
    GONE = "gone"
    NOT_READ = "not read"

    @property
    def needs_a_look(self) -> bool:
        """Whether a person should act on it."""
        return self in (FileState.REPLACED, FileState.QUARANTINED, FileState.GONE)


@dataclass(frozen=True)
class Landed:
    """A file of a landing folder.

    Parameters
    ----------
    name
        As :func:`~streamwarden.landing.file.shown` writes it.
    state
        ``new``: the next listing plans it. ``waiting``: planned, and in no committed batch. ``read``. ``replaced``:
        changed since it was read or planned. ``quarantined``: as a whole. ``gone``: planned, and missing.
        ``not read``: a hidden file, or a folder.
    length, modified
        Its current length in bytes, and its modification time in UTC; None if not requested.
    batch
        The batch's number in the source's log; None if no batch has read the file, or an older version did.
    reading
        How often the file was planned.
    detail
        Why it was quarantined.
    """

    name: str
    state: FileState
    length: int | None = None
    modified: datetime | None = None
    batch: int | None = None
    reading: int = 0
    detail: str = ""


def landed_files(workspace: Workspace, spec: JobSpec) -> list[Landed]:
    """Return the files in a job's landing folder, and planned files that are missing, sorted by name.

    Raises
    ------
    StreamwardenError
        ``LANDING_NONE`` if the job reads no files.
    OSError
        If the folder can't be read.
    """
    source = _source(spec)
    listing = landing_folder(workspace, source).look()
    plans, reads, known = _known(workspace, spec, source)
    committed = _committed(workspace, spec.name)
    batches = {plan: read.batch for read in reads if read.batch <= committed and (plan := read.plan_of()) is not None}
    taken: dict[tuple[str, int], int | None] = {}
    for number in plans.numbers():
        for file in plans.read(number):
            taken[file.name, file.reading] = batches.get((plans.folder, number))
    refused = plans.refused()

    def of(name: str) -> Landed:
        found, planned = listing.files.get(name), known.get(name)
        batch = taken.get((name, planned.reading)) if planned is not None else None
        # A file in no plan of this folder was read otherwise: before plans existed, or before the job was cloned.
        waits = planned is not None and batch is None and (name, planned.reading) in taken
        detail = refused.get(planned.label, "") if planned is not None else ""
        if planned is None:
            state = FileState.NEW
        elif found is None:
            state = FileState.GONE
        elif not is_same(planned, found):
            state = FileState.REPLACED
        elif waits:
            state = FileState.WAITING
        else:
            state = FileState.QUARANTINED if detail else FileState.READ
        return Landed(
            shown(name),
            state,
            found.length if found else None,
            _moment(found) if found else None,
            batch,
            planned.reading if planned else 0,
            detail if state is FileState.QUARANTINED else "",
        )

    # A file that was read and is missing is no fault: folders are cleaned up.
    # A file that was planned since `known` was read still counts as new.
    newest = {(file.name, file.reading) for file in known.values()}
    waiting = {name for (name, reading), batch in taken.items() if batch is None and (name, reading) in newest}
    found = [of(name) for name in {*listing.files, *waiting}]
    found += [Landed(shown(name), FileState.NOT_READ) for name in listing.passed_over]
    return sorted(found, key=lambda one: one.name)


def planned_names(workspace: Workspace, spec: JobSpec) -> frozenset[str]:
    """Return the names of all files that a job has planned or read. They may be gone; it reads a name once."""
    return frozenset(_known(workspace, spec, _source(spec))[2])


def ask_reread(workspace: Workspace, spec: JobSpec, names: Sequence[str], *, by: str, doubling: bool = False) -> Reread:
    """Request that files be read again; the job's driver plans them at its next listing, or when it starts.

    Parameters
    ----------
    names
        As :func:`~streamwarden.landing.file.shown` writes them.
    doubling
        Whether to allow it if previously read rows would be duplicated.

    Raises
    ------
    StreamwardenError
        ``LANDING_NONE``; ``LANDING_FILE_UNKNOWN``; ``LANDING_WOULD_DOUBLE`` if an output has no keys, or the job keeps
        state.
    """
    source = _source(spec)
    listing = landing_folder(workspace, source).look()
    _, _, known = _known(workspace, spec, source)
    there, readings = (
        {shown(name) for name in listing.files},
        {shown(name): file.reading for name, file in known.items()},
    )
    for name in names:
        if name not in there:
            raise StreamwardenError("LANDING_FILE_UNKNOWN", f"{spec.name}: {name} is not in {source.path}")
        if name not in readings:
            raise StreamwardenError("LANDING_FILE_UNKNOWN", f"{spec.name}: {name} was not read yet: it will be read")
    twice = next(_doubled(workspace, spec), None)
    if twice is not None and not doubling:
        raise StreamwardenError("LANDING_WOULD_DOUBLE", f"{spec.name}: {twice}")
    request = Reread(
        id=uuid.uuid4().hex[:12], at=utc_now(), by=by, files={name: readings[name] + 1 for name in dict.fromkeys(names)}
    )
    JobDocuments(workspace.storage, spec.name).reread(request.id).create(request)
    return request


def _doubled(workspace: Workspace, spec: JobSpec) -> Iterator[str]:
    """Yield the reasons why a row that is read again would count twice."""
    for sink in spec.delta_sinks:
        if not sink.keys:
            yield f"the rows of {sink.table} have no keys"
    for topic in spec.kafka_sinks:
        yield f"topic {topic.topic} would get the rows again"
    reference = JobDocuments(workspace.storage, spec.name).checkpoint.read()
    if reference is not None and CheckpointReader(workspace.storage, reference.path).has_state():
        yield "the job keeps state, which would count them again"


def _moment(file: LandedFile) -> datetime | None:
    try:
        return datetime.fromtimestamp(file.modified_ms / 1000, UTC)
    except (OverflowError, ValueError):
        # After the year 9999.
        return None


def _committed(workspace: Workspace, job: str) -> int:
    """Return the last entry of the source's log with a committed batch; -1 if there is none."""
    reference = JobDocuments(workspace.storage, job).checkpoint.read()
    reader = CheckpointReader(workspace.storage, reference.path) if reference is not None else None
    batch = reader.last_commit() if reader is not None else None
    offsets = reader.offsets(batch) if reader is not None and batch is not None else None
    found = [parse(one) for one in offsets.sources if one] if offsets is not None else []
    # A job has at most one source of files.
    return next((int(one["logOffset"]) for one in found if "logOffset" in one), -1)


def _source(spec: JobSpec) -> FileSource:
    if spec.files_source is None:
        kinds = ", ".join(sorted({source.kind for source in spec.inputs.values()}))
        raise StreamwardenError("LANDING_NONE", f"{spec.name} reads {kinds}")
    return spec.files_source


def _known(workspace: Workspace, spec: JobSpec, source: FileSource) -> tuple[Plans, list[Read], dict[str, LandedFile]]:
    plans = plans_of(workspace, spec.name)
    reference = JobDocuments(workspace.storage, spec.name).checkpoint.read()
    reads = list(read_plans(workspace, reference.path)) if reference is not None else []
    address = workspace.source_path(source.path).removeprefix("file://")
    return plans, reads, newest_readings(workspace, plans, reads, address)
