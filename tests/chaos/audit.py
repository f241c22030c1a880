"""After the run: what the tables' logs say of who wrote them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from streamwarden.formats.delta_log import DeltaLog
from streamwarden.storage import FileStore


@dataclass(frozen=True)
class Written:
    """One commit of a driver.

    Parameters
    ----------
    version
        The table's version.
    application, batch
        Its transaction id.
    incarnation, epoch
        The driver that made it and the epoch of the lease that it held; None if the commit does not say.
    """

    version: int
    application: str
    batch: int
    incarnation: str | None
    epoch: int | None


def commits_of(files: FileStore, table: str) -> list[Written]:
    """Return the commits of a table that carry a batch, oldest first."""
    log = DeltaLog(files, table)
    found = []
    for version in log.versions:
        actions = log.actions(version)
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if info.get("operation") == "FENCE":
            continue
        author = _author(info)
        for action in actions:
            if "txn" in action:
                txn = action["txn"]
                found.append(
                    Written(
                        version,
                        str(txn["appId"]),
                        int(txn["version"]),
                        author.get("incarnation"),
                        author.get("epoch"),
                    )
                )
    return found


def audit(commits: list[Written]) -> list[str]:
    """Return the faults of a table's commits as messages; empty if there are none.

    Each batch of an application is committed at most once, batches are in order, and no driver commits after a driver
    of a later epoch.
    """
    wrong = []
    seen: dict[tuple[str, int], Written] = {}
    newest: dict[str, int] = {}
    epoch = 0
    for commit in commits:
        what = f"version {commit.version} ({commit.application}, batch {commit.batch}, by {commit.incarnation})"
        earlier = seen.setdefault((commit.application, commit.batch), commit)
        if earlier is not commit:
            wrong.append(f"{what}: batch was committed already, as version {earlier.version} by {earlier.incarnation}")
        elif commit.batch < newest.get(commit.application, -1):
            wrong.append(f"{what}: comes after batch {newest[commit.application]}")
        newest[commit.application] = max(commit.batch, newest.get(commit.application, -1))
        if commit.epoch is None:
            wrong.append(f"{what}: does not say who made it")
        elif commit.epoch < epoch:
            wrong.append(f"{what}: of epoch {commit.epoch}, after a commit of epoch {epoch}")
        epoch = max(epoch, commit.epoch or 0)
    return wrong


def _author(info: dict[str, Any]) -> dict[str, Any]:
    try:
        said = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
