"""What a range of a table's commits changed, as the fewest commits that readers and streams take for the same.

A batch reader wants the range whole: every version that it can read has all of its rows, or none. A stream with
``skipChangeCommits`` passes over each commit that removes a file with ``dataChange``. It still has to get each appended
row once. So there are up to three commits, in this order:

1. *rows*: the appended files with ``dataChange``. In the same commit, the range's changes of older rows, without
   ``dataChange``: a stream reads the appended files and nothing else.
2. *changes*: the same changes again, with ``dataChange``. The table stays as it is. A stream skips the commit, or
   fails, as it would at the change itself; a change feed shows it.
3. *rearranged*: the files that OPTIMIZE wrote in the range, in place of those that it read, without ``dataChange``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["RangeChange", "snapshot"]

Action = dict[str, Any]
Name = tuple[str, str | None]

_STATE = ("protocol", "metaData", "domainMetadata")


def snapshot(actions: Iterable[Action]) -> list[Action]:
    """Return the actions that make up a table, of all actions from its first or from a checkpoint."""
    files: dict[Name, Action] = {}
    state: dict[str, Action] = {}
    for action in actions:
        if "remove" in action:
            files.pop(_name(action["remove"]), None)
        elif "add" in action:
            files[_name(action["add"])] = {**action["add"], "dataChange": True}
        else:
            _keep_state(state, action)
    kept = [one for one in _state(state) if not one.get("domainMetadata", {}).get("removed")]
    return [*kept, *({"add": one} for one in files.values())]


@dataclass
class _Added:
    action: Action
    appended: bool
    """Whether all of its rows were appended by the range; if not, it may hold older rows, too."""


@dataclass
class _Rearranged:
    """Files that hold the rows of others, of which some are older than the range."""

    read: dict[Name, Action]
    written: dict[Name, Action]


class RangeChange:
    """The change of one range. Its commits are given to :meth:`commit`, in order.

    It knows the table in two ways: `_added` and `_removed` as if files had only been changed, and `_rearranged`, which
    leads from there to the table as it is.
    """

    def __init__(self) -> None:
        self._added: dict[Name, _Added] = {}
        self._removed: dict[Name, Action] = {}
        self._rearranged: list[_Rearranged] = []
        self._state: dict[str, Action] = {}
        self._appended: set[Name] = set()
        self.has_mixed = False
        """Whether a commit wrote rows of appended and of older files into the same new files: streams skip them all."""

    def commit(self, actions: Sequence[Action]) -> None:
        """Take the next commit."""
        added = {_name(one["add"]): one["add"] for one in actions if "add" in one}
        removed = {_name(one["remove"]): one["remove"] for one in actions if "remove" in one}
        for action in actions:
            _keep_state(self._state, action)
        moved = {name: one for name, one in added.items() if not one.get("dataChange", True)}
        if any(one.get("dataChange", True) for one in removed.values()):
            self._change(removed, added)
            return
        if removed or moved:
            self._move(removed, moved)
        self._change({}, {name: one for name, one in added.items() if name not in moved})

    def commits(self, room: int) -> list[list[Action]]:
        """Return the actions of each commit that shows the change: at least one, at most `room`.

        A range of n commits needs no more than n. With less room there is one commit, that a stream skips if it changes
        anything.
        """
        rows = {name: one.action for name, one in self._added.items() if one.appended}
        changed = {name: one.action for name, one in self._added.items() if not one.appended}
        found = []
        if rows:
            found.append([*_files(self._removed, changed, change=False), *_files({}, rows, change=True)])
        if changed or self._removed:
            found.append(_files(self._removed, changed, change=True))
        if self._rearranged:
            found.append([one for group in self._rearranged for one in _files(group.read, group.written, change=False)])
        if len(found) > room:
            read = {name: one for group in self._rearranged for name, one in group.read.items()}
            written = {name: one for group in self._rearranged for name, one in group.written.items()}
            there = {name: one for name, one in (rows | changed).items() if name not in read} | written
            gone = self._removed | {name: one for name, one in read.items() if name not in self._added}
            found = [_files(gone, there, change=True)]
        first, *others = found or [[]]
        return [[*_state(self._state), *first], *others]

    def _change(self, removed: dict[Name, Action], added: dict[Name, Action]) -> None:
        is_append = True
        from_appended: set[str] = set()
        for name, action in removed.items():
            self._settle(name)
            was = self._added.pop(name, None)
            if was is None or name in self._removed:
                self._removed[name] = action
            if was is not None and was.appended:
                from_appended.add(name[0])
            else:
                is_append = False
        # A file that is named again with a deletion vector got no rows of others.
        rewritten = from_appended - {path for path, _ in added}
        for name, action in added.items():
            if name not in self._added and self._removed.pop(name, None) is not None:
                # RESTORE put it back.
                continue
            appended = is_append or name in self._appended or name[0] in from_appended
            self.has_mixed = self.has_mixed or (bool(rewritten) and not appended)
            self._added[name] = _Added(action, appended)
            if appended:
                self._appended.add(name)

    def _move(self, removed: dict[Name, Action], added: dict[Name, Action]) -> None:
        if removed and all(name in self._added and self._added[name].appended for name in removed):
            for name in removed:
                del self._added[name]
            self._added |= {name: _Added(action, appended=True) for name, action in added.items()}
            return
        made = _Rearranged({}, {})
        for name, action in removed.items():
            earlier = self._writer(name)
            if earlier is not None:
                self._rearranged.remove(earlier)
                made.read |= earlier.read
                made.written |= earlier.written
            # Else the rows are read in the files that an earlier commit of the range has rearranged.
            if name not in made.written or name in made.read:
                made.read[name] = action
        made.written = {name: one for name, one in made.written.items() if name not in removed}
        for name, action in added.items():
            writer = self._writer(name)
            if name in self._added:
                self._added[name].action = action
            elif writer is not None:
                writer.written[name] = action
            else:
                made.written[name] = action
                if not removed:
                    # A file that is named again, with other statistics.
                    made.read[name] = {"path": action["path"], "deletionVector": action.get("deletionVector")}
        if made.read or made.written:
            self._rearranged.append(made)

    def _writer(self, name: Name) -> _Rearranged | None:
        return next((one for one in self._rearranged if name in one.written), None)

    def _settle(self, name: Name) -> None:
        """Take a file that OPTIMIZE wrote for a changed one: a part of its rows is now changed."""
        group = self._writer(name)
        if group is None:
            return
        self._rearranged.remove(group)
        for read, action in group.read.items():
            if self._added.pop(read, None) is None or read in self._removed:
                self._removed[read] = action
        self._added |= {written: _Added(one, appended=False) for written, one in group.written.items()}


def _files(removed: dict[Name, Action], added: dict[Name, Action], *, change: bool) -> list[Action]:
    found: list[Action] = [
        {"remove": {**one, "dataChange": change}} for name, one in removed.items() if name not in added
    ]
    return found + [{"add": {**one, "dataChange": change}} for one in added.values()]


def _keep_state(state: dict[str, Action], action: Action) -> None:
    for kind in _STATE:
        if kind in action:
            state[f"{kind}/{action[kind].get('domain', '')}"] = action


def _state(state: dict[str, Action]) -> list[Action]:
    """Return protocol and columns first: what follows is read by them."""
    return sorted(state.values(), key=lambda action: _STATE.index(next(iter(action))))


def _name(action: Action) -> Name:
    """Return what identifies a file in a log: its path and its deletion vector."""
    vector = action.get("deletionVector")
    if vector is None:
        return action["path"], None
    return action["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"
