"""What the examinations of one job share: its documents as they can be read, and the savepoint to restore."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import FORMAT
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, Desired
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.savepoints.compatibility import readers_of
from streamwarden.savepoints.older_copies import lost_positions, lost_versions
from streamwarden.savepoints.verify import check_files
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.store.workspace import Workspace

__all__ = ["Case", "Examined"]

_AT_ONCE = 4


@dataclass(frozen=True)
class Examined:
    """A savepoint, and why nobody should start from it.

    Parameters
    ----------
    savepoint
        The savepoint.
    damage
        What is wrong with its files.
    gone
        What it refers to and is not there any more: versions of tables.
    unsupported
        Whether a later version of Streamwarden wrote it.
    """

    savepoint: Savepoint
    damage: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    unsupported: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether a job may start from it."""
        return not (self.damage or self.gone or self.unsupported)


@dataclass
class Case:
    """One job of a place.

    Parameters
    ----------
    workspace, job
        The job.
    deep
        Whether to read the savepoints' files, and to list the tables'.
    """

    workspace: Workspace
    job: str
    deep: bool = False

    @cached_property
    def documents(self) -> JobDocuments:
        """The control documents."""
        return JobDocuments(self.workspace.storage, self.job)

    @cached_property
    def desired(self) -> Desired | None:
        """The desired state; None if there is none, or if it is damaged, which is a finding of its own."""
        try:
            return self.documents.desired.read()
        except StreamwardenError:
            return None

    @cached_property
    def reference(self) -> CheckpointRef | None:
        """The checkpoint in force; None as for :attr:`desired`."""
        try:
            return self.documents.checkpoint.read()
        except StreamwardenError:
            return None

    @cached_property
    def spec(self) -> JobSpec | None:
        """The deployed spec, else the YAML's; None without either."""
        if self.desired is not None:
            return self.desired.spec
        try:
            return self.workspace.job(self.job)
        except StreamwardenError:
            return None

    @cached_property
    def savepoints(self) -> list[Examined]:
        """The savepoints with a readable manifest, newest first."""
        found = catalog.savepoints(self.workspace, self.job)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="savepoints") as pool:
            return list(pool.map(self._examined, found))

    def restore(self, *, rewind: bool = False) -> tuple[str, ...]:
        """Return the command that restores the newest whole savepoint; empty if no restore is possible.

        Parameters
        ----------
        rewind
            Whether all output tables are put back: they have rows of a source that no longer has them.
        """
        best = next((one.savepoint for one in self.savepoints if one.is_whole), None)
        if best is None:
            return ()
        command = f"streamwarden restore {self.job} --savepoint {best.id}"
        then = {one.table for one in best.manifest.sinks}
        sinks = [sink for sink in (self.spec or best.manifest.spec).delta_sinks if sink.table in then]
        if rewind:
            return () if self._are_read([sink.table for sink in sinks]) else (f"{command} --outputs rewind",)
        rewound = [sink for sink in sinks if sink.rewinds]
        if self._are_read([sink.table for sink in rewound]):
            # A restore refuses to put back a table that another job streams from.
            return (f"{command} --outputs leave",) if all(sink.keys for sink in rewound) else ()
        return (command,)

    def _are_read(self, tables: list[str]) -> bool:
        try:
            return bool(readers_of(self.workspace, tables, but=self.job))
        except StreamwardenError:
            # Another job's document is damaged: a finding of that job. The restore looks again.
            return False

    def _examined(self, one: Savepoint) -> Examined:
        recorded = one.record.verification.problems if one.verdict == "damaged" and one.record.verification else []
        try:
            manifest = one.manifest
        except StreamwardenError as error:
            return Examined(one, (error.what,))
        if manifest.format > FORMAT:
            return Examined(one, unsupported=True)
        folder = savepoint_checkpoint_key(self.job, one.id)
        damage = recorded or check_files(self.workspace, manifest, folder, content=self.deep)
        gone = [
            *lost_versions(self.workspace, manifest),
            *lost_positions(self.workspace, manifest.spec, manifest.positions),
        ]
        return Examined(one, tuple(damage), tuple(gone))
