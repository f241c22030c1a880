"""The log of a table's published versions: a Delta log whose files are those of the table, by absolute paths.

``published/TABLE/_delta_log/N.json`` shows readers what version N of ``tables/TABLE`` holds, once the gate has passed
it. No data is copied. Spark reads and streams the folder as a table, delta-rs scans it. Written against the Delta
protocol as of Delta 4.4: paths in ``add`` and ``remove`` may be absolute URIs.

A range of commits that only added rows, or rearranged them, is published commit by commit. A range that changed or
removed rows is published as its net change, in its last one to three versions, with commits without actions before
them; see :mod:`streamwarden.formats.range_change`. So readers never see a bad row that a later commit of the same range
has corrected.

Each commit names in its ``commitInfo.tags`` the version whose content it shows. An entry is created only if there is
none: of two publishers one wins, and the other notices.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.absolute_paths import absolute_uri, with_absolute_paths
from streamwarden.formats.delta_checkpoint import checkpoint_of, newest_checkpoint, read_checkpoint
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.formats.range_change import RangeChange, snapshot
from streamwarden.storage import Conflict
from streamwarden.store.layout import published_log_key, table_key
from streamwarden.store.workspace import Workspace

__all__ = ["CHECKPOINT_EVERY", "NOTHING", "PublishedAt", "PublishedLog"]

_log = logging.getLogger(__name__)

CHECKPOINT_EVERY = 100
"""Commits between two checkpoints of the log. 100, as in delta-rs: a reader opens up to that many small files. A
checkpoint costs more, the more files the table has, and so is rare beside the checks."""

_TAG = "streamwarden.content"
_AFTER = "streamwarden.after"
_LITERAL = "streamwarden.literal"
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


class PublishedLog:
    """The published log of one table.

    Parameters
    ----------
    workspace
        Where the table is.
    table
        Its name.
    """

    def __init__(self, workspace: Workspace, table: str) -> None:
        self._storage = workspace.storage
        self._files = workspace.files
        self._table = table
        self._folder = published_log_key(table)
        self._base = absolute_uri(workspace.schemed_uri(table_key(table)))
        self._audited = DeltaLog(workspace.files, table)
        self._uri, self._options = workspace.delta_rs(table, published=True)

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
        return PublishedAt(newest, self._content(newest))

    def versions(self) -> list[int]:
        """Return the numbers of the log's commits, oldest first."""
        return self._numbers(_COMMIT)

    @property
    def first(self) -> int | None:
        """The number that the log begins with: it has a checkpoint and a commit. None if nothing is published.

        A checkpoint without its commit was left by a killed removal.
        """
        return min(set(self._numbers(_COMMIT)) & set(self._numbers(_CHECKPOINT)), default=None)

    def identity(self) -> str | None:
        """Return the id of the published table; None if nothing is published."""
        versions = self.versions()
        if not versions:
            return None
        found = self._tags(versions[-1]).get(_TABLE)
        first = self.first
        # Entries of earlier releases have it in the first one only.
        return found if found is not None or first is None else self._tags(first).get(_TABLE)

    def begin(self, version: int) -> None:
        """Publish a version as the first: with all of its files, whatever the earlier versions were.

        The log then begins with that version's checkpoint. Two publishers must agree on the version before.

        Raises
        ------
        StreamwardenError
            ``GATE_LOG_GONE``: the table's log can't be read as of this version.
        """
        if not self.versions():
            # Of a killed removal. A reader would take the newest checkpoint for the table, whichever it is.
            for info in list(self._files.walk(self._folder)):
                if not info.key.startswith(f"{self._folder}/{version:020d}."):
                    self._files.delete(info.key)
        data = self._first(version)
        with suppress(Conflict):
            self._storage.create(self._key(version), data)

    def publish(
        self, start: PublishedAt, version: int, *, changes: bool, guard: Callable[[], None] | None = None
    ) -> int:
        """Publish the versions after what is published, up to `version`; return how many commits this call wrote.

        May be called again after a crash, with what :meth:`at` then returns.

        Parameters
        ----------
        start
            What is published.
        version
            The range's last version.
        changes
            Whether the range changes or removes rows.
        guard
            Called before each commit.

        Raises
        ------
        Conflict
            Another publisher has decided otherwise meanwhile. Read :meth:`at` again, and decide anew.
        StreamwardenError
            ``PUBLISHED_LOG_DAMAGED``: an entry is not the gate's. ``GATE_LOG_GONE``.
        """
        written = 0
        for number, lines in self._entries(start, version, changes=changes):
            if guard is not None:
                guard()
            try:
                self._storage.create(self._key(number), _encode(lines))
                written += 1
            except Conflict:
                if self._read(number) != lines:
                    # Raises if it is not the gate's.
                    self._content(number)
                    raise
        if written:
            self._keep_short(max(version, start.content))
        return written

    def finish(self, start: PublishedAt) -> PublishedAt:
        """Write what is missing of a range that readers see already, and return what is published then.

        Raises
        ------
        Conflict, StreamwardenError
            As :meth:`publish`.
        """
        if start.number >= start.content:
            return start
        self.publish(start, start.content, changes=False)
        return PublishedAt(start.content, start.content)

    def lost_files(self) -> list[str]:
        """Return the files that the published version names and the table's folder no longer has, as VACUUM leaves it.

        Takes a listing of the table's folder. Files elsewhere, as of a shallow clone, are not looked for.
        """
        number = self.at().number
        if number < 0:
            return []
        checkpoint = newest_checkpoint((f"{one:020d}.checkpoint.parquet" for one in self._numbers(_CHECKPOINT)), number)
        actions = read_checkpoint(self._files, self._folder, checkpoint) if checkpoint is not None else []
        for one in range(checkpoint.version + 1 if checkpoint is not None else 0, number + 1):
            actions += self._read(one)
        named = set()
        for add in (one["add"] for one in snapshot(actions) if "add" in one):
            vector = add.get("deletionVector") or {}
            named |= {add["path"], *([vector["pathOrInlineDv"]] if vector.get("storageType") == "p" else [])}
        prefix = f"{self._base}/"
        wanted = {unquote(path.removeprefix(prefix)) for path in named if path.startswith(prefix)}
        folder = f"{table_key(self._table)}/"
        return sorted(wanted - {info.key.removeprefix(folder) for info in self._files.walk(table_key(self._table))})

    def remove(self) -> None:
        """Remove the whole log, newest version first, so that a killed removal leaves a readable table."""
        self._files.delete(self._hint)
        first = self.first
        # A checkpoint shows its version without the version's commit. Only the first is needed to the end.
        for number in self._numbers(_CHECKPOINT):
            if number != first:
                self._files.delete(f"{self._folder}/{number:020d}.checkpoint.parquet")
        for number in reversed(self.versions()):
            self._files.delete(self._key(number))
        self._files.delete_tree(self._folder)

    def repair(self) -> list[int]:
        """Write damaged and missing entries again; return their versions.

        An entry that is not the last is rebuilt from the table's log and its neighbours: they say which content it
        shows. A damaged last entry is removed: the gate decides about it again.

        Raises
        ------
        StreamwardenError
            ``GATE_LOG_GONE``: the table's log has lost what is needed.
        """
        done = []
        versions = self.versions()
        while versions and not self._sound(versions[-1]):
            self._storage.delete(self._key(versions[-1]))
            done.append(versions.pop())
        # A first entry that is lost has left its checkpoint; older checkpoints are those of a killed removal.
        begins = [number for number in self._numbers(_CHECKPOINT) if versions and number <= versions[0]]
        first, before = max(begins, default=0), NOTHING
        for number in range(first, versions[-1] + 1 if versions else 0):
            if number not in versions or not self._sound(number):
                data = self._first(number) if number == first else _encode(self._rebuilt(number, before))
                self._storage.write(self._key(number), data)
                done.append(number)
            before = PublishedAt(number, self._content(number))
        return sorted(done)

    def _rebuilt(self, number: int, before: PublishedAt) -> list[Action]:
        """Return a lost entry.

        Parameters
        ----------
        before
            What the entry before it shows.
        """
        if before.content >= number:
            # The range's commits behind the one that shows it.
            return dict(self._entries(before, before.content, changes=True))[number]
        shown = self._shown(number, before)
        if shown == number:
            return dict(self._entries(before, number, changes=before != PublishedAt(number - 1, number - 1)))[number]
        if shown > number:
            return dict(self._entries(before, shown, changes=True))[number]
        return self._entry(number, shown, before.content, [], table=self._table_id(before.number))

    def _shown(self, number: int, before: PublishedAt) -> int:
        """Return the version whose content a lost entry has shown, or an older one."""
        try:
            tags = self._tags(number + 1)
        except StreamwardenError:
            return before.content
        following = int(tags[_TAG])
        if tags[_LITERAL] == "true" or int(tags.get(_AFTER, -1)) == number:
            return number
        if following <= number:
            return following
        return following if before.content < number and _AFTER in tags else before.content

    def _first(self, version: int) -> bytes:
        """Write the first version's checkpoint, and return its commit."""
        state = self._audited_state(version)
        self._files.write(f"{self._folder}/{version:020d}.checkpoint.parquet", checkpoint_of(state))
        note = json.dumps({"version": version, "size": len(state)})
        self._files.write(self._hint, note.encode())
        table = next(one["metaData"]["id"] for one in state if "metaData" in one)
        return _encode(self._entry(version, version, version, [], table=table))

    def _audited_state(self, version: int) -> list[Action]:
        """Return the actions that make up the table at a version, with absolute paths."""
        folder = self._audited.folder
        names = {info.key.rsplit("/", 1)[1] for info in self._files.walk(folder)}
        checkpoint = newest_checkpoint(names, version)
        first = checkpoint.version if checkpoint is not None else -1
        needed = [f"{number:020d}.json" for number in range(first + 1, version + 1)]
        gone = [name for name in needed if name not in names]
        if gone:
            raise StreamwardenError("GATE_LOG_GONE", f"{self._table}: the log has neither {gone[0]} nor a checkpoint")
        actions = read_checkpoint(self._files, folder, checkpoint) if checkpoint is not None else []
        for number in range(first + 1, version + 1):
            actions += self._actions(number)
        return [with_absolute_paths(one, self._base) for one in snapshot(actions)]

    def _entries(self, start: PublishedAt, version: int, *, changes: bool) -> Iterator[tuple[int, list[Action]]]:
        """Yield the commits behind `start` up to the one that shows `version`, with their numbers."""
        table = self._table_id(start.number)
        number, content = start.number, start.content
        if number < content:
            after = int(self._tags(number)[_AFTER])
            shown = self._net(after, content, room=content - after)
            for number in range(start.number + 1, content + 1):
                yield number, self._entry(number, content, after, shown[number - content - 1], table=table)
        if number == content and (not changes or version == content + 1):
            for number in range(content + 1, version + 1):
                yield number, self._entry(number, number, number - 1, self._own(number), table=table, literal=True)
        elif version > content:
            shown = self._net(content, version, room=version - number)
            begins = version - len(shown) + 1
            for empty in range(number + 1, begins):
                yield empty, self._entry(empty, content, content, [], table=table)
            for full, actions in enumerate(shown, begins):
                yield full, self._entry(full, version, content, actions, table=table)

    def _entry(
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
        tags = {**(info.get("tags") or {}), _TAG: str(shown), _AFTER: str(after), _LITERAL: str(literal).lower()}
        if table is not None:
            tags[_TABLE] = table
        return [{"commitInfo": {**info, "tags": tags}}, *(with_absolute_paths(one, self._base) for one in actions)]

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
                self._table,
                after + 1,
                version,
            )
        return change.commits(room)

    def _actions(self, number: int) -> list[Action]:
        try:
            return self._audited.actions(number)
        except FileNotFoundError as error:
            raise StreamwardenError(
                "GATE_LOG_GONE", f"{self._table}: the log has no commit {number} any more"
            ) from error

    def _keep_short(self, version: int) -> None:
        """Write a checkpoint if it is time, and remove the entries that the table's log retention no longer keeps."""
        entry = self._storage.read(self._hint)
        try:
            last = int(json.loads(entry.data)["version"]) if entry is not None else -1
        except (ValueError, KeyError, TypeError):
            last = -1
        if version - last < CHECKPOINT_EVERY:
            return
        try:
            # Not of the newest: another publisher may be within a range.
            table = DeltaTable(self._uri, version=version, storage_options=self._options)
            table.create_checkpoint()
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            # The versions are published. The next range tries again.
            _log.warning("%s: no checkpoint of published version %d: %s", self._table, version, error)

    def _table_id(self, number: int) -> str | None:
        found = self._tags(number).get(_TABLE) if number >= 0 else None
        return found if found is not None else self.identity()

    def _sound(self, number: int) -> bool:
        try:
            self._content(number)
        except StreamwardenError:
            return False
        return True

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        names = (info.key.rsplit("/", 1)[1] for info in self._files.walk(self._folder))
        return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)

    @property
    def _hint(self) -> str:
        return f"{self._folder}/_last_checkpoint"

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:020d}.json"

    def _read(self, number: int) -> list[Action]:
        entry = self._storage.read(self._key(number))
        try:
            found = [json.loads(line) for line in entry.data.splitlines() if line.strip()] if entry else []
        except ValueError as error:
            raise StreamwardenError("PUBLISHED_LOG_DAMAGED", f"{self._key(number)}: {error}") from error
        if not found:
            raise StreamwardenError("PUBLISHED_LOG_DAMAGED", f"{self._key(number)}: it is empty or missing")
        return found

    def _tags(self, number: int) -> dict[str, str]:
        infos = [action["commitInfo"] for action in self._read(number) if "commitInfo" in action]
        tags = (infos[0].get("tags") or {}) if infos else {}
        if _TAG not in tags:
            raise StreamwardenError("PUBLISHED_LOG_DAMAGED", f"{self._key(number)}: the gate did not write it")
        return dict(tags)

    def _content(self, number: int) -> int:
        return int(self._tags(number)[_TAG])


def _encode(lines: list[Action]) -> bytes:
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
