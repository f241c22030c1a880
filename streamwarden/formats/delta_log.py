"""Reading a Delta table's log without Spark: which version holds what a batch wrote.

Source: the Delta transaction log protocol. ``_delta_log/VERSION.json`` has one JSON action a line; ``txn`` carries the
application id and batch that a writer gave, ``metaData`` the table's id.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.storage import FileStore

__all__ = ["FENCE", "ChangeCommit", "DeltaLog", "TableState", "application_id", "start_id"]

FENCE = "FENCE"
"""The operation of commits that keep other generations out; see :mod:`~streamwarden.formats.delta_fence`."""

_COMMIT = re.compile(r"(\d{20})\.json")
_GENERATION = re.compile(r"(.*/g)(\d+)")


def application_id(job: str, generation: int) -> str:
    """Return the application id of the sinks' transactions.

    With the generation, because Delta passes over a batch id that it has seen under the same application id, and after
    a restore the same batch ids hold other rows.
    """
    return f"streamwarden/{job}/g{generation}"


def start_id(job: str) -> str:
    """Return the application id under which a driver gives a table the contents that a generation starts with.

    One for all generations, so that none does it after a later one has.
    """
    return f"streamwarden/{job}/start"


@dataclass(frozen=True)
class TableState:
    """A table after a batch.

    Parameters
    ----------
    version
        Its version; None if it did not exist.
    transaction
        The newest batch that it has of the application; None if there is none.
    """

    version: int | None
    transaction: int | None


@dataclass(frozen=True)
class ChangeCommit:
    """A commit that deleted, updated or overwrote rows. One that only rearranged them, as OPTIMIZE does, is none.

    Parameters
    ----------
    version
        The table's version that it made.
    operation
        What its writer calls it: DELETE, UPDATE, MERGE, WRITE (an overwrite), RESTORE; empty if it does not say.
    """

    version: int
    operation: str

    def passed_over(self, table: str) -> str:
        """Return in words that a job which streams from the table did not read it."""
        by = f" ({self.operation})" if self.operation else ""
        # Any other may also bring rows that were never in the table before.
        new = "" if self.operation == "DELETE" else ", and read none of the rows that came with it"
        return f"version {self.version} of {table} deleted or updated rows{by}; the job passed over it{new}"


class DeltaLog:
    """The log of one table as it is at this moment.

    Does not read Delta's own checkpoints, so it knows of no version whose JSON file was cleaned up.

    Parameters
    ----------
    files
        Where the table lies.
    table
        Its folder's key.
    """

    def __init__(self, files: FileStore, table: str) -> None:
        self._files = files
        self.folder = f"{table}/_delta_log"

    @cached_property
    def versions(self) -> list[int]:
        """The versions that have a file, oldest first; empty if there is no table."""
        return self._listed()

    def since(self, version: int) -> list[int]:
        """Return the versions from one on, oldest first. Costs no more for an old table than for a new one."""
        # The name that sorts right before the version's own.
        return self._listed(after=f"{version:020d}.")

    def _listed(self, after: str = "") -> list[int]:
        names = (info.key.rsplit("/", 1)[1] for info in self._files.walk(self.folder, after=after))
        return sorted(int(match[1]) for match in map(_COMMIT.fullmatch, names) if match)

    @property
    def latest(self) -> int | None:
        """The newest version."""
        return self.versions[-1] if self.versions else None

    def actions(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of one commit.

        Raises
        ------
        StreamwardenError
            ``TABLE_DAMAGED`` if it is empty or cut.
        """
        name = f"{self.folder}/{version:020d}.json"
        data = self._files.read(name)
        try:
            found = [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError as error:
            raise StreamwardenError("TABLE_DAMAGED", f"{name} is cut") from error
        if not found:
            raise StreamwardenError("TABLE_DAMAGED", f"{name} is empty")
        return found

    def change(self, version: int) -> ChangeCommit | None:
        """Return what a commit changed of the rows that were there; None if it only added some, or rearranged them."""
        actions = self.actions(version)
        # As Delta's streaming source has it.
        if not any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
            return None
        named = (action["commitInfo"].get("operation") for action in actions if "commitInfo" in action)
        return ChangeCommit(version, str(next(named, None) or ""))

    def after(self, application: str, batch: int, *, until: int | None = None) -> TableState:
        """Return the table as it was when the application's batch was written and the next was not.

        A batch that had nothing to write has no commit: then it is the version before the first later batch's. Commits
        that carry no transaction (OPTIMIZE, a person's correction) belong to what stood before them.

        Parameters
        ----------
        application
            The sink's application id; only one writes the table at a time.
        batch
            The batch.
        until
            The version that the table is to be put back to: what came later doesn't count. None if it stays.
        """
        state = self.latest if until is None else until
        newest_first = [one for one in reversed(self.versions) if until is None or one <= until]
        for version in newest_first:
            actions = self.actions(version)
            if any(action.get("commitInfo", {}).get("operation") == FENCE for action in actions):
                # Its transaction ids are no batches.
                continue
            written = [action["txn"] for action in actions if "txn" in action]
            ours = [int(txn["version"]) for txn in written if txn["appId"] == application]
            if ours and max(ours) > batch:
                state = version - 1 if version > 0 else None
            elif ours:
                return TableState(state, max(ours))
            elif any(_is_older(str(txn["appId"]), application) for txn in written):
                # All that ours wrote came later. A newer generation's commits end nothing: after a rollback from it
                # ours goes on behind them.
                break
        return TableState(state, None)


def _is_older(one: str, other: str) -> bool:
    """Tell whether an application id is of an earlier generation of the same job."""
    mine, its = _GENERATION.fullmatch(one), _GENERATION.fullmatch(other)
    return mine is not None and its is not None and mine[1] == its[1] and int(mine[2]) < int(its[2])
