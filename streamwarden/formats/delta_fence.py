"""Fence the output tables against late commits of another generation.

A driver checks its lease right before it commits. A long garbage collection or a frozen machine may pause it between
the two, and it resumes when the job already runs elsewhere. Within the job's current generation that is harmless: its
batch has the same rows as its successor's, and Delta accepts only one of the two. A batch of another generation would
be an extra batch on top of restored tables.

So before a generation's first batch, each table gets a commit that changes no data. For every other generation's
transaction id it records the highest possible batch as written. Delta then skips later writes under such an id, and
rejects those that began before. Source: the Delta transaction log protocol, "Transaction Identifiers", and Delta's
conflict check: a transaction fails if a later commit has its application id (ConcurrentTransactionException).
The commit keeps the previous values, for a generation that is resumed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from streamwarden import __version__
from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.delta_checksum import write_checksum
from streamwarden.formats.delta_log import FENCE, SHUT, DeltaLog, application_id
from streamwarden.model.status import CheckpointRef
from streamwarden.storage import Conflict
from streamwarden.store.layout import delta_log_key
from streamwarden.store.workspace import Workspace

__all__ = ["fence"]

_TRIES = 20
"""Maximum lost races. Each is another commit: by OPTIMIZE, or, once, by the driver that is to be fenced off."""


def fence(
    workspace: Workspace, table: str, reference: CheckpointRef, *, guard: Callable[[], None] = lambda: None
) -> int | None:
    """Fence a table against commits of a job's other generations from now on.

    Does not undo earlier commits. A skipped writer gets no error: a driver checks its lease again after each write, so
    that it does not take the batch for written.

    Parameters
    ----------
    table
        The table's name.
    reference
        The checkpoint in force: its generation is the one that stays admitted.
    guard
        Called before the commit, which creates exactly the version after the one that was read before; raises if this
        driver may not write any more.

    Returns
    -------
    int or None
        The table's version with the fence; None if there is no table, no other generation, or nothing left to do.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_CONFLICT`` if others commit all the time; ``RESTORE_OUTPUT_GONE`` if the generation was fenced off
        and that commit is no longer in the log.
    """
    ours = application_id(reference.job, reference.generation)
    others = [
        application_id(reference.job, generation)
        for generation in range(1, max(reference.highest, reference.generation) + 1)
        if generation != reference.generation
    ]
    if not others:
        return None
    address, options = workspace.delta_rs(table)
    for _ in range(_TRIES):
        try:
            found = DeltaTable(address, storage_options=options)
        except TableNotFoundError:
            return None
        stand = {app: found.transaction_version(app) for app in (ours, *others)}
        shut = {app: SHUT for app in others if stand[app] != SHUT}
        opened = {}
        if stand[ours] == SHUT:
            opened[ours] = _before(DeltaLog(workspace.files, table), ours)
        if not shut and not opened:
            return None
        now = round(time.time() * 1000)
        was = {app: stand[app] for app in shut}
        parameters = {"job": reference.job, "generation": str(reference.generation), "was": json.dumps(was)}
        info = {
            "timestamp": now,
            "operation": FENCE,
            "operationParameters": parameters,
            "engineInfo": f"streamwarden/{__version__}",
            "isBlindAppend": False,
        }
        ids = [{"appId": app, "version": last, "lastUpdated": now} for app, last in {**shut, **opened}.items()]
        actions = [{"commitInfo": info}, *({"txn": one} for one in ids)]
        data = "".join(f"{json.dumps(action)}\n" for action in actions).encode()
        version = found.version() + 1
        guard()
        try:
            workspace.storage.create(f"{delta_log_key(table)}/{version:020d}.json", data)
        except Conflict:
            continue
        write_checksum(workspace, table, version)
        return version
    raise StreamwardenError("DOCUMENT_CONFLICT", f"table {table}: {_TRIES} commits were lost to other writers")


def _before(log: DeltaLog, application: str) -> int:
    """Return the last batch that an application had written when it was fenced off; -1, as in Delta, for none."""
    for version in reversed(log.versions):
        for action in log.actions(version):
            info = action.get("commitInfo", {})
            if info.get("operation") == FENCE:
                was = parse(info["operationParameters"]["was"])
                if application in was:
                    return -1 if was[application] is None else int(was[application])
    raise StreamwardenError("RESTORE_OUTPUT_GONE", f"{log.folder}: no commit shows what {application} had written")
