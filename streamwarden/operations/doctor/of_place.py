"""Examine what a place has beside its jobs: storage, driver hosts, published tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

from streamwarden.errors import CATALOGUE, StreamwardenError, is_code
from streamwarden.formats.published_log import PublishedLog
from streamwarden.model.hosting import DriverStart
from streamwarden.model.record import utc_now
from streamwarden.operations.doctor.findings import Finding, broken, note, of_error, whole
from streamwarden.quality.gate_state import GateState, gate_state
from streamwarden.runtime.launchers.hosts import LOST, driver_hosts
from streamwarden.storage import Conflict
from streamwarden.store.documents import Document
from streamwarden.store.layout import CONTROL, INCARNATIONS, PUBLISHED, STARTS
from streamwarden.store.workspace import Workspace

__all__ = ["examine_published", "examine_storage", "hosts_of", "judged_tables"]

_UNTAKEN = timedelta(seconds=60)
"""How long a request for a driver may wait. 60 s: a full host, or one that is started again, takes it by then."""

_NO_ETAG = '"00000000000000000000000000000000"'


def examine_storage(workspace: Workspace) -> list[Finding]:
    """Return whether documents can be read, and whether the store refuses a conditional write that it must refuse.

    A store that does not refuse it gets an unchanged document once more.
    """
    about = f"storage {workspace.base}"
    try:
        keys = workspace.storage.list(CONTROL)
        if workspace.s3 is None:
            there = workspace.root.is_dir()
            if there and not os.access(workspace.root, os.R_OK | os.W_OK | os.X_OK):
                return [
                    broken(
                        "",
                        about,
                        "CONFIG_INVALID",
                        f"{workspace.root} can't be written",
                        remedy="Correct its owner or mode.",
                    )
                ]
            return [whole("", about, f"{len(keys)} documents" if there else "nothing was ever deployed here")]
        held = _are_conditions_held(workspace, keys)
    except StreamwardenError as error:
        return [of_error("", about, error)]
    if held is False:
        what = "the server ignores If-Match or If-None-Match: two drivers could get one lease"
        return [
            broken("", about, "CONFIG_INVALID", what, remedy="Use a server with conditional writes: docs/deployment.md")
        ]
    return [
        whole(
            "", about, f"{len(keys)} documents; {'conditional writes hold' if held else 'nothing to test writes with'}"
        )
    ]


def _are_conditions_held(workspace: Workspace, keys: list[str]) -> bool | None:
    """Return whether conditional writes are refused; None without a document to test them with."""
    # Nobody changes a launch once it is written.
    key = next((one for one in reversed(keys) if f"/{INCARNATIONS}/" in one and one.endswith("/launch.json")), None)
    entry = workspace.storage.read(key) if key is not None else None
    if key is None or entry is None:
        return None
    for etag in (None, _NO_ETAG):
        with suppress(Conflict):
            if etag is None:
                workspace.storage.create(key, entry.data)
            else:
                workspace.storage.replace(key, entry.data, etag)
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
        yield of_error("", about, error, (f"streamwarden gate repair {table}",))
        return
    anew = (f"streamwarden gate check {table} --anew",)
    if state.error is not None:
        yield of_error("", about, state.error, (f"streamwarden gate repair {table}",))
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
        remedy = CATALOGUE[trouble.code].remedy.replace("TABLE", state.table)
        yield of_error("", about, StreamwardenError(trouble.code, trouble.what, remedy=remedy))
    elif trouble is not None:
        yield note("", about, f"no decision: {trouble.code}: {trouble.what}", f"streamwarden gate check {state.table}")
    elif state.hold is not None:
        what = f"held since {state.hold.since:%Y-%m-%d %H:%M} UTC: it waits for a person"
        yield note("", about, what, f"streamwarden gate status {state.table}")
    elif state.published.content >= 0:
        yield whole("", about, f"version {state.published.content}, {state.waiting} not decided yet")
