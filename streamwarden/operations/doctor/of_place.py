"""Examine what a place has beside its jobs: storage, driver hosts, published tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

from streamwarden.errors import StreamwardenError, is_code
from streamwarden.formats.published_log import PublishedLog
from streamwarden.model.hosting import DriverStart
from streamwarden.model.record import utc_now
from streamwarden.operations.doctor.findings import Finding, broken, note, of_error, whole
from streamwarden.quality.gate_state import GateState, gate_state
from streamwarden.runtime.launchers.hosts import LOST, driver_hosts
from streamwarden.storage import Conflict
from streamwarden.store.documents import Document
from streamwarden.store.layout import CONTROL, LAUNCH, PUBLISHED, STARTS, kind_of
from streamwarden.store.workspace import Workspace

__all__ = ["examine_published", "examine_storage", "hosts_of", "judged_tables"]

_UNTAKEN = timedelta(seconds=60)
"""How long a request for a driver may wait. 60 s: a full host, or one that is started again, takes it by then."""

_NO_ETAG = '"00000000000000000000000000000000"'


def examine_storage(workspace: Workspace) -> Finding:
    """Return whether documents can be read and written."""
    about = f"storage {workspace.base}"
    try:
        keys = workspace.storage.list(CONTROL)
        return _of_folder(workspace, about, keys) if workspace.s3 is None else _of_bucket(workspace, about, keys)
    except StreamwardenError as error:
        return of_error("", about, error)


def _of_folder(workspace: Workspace, about: str, keys: list[str]) -> Finding:
    root = workspace.root
    if not root.is_dir():
        return whole("", about, "nothing was ever deployed here")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return broken("", about, "CONFIG_INVALID", f"{root} can't be written", remedy="Correct its owner or mode.")
    return whole("", about, f"{len(keys)} documents")


def _of_bucket(workspace: Workspace, about: str, keys: list[str]) -> Finding:
    held = _are_conditions_held(workspace, keys)
    if held is False:
        what = "the server ignores If-Match or If-None-Match: two drivers could get one lease"
        remedy = "Use a server with conditional writes: docs/deployment.md"
        return broken("", about, "CONFIG_INVALID", what, remedy=remedy)
    tested = "conditional writes hold" if held else "nothing to test writes with"
    return whole("", about, f"{len(keys)} documents; {tested}")


def _are_conditions_held(workspace: Workspace, keys: list[str]) -> bool | None:
    """Return whether conditional writes are refused that must be; None without a document to test them with.

    A store that does not refuse one gets an unchanged document once more.
    """
    # Nobody changes a launch once it is written.
    key = next((one for one in reversed(keys) if kind_of(one) == LAUNCH), None)
    entry = workspace.storage.read(key) if key is not None else None
    if key is None or entry is None:
        return None
    with suppress(Conflict):
        workspace.storage.create(key, entry.data)
        return False
    with suppress(Conflict):
        workspace.storage.replace(key, entry.data, _NO_ETAG)
        return False
    return True


def hosts_of(workspace: Workspace) -> Iterator[Finding]:
    """Yield whether a driver host lives, and which requests for drivers none has taken."""
    if workspace.profile.launcher != "host":
        return
    now, found = utc_now(), driver_hosts(workspace)
    alive = [one.name for one in found if now - one.at < LOST]
    if alive:
        yield whole("", "driver hosts", f"{', '.join(alive)} live")
    else:
        what = f"none lives; seen before: {', '.join(one.name for one in found) or 'none'}"
        remedy = "Start one on a machine that shares the place, and keep it running."
        yield broken("", "driver hosts", "DRIVER_DID_NOT_START", what, ("streamwarden host",), remedy=remedy)
    for key in workspace.storage.list(STARTS):
        start = Document(workspace.storage, key, DriverStart, derived=True).read()
        if start is not None and start.host is None and start.ended is None and now - start.at > _UNTAKEN:
            asked = f"the driver {start.incarnation} of {start.job} was asked for at {start.at:%H:%M:%S} UTC"
            what = f"{asked}: no host took it"
            yield broken("", "driver hosts", "DRIVER_DID_NOT_START", what, ("streamwarden hosts",))


def judged_tables(workspace: Workspace) -> list[str]:
    """Return the tables that the gate is for, or that are published."""
    suites = (workspace.config.parent / "expectations").glob("*.json")
    return sorted({*(path.stem for path in suites), *workspace.files.folders(PUBLISHED)})


def examine_published(workspace: Workspace, table: str, *, deep: bool) -> Iterator[Finding]:
    """Yield how a table's published versions stand to the table.

    Parameters
    ----------
    deep
        Also look for files that readers have lost.
    """
    about = f"published {table}"
    try:
        state = gate_state(workspace, table)
    except StreamwardenError as error:
        yield _of_error(about, table, error)
        return
    anew = (f"streamwarden gate check {table} --anew",)
    if state.error is not None:
        yield _of_error(about, table, state.error)
    elif state.published.content > (-1 if state.latest is None else state.latest):
        ends = "is gone" if state.latest is None else f"ends with version {state.latest}"
        what = f"version {state.published.content} is published, and the table {ends}"
        yield broken("", about, "PUBLISHED_TABLE_REPLACED", what, anew if state.latest is not None else ())
    elif deep and (lost := PublishedLog(workspace, table).lost_files()):
        what = f"version {state.published.number} has lost {len(lost)} files, such as {lost[0]}"
        yield broken("", about, "PUBLISHED_FILES_GONE", what, (f"streamwarden gate check {table}",))
    else:
        yield from _of_gate(state, about)


def _of_gate(state: GateState, about: str) -> Iterator[Finding]:
    trouble = state.record.trouble
    if trouble is not None and is_code(trouble.code):
        yield _of_error(about, state.table, StreamwardenError(trouble.code, trouble.what))
    elif trouble is not None:
        yield note("", about, f"no decision: {trouble.code}: {trouble.what}", f"streamwarden gate check {state.table}")
    elif state.hold is not None:
        what = f"held since {state.hold.since:%Y-%m-%d %H:%M} UTC: it waits for a person"
        yield note("", about, what, f"streamwarden gate status {state.table}")
    elif state.published.content >= 0:
        yield whole("", about, f"version {state.published.content}, {state.waiting} not decided yet")


def _of_error(about: str, table: str, error: StreamwardenError) -> Finding:
    remedy = error.remedy.replace("TABLE", table)
    return of_error("", about, StreamwardenError(error.code, error.what, remedy=remedy))
