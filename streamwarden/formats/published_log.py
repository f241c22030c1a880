"""The log of a table's published versions: a Delta log whose files are those of the table, by absolute paths.

``published/TABLE/_delta_log/N.json`` shows readers what version N of ``tables/TABLE`` holds, once the gate has passed
it. No data is copied. Spark reads and streams the folder as a table, delta-rs scans it. Written against the Delta
protocol as of Delta 4.4: paths in ``add`` and ``remove`` may be absolute URIs.

A range of commits that only added rows, or rearranged them, is published commit by commit. A range that changed or
removed rows is published as its net change, at its last version, with commits without actions before it. So readers
never see a bad row that a later commit of the same range has corrected.

Each commit names in its ``commitInfo.tags`` the version whose content it shows. An entry is created only if there is
none: of two publishers one wins, and the other notices.
"""

from __future__ import annotations

import base64
import io
import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.storage import Conflict
from streamwarden.store.layout import published_log_key, table_key
from streamwarden.store.workspace import Workspace

__all__ = ["NOTHING", "PublishedAt", "PublishedLog"]

_TAG = "streamwarden.content"
_LITERAL = "streamwarden.literal"
_TABLE = "streamwarden.table"
_Z85_TO_B85 = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)
_PATHS = ("add", "remove", "cdc")
_STATE = ("protocol", "metaData", "domainMetadata")


@dataclass(frozen=True)
class PublishedAt:
    """What is published.

    Parameters
    ----------
    number
        The newest published version's number; -1 if nothing is published.
    content
        The table's version that it shows: `number`, or an older one while a range is being published.
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
        self._base = workspace.schemed_uri(table_key(table)).replace("file:/", "file:///", 1)
        self._audited = DeltaLog(workspace.files, table)

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
        names = (info.key.rsplit("/", 1)[1] for info in self._files.walk(self._folder))
        return sorted(int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit())

    def begin(self, version: int) -> None:
        """Publish a version as the first: with all of its files, whatever the earlier versions were.

        The log then begins with that version's checkpoint. Two publishers must agree on the version before.

        Raises
        ------
        StreamwardenError
            ``GATE_LOG_GONE``: the table's log can't be read as of this version.
        """
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
            ``PUBLISHED_LOG_DAMAGED``: an entry is not the gate's.
        """
        # If a range with changes was begun and not ended, then its commits without actions are there.
        literal = start.number == start.content and (not changes or version == start.content + 1)
        written = 0
        for number, lines in self._commits(start, version, literal=literal):
            if guard is not None:
                guard()
            data = _encode(lines)
            try:
                self._storage.create(self._key(number), data)
                written += 1
            except Conflict:
                if self._read(number) != lines:
                    # Raises if it is not the gate's.
                    self._content(number)
                    raise
        return written

    def identity(self) -> str | None:
        """Return the id of the published table; None if nothing is published."""
        first = self.first
        return None if first is None else self._tags(first).get(_TABLE)

    @property
    def first(self) -> int | None:
        """The number that the log begins with: that of its first checkpoint. None if nothing is published."""
        names = (info.key.rsplit("/", 1)[1] for info in self._files.walk(self._folder))
        return min((int(name[:20]) for name in names if name.endswith(".checkpoint.parquet")), default=None)

    def remove(self) -> None:
        """Remove the whole log, newest commit first, so that a killed removal leaves a readable table."""
        for number in reversed(self.versions()):
            self._storage.delete(self._key(number))
        self._files.delete_tree(self._folder)

    def repair(self) -> list[int]:
        """Write damaged and missing entries again; return their versions.

        An entry that is not the last is rebuilt from the table's log and its neighbours: they say which content it
        shows. A damaged last entry is removed: the gate decides about it again.

        Raises
        ------
        StreamwardenError
            ``PUBLISHED_LOG_DAMAGED``: the table's log has lost what is needed.
        """
        done = []
        versions = self.versions()
        while versions and not self._sound(versions[-1]):
            self._storage.delete(self._key(versions[-1]))
            done.append(versions.pop())
        first, before = self.first, NOTHING
        for number in range(first or 0, versions[-1] + 1 if versions else 0):
            if number not in versions or not self._sound(number):
                self._storage.write(self._key(number), self._rebuilt(number, before, first=number == first))
                done.append(number)
            before = PublishedAt(number, self._content(number))
        return sorted(done)

    def _rebuilt(self, number: int, before: PublishedAt, *, first: bool) -> bytes:
        if first:
            return self._first(number)
        shown = self._shown(number, before)
        return _encode(self._commit(before, number, shown, literal=shown == number and before.content == number - 1))

    def _first(self, version: int) -> bytes:
        """Write the first version's checkpoint, and return its commit."""
        state = [self._absolute(action) for action in self._audited_state(version)]
        self._files.write(f"{self._folder}/{version:020d}.checkpoint.parquet", _checkpoint(state))
        note = json.dumps({"version": version, "size": len(state)})
        self._files.write(f"{self._folder}/_last_checkpoint", note.encode())
        info = self._info(version, version, literal=False)
        info["tags"][_TABLE] = next(one["metaData"]["id"] for one in state if "metaData" in one)
        return _encode([{"commitInfo": info}])

    def _shown(self, number: int, before: PublishedAt) -> int:
        """Return the version whose content a lost entry has shown, or an older one."""
        try:
            tags = self._tags(number + 1)
        except StreamwardenError:
            return before.content
        if tags[_LITERAL] == "true":
            return number
        following = int(tags[_TAG])
        return before.content if following == number + 1 else following

    def _sound(self, number: int) -> bool:
        try:
            self._content(number)
        except StreamwardenError:
            return False
        return True

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:020d}.json"

    def _read(self, number: int) -> list[dict[str, Any]]:
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

    def _commits(
        self, start: PublishedAt, version: int, *, literal: bool
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        for number in range(start.number + 1, version + 1):
            shown = number if literal or number == version else start.content
            yield number, self._commit(start, number, shown, literal=literal)

    def _commit(self, start: PublishedAt, number: int, shown: int, *, literal: bool) -> list[dict[str, Any]]:
        """Return a commit's actions.

        Parameters
        ----------
        start
            What was published before the range; for a literal commit nothing of it is read.
        number
            The commit's number.
        shown
            The version whose content it shows.
        literal
            Whether it repeats the table's commit.
        """
        lines: list[dict[str, Any]] = [{"commitInfo": self._info(number, shown, literal=literal)}]
        if literal:
            rest = [one for one in self._audited.actions(number) if "commitInfo" not in one and "txn" not in one]
        elif shown == number:
            rest = self._net(start.content, number)
        else:
            rest = []
        return lines + [self._absolute(action) for action in rest]

    def _info(self, number: int, shown: int, *, literal: bool) -> dict[str, Any]:
        # The table's own has the time, the operation, and the in-commit timestamp that the protocol may demand.
        own = (dict(one["commitInfo"]) for one in self._audited.actions(number) if "commitInfo" in one)
        info: dict[str, Any] = next(own, {"timestamp": 0})
        return {**info, "tags": {**(info.get("tags") or {}), _TAG: str(shown), _LITERAL: str(literal).lower()}}

    def _audited_state(self, version: int) -> list[dict[str, Any]]:
        """Return the actions that make up the table at a version."""
        names = {info.key.rsplit("/", 1)[1] for info in self._files.walk(self._audited.folder)}
        checkpoints = [int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.checkpoint\.parquet", name)]
        first = max((number for number in checkpoints if number <= version), default=-1)
        begun: list[dict[str, Any]] = []
        if first >= 0:
            data = self._files.read(f"{self._audited.folder}/{first:020d}.checkpoint.parquet")
            begun = [_sparse(row) for row in pq.read_table(io.BytesIO(data)).to_pylist(maps_as_pydicts="lossy")]
        needed = [f"{number:020d}.json" for number in range(first + 1, version + 1)]
        gone = [name for name in needed if name not in names]
        if gone:
            raise StreamwardenError("GATE_LOG_GONE", f"{self._table}: the log has neither {gone[0]} nor a checkpoint")
        return self._net(first, version, begun)

    def _net(self, after: int, version: int, begun: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Return the net change of some actions, and then of the versions from `after` + 1 to `version`."""
        added: dict[tuple[str, str | None], dict[str, Any]] = {}
        removed: dict[tuple[str, str | None], dict[str, Any]] = {}
        state: dict[str, Any] = {}
        for number in range(after, version + 1):
            for action in self._audited.actions(number) if number > after else begun:
                if "remove" in action:
                    name = _name(action["remove"])
                    if added.pop(name, None) is None:
                        removed[name] = action["remove"]
                elif "add" in action:
                    name = _name(action["add"])
                    if removed.pop(name, None) is None:
                        added[name] = action["add"]
                else:
                    for kind in _STATE:
                        if kind in action:
                            state[f"{kind}/{action[kind].get('domain', '')}"] = action
        changed = [{"remove": {**one, "dataChange": True}} for one in removed.values()]
        changed += [{"add": {**one, "dataChange": True}} for one in added.values()]
        return [*state.values(), *changed]

    def _absolute(self, action: dict[str, Any]) -> dict[str, Any]:
        for kind in _PATHS:
            if kind in action and "://" not in action[kind]["path"]:
                file = {**action[kind], "path": f"{self._base}/{action[kind]['path']}"}
                vector = file.get("deletionVector")
                if vector is not None and vector["storageType"] == "u":
                    file["deletionVector"] = {**vector, "storageType": "p", "pathOrInlineDv": self._vector(vector)}
                return {kind: file}
        return action

    def _vector(self, vector: dict[str, Any]) -> str:
        """Return the absolute path of a deletion vector's file, of which the log has the UUID in Z85."""
        text = vector["pathOrInlineDv"]
        folder, name = text[:-20], uuid.UUID(bytes=base64.b85decode(text[-20:].translate(_Z85_TO_B85)))
        return f"{self._base}/{folder + '/' if folder else ''}deletion_vector_{name}.bin"


def _name(action: dict[str, Any]) -> tuple[str, str | None]:
    """Return what identifies a file in a log: its path and its deletion vector."""
    vector = action.get("deletionVector")
    if vector is None:
        return action["path"], None
    return action["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def _sparse(value: Any) -> Any:
    """Return a row of a checkpoint as the action that it holds."""
    if isinstance(value, dict):
        # Delta on Spark also writes statistics and partition values in the table's types, beside their text.
        return {key: _sparse(one) for key, one in value.items() if one is not None and not key.endswith("_parsed")}
    return [_sparse(one) for one in value] if isinstance(value, list) else value


def _checkpoint(state: list[dict[str, Any]]) -> bytes:
    """Return a checkpoint of some actions. delta-rs makes it, of a table with one commit."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "_delta_log"
        log.mkdir()
        (log / f"{0:020d}.json").write_bytes(_encode([one for one in state if "remove" not in one]))
        DeltaTable(folder).create_checkpoint()
        return (log / f"{0:020d}.checkpoint.parquet").read_bytes()


def _encode(lines: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
