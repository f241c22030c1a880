"""Entries of a table's published log: what each one says, and how it is made from the commits of the table.

See :mod:`streamwarden.formats.published_log`. Each entry names in its ``commitInfo.tags`` the version whose content it
shows.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.absolute_paths import absolute_uri, with_absolute_paths
from streamwarden.formats.delta_checkpoint import checkpoint_of, newest_checkpoint, read_checkpoint
from streamwarden.formats.delta_log import DeltaLog, is_action
from streamwarden.formats.range_change import RangeChange, snapshot
from streamwarden.store.layout import published_log_key, table_key
from streamwarden.store.workspace import Workspace

__all__ = ["AFTER", "LITERAL", "NOTHING", "SHOWN", "Action", "PublishedAt", "PublishedEntries", "encode"]

_log = logging.getLogger(__name__)

SHOWN = "streamwarden.content"
"""The tag of the version that an entry shows."""
AFTER = "streamwarden.after"
"""The tag of the version that was shown before the entry's range."""
LITERAL = "streamwarden.literal"
"""The tag that is ``true`` if an entry repeats the table's commit."""
_TABLE = "streamwarden.table"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")

Action = dict[str, Any]


@dataclass(frozen=True)
class PublishedAt:
    """What is published.

    Parameters
    ----------
    number
        The newest published version's number; -1 if nothing is published.
    content
        The table's version that it shows. While a range is being published, it is an older one, or the range's last.
    """

    number: int
    content: int


NOTHING = PublishedAt(-1, -1)


class PublishedEntries:
    """The entries of the published log of one table.

    Parameters
    ----------
    workspace
        Where the table is.
    table
        Its name.
    """

    def __init__(self, workspace: Workspace, table: str) -> None:
        self.storage = workspace.storage
        self.files = workspace.files
        self.table = table
        self.folder = published_log_key(table)
        self.base = absolute_uri(workspace.schemed_uri(table_key(table)))
        self.table_log = DeltaLog(workspace.files, table)

    def at(self) -> PublishedAt:
        """Return what is published.

        Raises
        ------
        StreamwardenError
            ``PUBLISHED_LOG_DAMAGED``.
        """
        versions = self.versions()
        if not versions:
            return NOTHING
        newest = versions[-1]
        return PublishedAt(newest, self.content(newest))

    def versions(self) -> list[int]:
        """Return the numbers of the log's commits, oldest first."""
        return self._numbers(_COMMIT)

    @property
    def first(self) -> int | None:
        """The number that the log begins with: it has a checkpoint and a commit. None if nothing is published.

        A checkpoint without its commit was left by a killed removal.
        """
        return min(set(self.versions()) & set(self.checkpoints()), default=None)

    def identity(self) -> str | None:
        """Return the id of the published table; None if nothing is published."""
        versions = self.versions()
        if not versions:
            return None
        found = self.tags(versions[-1]).get(_TABLE)
        first = self.first
        # Entries of earlier releases have it in the first one only.
        return found if found is not None or first is None else self.tags(first).get(_TABLE)

    def first_commit(self, version: int) -> bytes:
        """Write the first version's checkpoint, and return its commit."""
        state = self._state_of_table(version)
        self.files.write(f"{self.folder}/{version:020d}.checkpoint.parquet", checkpoint_of(state))
        note = json.dumps({"version": version, "size": len(state)})
        self.files.write(self.hint, note.encode())
        table = next(one["metaData"]["id"] for one in state if "metaData" in one)
        return encode(self.entry(version, version, version, [], table=table))

    def _state_of_table(self, version: int) -> list[Action]:
        """Return the actions that make up the table at a version, with absolute paths."""
        folder = self.table_log.folder
        names = {info.key.rsplit("/", 1)[1] for info in self.files.walk(folder)}
        checkpoint = newest_checkpoint(names, version)
        first = checkpoint.version if checkpoint is not None else -1
        needed = [f"{number:020d}.json" for number in range(first + 1, version + 1)]
        gone = [name for name in needed if name not in names]
        if gone:
            raise StreamwardenError("GATE_LOG_GONE", f"{self.table}: the log has neither {gone[0]} nor a checkpoint")
        actions = read_checkpoint(self.files, folder, checkpoint) if checkpoint is not None else []
        for number in range(first + 1, version + 1):
            actions += self._actions(number)
        return [with_absolute_paths(one, self.base) for one in snapshot(actions)]

    def between(self, start: PublishedAt, version: int, *, changes: bool) -> Iterator[tuple[int, list[Action]]]:
        """Yield the entries behind `start` up to the one that shows `version`, with their numbers.

        Parameters
        ----------
        changes
            Whether the range changes or removes rows.
        """
        table = self.table_id(start.number)
        number, content = start.number, start.content
        if number < content:
            after = int(self.tags(number)[AFTER])
            shown = self._net(after, content, room=content - after)
            for number in range(start.number + 1, content + 1):
                yield number, self.entry(number, content, after, shown[number - content - 1], table=table)
        if number == content and (not changes or version == content + 1):
            for number in range(content + 1, version + 1):
                yield number, self.entry(number, number, number - 1, self._own(number), table=table, literal=True)
        elif version > content:
            shown = self._net(content, version, room=version - number)
            begins = version - len(shown) + 1
            for empty in range(number + 1, begins):
                yield empty, self.entry(empty, content, content, [], table=table)
            for full, actions in enumerate(shown, begins):
                yield full, self.entry(full, version, content, actions, table=table)

    def entry(
        self,
        number: int,
        shown: int,
        after: int,
        actions: Sequence[Action],
        *,
        table: str | None,
        literal: bool = False,
    ) -> list[Action]:
        """Return a commit's actions.

        Parameters
        ----------
        number
            The commit's number.
        shown
            The version whose content it shows.
        after
            The version whose content was shown before the range.
        table
            The table's id.
        literal
            Whether it repeats the table's commit.
        """
        own = (dict(one["commitInfo"]) for one in self._actions(number) if "commitInfo" in one)
        # The table's own has the time, and the in-commit timestamp that the protocol may demand.
        info: Action = next(own, {"timestamp": 0})
        if not literal:
            # Not the table's operation: Delta skips the files of a MERGE whose metrics say that it changed nothing.
            info = {name: info[name] for name in ("timestamp", "inCommitTimestamp") if name in info}
            info |= {"operation": "PUBLISH", "operationParameters": {}}
        tags = {**(info.get("tags") or {}), SHOWN: str(shown), AFTER: str(after), LITERAL: str(literal).lower()}
        if table is not None:
            tags[_TABLE] = table
        return [{"commitInfo": {**info, "tags": tags}}, *(with_absolute_paths(one, self.base) for one in actions)]

    def _own(self, number: int) -> list[Action]:
        return [one for one in self._actions(number) if "commitInfo" not in one and "txn" not in one]

    def _net(self, after: int, version: int, *, room: int) -> list[list[Action]]:
        change = RangeChange()
        for number in range(after + 1, version + 1):
            change.commit(self._actions(number))
        if change.has_mixed:
            # A limit of docs/gate.md: a rewritten file does not say which of its rows are new.
            _log.warning(
                "%s: versions %d to %d: streams of the published table may miss new rows that a DELETE, UPDATE or MERGE"
                " wrote into a file with older rows",
                self.table,
                after + 1,
                version,
            )
        return change.commits(room)

    def _actions(self, number: int) -> list[Action]:
        try:
            return self.table_log.actions(number)
        except FileNotFoundError as error:
            raise StreamwardenError(
                "GATE_LOG_GONE", f"{self.table}: the log has no commit {number} any more"
            ) from error

    def table_id(self, number: int) -> str | None:
        """Return the id of the published table as of an entry; None if nothing is published."""
        found = self.tags(number).get(_TABLE) if number >= 0 else None
        return found if found is not None else self.identity()

    def is_sound(self, number: int) -> bool:
        """Return whether an entry is there, and the gate's."""
        try:
            self.content(number)
        except StreamwardenError:
            return False
        return True

    def checkpoints(self) -> list[int]:
        """Return the numbers of the versions that have a checkpoint, oldest first."""
        return self._numbers(_CHECKPOINT)

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        names = (info.key.rsplit("/", 1)[1] for info in self.files.walk(self.folder))
        return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)

    @property
    def hint(self) -> str:
        """The key of the file that names the newest checkpoint."""
        return f"{self.folder}/_last_checkpoint"

    def key(self, number: int) -> str:
        """Return the key of an entry."""
        return f"{self.folder}/{number:020d}.json"

    def read(self, number: int) -> list[Action]:
        """Return an entry's actions; raise ``PUBLISHED_LOG_DAMAGED`` if there are none."""
        entry = self.storage.read(self.key(number))
        try:
            found = [parse(line) for line in entry.data.splitlines() if line.strip()] if entry else []
        except ValueError as error:
            raise StreamwardenError("PUBLISHED_LOG_DAMAGED", f"{self.key(number)}: {error}") from error
        if not found:
            raise StreamwardenError("PUBLISHED_LOG_DAMAGED", f"{self.key(number)}: it is empty or missing")
        if not all(map(is_action, found)):
            raise StreamwardenError("PUBLISHED_LOG_DAMAGED", f"{self.key(number)}: it is no commit of Delta's")
        return found

    def tags(self, number: int) -> dict[str, str]:
        """Return an entry's tags; raise ``PUBLISHED_LOG_DAMAGED`` if they are not the gate's."""
        infos = [action["commitInfo"] for action in self.read(number) if "commitInfo" in action]
        tags = infos[0].get("tags") if infos else None
        if not isinstance(tags, dict) or re.fullmatch(r"-?\d{1,18}", str(tags.get(SHOWN))) is None:
            raise StreamwardenError("PUBLISHED_LOG_DAMAGED", f"{self.key(number)}: the gate did not write it")
        return dict(tags)

    def content(self, number: int) -> int:
        """Return the version whose content an entry shows."""
        return int(self.tags(number)[SHOWN])


def encode(lines: list[Action]) -> bytes:
    """Return an entry's actions as its file's content."""
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
