"""What happened to a job: the marks on a time axis, and a list of the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_history import Window
from streamwarden.model.gate import Verdict
from streamwarden.model.supervision import Supervision
from streamwarden.operations.operation_words import CHANGE, facts_of
from streamwarden.quality.gate_state import gate_document
from streamwarden.quality.gate_words import version_range
from streamwarden.runtime.operation_lock import operations_of
from streamwarden.savepoints import catalog
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import SAVEPOINTS, job_key
from streamwarden.store.workspace import Workspace

__all__ = ["Event", "events_of"]


@dataclass(frozen=True)
class Event:
    """One event.

    Parameters
    ----------
    at
        When.
    kind
        ``deploy``, ``restart``, ``end``, ``savepoint``, ``rescale``, ``restore``, ``rollout``, ``rollback``, ``hold``.
    text
        What happened.
    link
        The parts of its page's path; empty without a page.
    query
        The rest of the page's address.
    """

    at: datetime
    kind: str
    text: str
    link: tuple[str, ...] = ()
    query: dict[str, str] = field(default_factory=dict)


def events_of(workspace: Workspace, job: str, window: Window) -> list[Event]:
    """Return a job's events in a time, oldest first.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_INVALID``.
    """
    documents = JobDocuments(workspace.storage, job)
    found = [
        *_drivers(documents, window),
        *_savepoints(workspace, job, window),
        *_operations(documents, window),
        *_holds(workspace, documents),
    ]
    return sorted((one for one in found if window.since <= one.at < window.until), key=lambda one: one.at)


def _within(name: str, window: Window) -> bool:
    """Return whether an id was made in the window: ids begin with the time. So nothing else is read."""
    try:
        at = datetime.strptime(name.partition("z")[0][:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return True
    return window.since - timedelta(days=1) <= at < window.until


def _drivers(documents: JobDocuments, window: Window) -> Iterator[Event]:
    memory = documents.supervision.read() or Supervision()
    again = {restart.after: restart for restart in memory.restarts}
    before = None
    for name in documents.incarnations():
        if _within(name, window):
            launch = documents.launch(name).read()
            if launch is not None:
                restart = again.get(before or "")
                why = restart.reason if restart is not None else launch.reason
                # Since a deploy, the supervisor has forgotten what was before.
                is_restart = restart is not None or (why or "").startswith("restart")
                kind = "restart" if is_restart else _kind_of(launch.by)
                yield Event(launch.at, kind, f"driver started by {_who(launch.by)}" + (f": {why}" if why else ""))
            ended = documents.exit(name).read()
            if ended is not None:
                words = f"{ended.error.code}: {ended.error.what.splitlines()[0]}" if ended.error else ended.outcome
                yield Event(ended.at, "end", f"driver ended after batch {ended.batch}: {words}")
        before = name


def _kind_of(by: str) -> str:
    """Return who started a driver as a kind of event: an operation names itself first."""
    first = by.partition(" ")[0]
    return first if first in ("rescale", "restore", "rollout") else "deploy"


def _who(by: str) -> str:
    """Return the person for whom a run of Airflow did something; without one, the run."""
    return by.rpartition(", for ")[2]


def _savepoints(workspace: Workspace, job: str, window: Window) -> Iterator[Event]:
    for name in workspace.files.folders(job_key(SAVEPOINTS, job)):
        if _within(name, window):
            try:
                one = catalog.load(workspace, job, name)
            except StreamwardenError:
                continue
            if one is not None:
                text = f"{one.record.origin.value} savepoint of batch {one.summary.batch} by {_who(one.record.by)}"
                yield Event(one.summary.taken_at, "savepoint", text, ("savepoints",), {"job": job})


def _operations(documents: JobDocuments, window: Window) -> Iterator[Event]:
    for one in operations_of(documents):
        link = ("operations", documents.job, one.id)
        if one.ended_at is not None and one.state in ("failed", "rolled back"):
            code = f": {one.error.code}" if one.error is not None else ""
            yield Event(one.ended_at, "rollback", f"{one.kind} {one.state}{code}", link)
        change, reason = dict(facts_of(one)).get(CHANGE), one.params.get("reason")
        text = f"{one.kind} by {_who(one.by)}: {one.state.value}" + (f", {change}" if change else "")
        text += f", {reason!r}" if reason else ""
        yield Event(one.started_at, one.kind, text, link)
        if one.started_at < window.since:
            return


def _holds(workspace: Workspace, documents: JobDocuments) -> Iterator[Event]:
    desired = documents.desired.read()
    for sink in desired.spec.delta_sinks if desired is not None else ():
        record = gate_document(workspace, sink.table).read()
        for one in record.decisions if record is not None else ():
            if one.verdict is not Verdict.PUBLISHED:
                versions = version_range(one.after, one.version)
                yield Event(one.at, "hold", f"gate: {sink.table} {versions} {one.verdict}", ("quality", sink.table))
