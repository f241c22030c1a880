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

import logging
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from streamwarden.foreign_json import parse
from streamwarden.formats.delta_checkpoint import newest_checkpoint, read_checkpoint
from streamwarden.formats.published_entries import NOTHING, PublishedAt, PublishedEntries, encode
from streamwarden.formats.published_repair import repair
from streamwarden.formats.range_change import snapshot
from streamwarden.storage import Conflict
from streamwarden.store.layout import table_key
from streamwarden.store.workspace import Workspace

__all__ = ["CHECKPOINT_EVERY", "NOTHING", "PublishedAt", "PublishedLog"]

_log = logging.getLogger(__name__)

CHECKPOINT_EVERY = 100
"""Commits between two checkpoints of the log. 100, as in delta-rs: a reader opens up to that many small files. A
checkpoint costs more, the more files the table has, and so is rare beside the checks."""


class PublishedLog(PublishedEntries):
    """The published log of one table.

    Parameters
    ----------
    workspace
        Where the table is.
    table
        Its name.
    """

    def __init__(self, workspace: Workspace, table: str) -> None:
        super().__init__(workspace, table)
        self._uri, self._options = workspace.delta_rs(table, published=True)

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
            for info in list(self.files.walk(self.folder)):
                if not info.key.startswith(f"{self.folder}/{version:020d}."):
                    self.files.delete(info.key)
        data = self.first_commit(version)
        with suppress(Conflict):
            self.storage.create(self.key(version), data)

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
        for number, lines in self.between(start, version, changes=changes):
            if guard is not None:
                guard()
            try:
                self.storage.create(self.key(number), encode(lines))
                written += 1
            except Conflict:
                if self.read(number) != lines:
                    # Raises if it is not the gate's.
                    self.content(number)
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
        checkpoint = newest_checkpoint((f"{one:020d}.checkpoint.parquet" for one in self.checkpoints()), number)
        actions = read_checkpoint(self.files, self.folder, checkpoint) if checkpoint is not None else []
        for one in range(checkpoint.version + 1 if checkpoint is not None else 0, number + 1):
            actions += self.read(one)
        named = set()
        for add in (one["add"] for one in snapshot(actions) if "add" in one):
            vector = add.get("deletionVector") or {}
            named |= {add["path"], *([vector["pathOrInlineDv"]] if vector.get("storageType") == "p" else [])}
        prefix = f"{self.base}/"
        wanted = {unquote(path.removeprefix(prefix)) for path in named if path.startswith(prefix)}
        folder = f"{table_key(self.table)}/"
        return sorted(wanted - {info.key.removeprefix(folder) for info in self.files.walk(table_key(self.table))})

    def remove(self) -> None:
        """Remove the whole log, newest version first, so that a killed removal leaves a readable table."""
        self.files.delete(self.hint)
        first = self.first
        # A checkpoint shows its version without the version's commit. Only the first is needed to the end.
        for number in self.checkpoints():
            if number != first:
                self.files.delete(f"{self.folder}/{number:020d}.checkpoint.parquet")
        for number in reversed(self.versions()):
            self.files.delete(self.key(number))
        self.files.delete_tree(self.folder)

    def repair(self) -> list[int]:
        """Write damaged and missing entries again; return their versions.

        Raises
        ------
        StreamwardenError
            ``GATE_LOG_GONE``: the table's log has lost what is needed.
        """
        return repair(self)

    def _keep_short(self, version: int) -> None:
        """Write a checkpoint if it is time, and remove the entries that the table's log retention no longer keeps."""
        entry = self.storage.read(self.hint)
        try:
            last = int(parse(entry.data)["version"]) if entry is not None else -1
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
            _log.warning("%s: no checkpoint of published version %d: %s", self.table, version, error)
