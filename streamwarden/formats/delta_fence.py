"""Keeping late commits of another generation out of the output tables.

A driver checks its lease right before it commits, but it may be paused between the two, by a long garbage collection or
a frozen machine, and wake when the job runs on. Under the job's own generation that does no harm: the batch that it
commits has the rows that its successor's has, and Delta takes one of the two. Under another generation it would be a
batch that nobody else writes, on top of tables that were put back.

So before a generation's first batch each table gets a commit that changes nothing, and says of every other generation's
transaction id that the highest batch there can be was written. Delta then passes over whatever begins later under such
an id, and refuses what began before. Source: the Delta transaction log protocol, "Transaction Identifiers", and Delta's
conflict check, which fails a transaction whose application id a later commit has (ConcurrentTransactionException). The
values that stood there before are kept in the commit, for a generation that is taken up again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from streamwarden import __version__
from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import FENCE, DeltaLog, application_id
from streamwarden.model.status import CheckpointRef
from streamwarden.storage import Conflict
from streamwarden.store.workspace import Workspace

__all__ = ["fence"]

_TRIES = 20
"""Each lost race is a commit of somebody else: OPTIMIZE, or the very driver that is to be kept out, once."""

_SHUT = 2**63 - 1


def fence(
    workspace: Workspace, table: str, reference: CheckpointRef, *, guard: Callable[[], None] = lambda: None
) -> int | None:
    """Keep commits of a job's other generations out of a table from now on.

    Does not undo what such a commit has done already. Whoever it passes over is not told: a driver checks its lease
    again after each write, so that it does not take the batch for written.

    Parameters
    ----------
    table
        The table's name.
    reference
        The checkpoint in force: its generation is the one that is let in.
    guard
        Called before the commit, which comes at exactly the version after the one that was read before; raises if this
        driver may not write any more.

    Returns
    -------
    int or None
        The table's version that does it; None where there is no table, no other generation, or nothing left to do.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_CONFLICT`` if others commit all the time; ``RESTORE_OUTPUT_GONE`` if the generation was shut out and
        the commit that did so is no longer in the log.
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
        shut = {app: _SHUT for app in others if stand[app] != _SHUT}
        opened = {}
        if stand[ours] == _SHUT:
            opened[ours] = _before(DeltaLog(workspace.files, f"tables/{table}"), ours)
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
            workspace.storage.create(f"tables/{table}/_delta_log/{version:020d}.json", data)
        except Conflict:
            continue
        _write_checksum(workspace, table, version, ids)
        return version
    raise StreamwardenError("DOCUMENT_CONFLICT", f"table {table}: {_TRIES} commits were lost to other writers")


def _write_checksum(workspace: Workspace, table: str, version: int, ids: list[dict[str, Any]]) -> None:
    """Write a commit's checksum file, which is that of the version before but for the transaction ids.

    Delta writes one with each commit, from that of the version before. Where one is missing it reads the whole log with
    Spark jobs, which takes seconds while a job waits for its first batch. Where the version before has none, nor has
    this. Source: the Delta transaction log protocol, "Version Checksum File".
    """
    folder = f"tables/{table}/_delta_log"
    try:
        known = json.loads(workspace.files.read(f"{folder}/{version - 1:020d}.crc"))
    except (FileNotFoundError, ValueError):
        # There is none, or it is damaged. It is there to save time alone.
        return
    # It names the commit, which is another.
    known.pop("txnId", None)
    if "setTransactions" in known:
        changed = {one["appId"]: one for one in (*known["setTransactions"], *ids)}
        known["setTransactions"] = list(changed.values())
    with suppress(Conflict):
        workspace.storage.create(f"{folder}/{version:020d}.crc", json.dumps(known).encode())


def _before(log: DeltaLog, application: str) -> int:
    """Return the batch that an application had written when it was shut out; -1, as Delta has it, for none."""
    for version in reversed(log.versions):
        for action in log.actions(version):
            info = action.get("commitInfo", {})
            if info.get("operation") == FENCE:
                was = json.loads(info["operationParameters"]["was"])
                if application in was:
                    return -1 if was[application] is None else int(was[application])
    raise StreamwardenError("RESTORE_OUTPUT_GONE", f"{log.folder}: no commit says what {application} had written")
