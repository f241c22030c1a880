"""Write the checksum file of a commit that Spark did not make.

Delta writes one with each commit, based on the previous version's. Without it, Delta's next reader reads the whole log
with Spark jobs, which takes a part of a second to seconds while a job waits. Source: the Delta transaction log
protocol, "Version Checksum File".
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from streamwarden.foreign_json import parse
from streamwarden.storage import Conflict
from streamwarden.store.layout import delta_log_key
from streamwarden.store.workspace import Workspace

__all__ = ["write_checksum"]

_KEPT = ("numMetadata", "numProtocol", "domainMetadata", "metadata", "protocol")


def write_checksum(workspace: Workspace, table: str, version: int) -> None:
    """Write a version's checksum file, unless the previous version has none or the commit changed more than files.

    Leaves out the optional fields: the histogram of file sizes and the list of files.

    Parameters
    ----------
    workspace, table
        The table.
    version
        The version of the commit.
    """
    folder = delta_log_key(table)
    try:
        known = parse(workspace.files.read(f"{folder}/{version - 1:020d}.crc"))
        lines = workspace.files.read(f"{folder}/{version:020d}.json").splitlines()
        found = _checksum(known, [parse(line) for line in lines if line.strip()])
    except (FileNotFoundError, ValueError, KeyError):
        # Missing or damaged. The checksum only saves time.
        return
    if found is not None:
        with suppress(Conflict):
            workspace.storage.create(f"{folder}/{version:020d}.crc", json.dumps(found).encode())


def _checksum(known: dict[str, Any], actions: list[dict[str, Any]]) -> dict[str, Any] | None:
    kinds = {kind for action in actions for kind in action}
    if not kinds <= {"commitInfo", "txn", "add", "remove", "cdc"} or "setTransactions" not in known:
        return None
    added = [action["add"]["size"] for action in actions if "add" in action]
    removed = [action["remove"]["size"] for action in actions if "remove" in action]
    ids = {one["appId"]: one for one in known["setTransactions"]}
    ids |= {action["txn"]["appId"]: action["txn"] for action in actions if "txn" in action}
    return {
        "tableSizeBytes": known["tableSizeBytes"] + sum(added) - sum(removed),
        "numFiles": known["numFiles"] + len(added) - len(removed),
        "setTransactions": list(ids.values()),
        **{name: known[name] for name in _KEPT if name in known},
    }
