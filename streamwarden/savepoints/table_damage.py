"""Damaged entries of a Delta table's log: detected before a job writes on top of them, and cut off by a restore.

Delta treats an empty ``N.json`` as a commit without actions: a batch's rows silently disappear from the table, and the
batch counts as written. If the newest commit is missing, the table is silently one version older. Delta reports all
other damage itself, on each try, with its own error.

Source: the Delta transaction log protocol; each ``N.json`` has an action a line, and a writer may add ``N.crc``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.savepoint import Manifest
from streamwarden.model.spec import JobSpec
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.savepoints.compatibility import readers_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import SAVEPOINTS, delta_log_key, table_key
from streamwarden.store.workspace import Workspace

__all__ = [
    "check_output",
    "check_source",
    "cut_off",
    "damaged_outputs",
    "damaged_version",
    "forget_damaged_checkpoints",
    "outdate_savepoints",
    "unfit",
]

_ENTRY = re.compile(r"(\d{20})\.(json|crc|checkpoint(?:\..*)?\.parquet)")

_READ = 3
"""Newest entries that are read; an empty entry shows by its size. 3: only recent entries may be missing on the disk."""


def damaged_version(workspace: Workspace, table: str) -> tuple[int, str] | None:
    """Return the first damaged version in a table's log and its fault, or None."""
    folder = delta_log_key(table)
    sizes: dict[str, dict[int, int]] = {"json": {}, "crc": {}, "parquet": {}}
    for info in workspace.files.walk(folder):
        found = _ENTRY.fullmatch(info.key.rsplit("/", 1)[1])
        if found is not None:
            sizes[found[2].rsplit(".", 1)[-1]][int(found[1])] = info.size
    commits = sizes["json"]
    # Entries that Delta's own newest checkpoint covers are not read.
    begin = max((version for version, size in sizes["parquet"].items() if size), default=min(commits, default=0))
    newest = max([*commits, *(version for version in sizes["crc"] if version > begin)], default=-1)
    for version in range(begin, newest + 1):
        name = f"{folder}/{version:020d}.json"
        if version not in commits:
            # Check again: during writes, a listing may contain only the later files.
            if version > begin and not _is_there(workspace, name):
                return version, f"{name} is missing"
        elif not commits[version]:
            return version, f"{name} is empty"
        elif version > newest - _READ and not _is_whole(workspace.files.read(name)):
            return version, f"{name} is truncated"
    return None


def forget_damaged_checkpoints(workspace: Workspace, table: str) -> None:
    """Remove Delta's own newest checkpoint of a table, and the hint that names it, if it is empty or truncated.

    It only repeats the commits, and delta-rs can't open a table with such a checkpoint. Delta creates a new one.
    """
    folder = delta_log_key(table)
    keys = [info.key for info in workspace.files.walk(folder)]
    versions: dict[int, list[str]] = {}
    for key in keys:
        found = _ENTRY.fullmatch(key.rsplit("/", 1)[1])
        if found is not None and found[2].endswith("parquet"):
            versions.setdefault(int(found[1]), []).append(key)
    newest = versions.get(max(versions, default=-1), [])
    if all(workspace.files.read(key).endswith(b"PAR1") for key in newest):
        return
    for key in (f"{folder}/_last_checkpoint", *newest):
        workspace.files.delete(key)


def check_output(workspace: Workspace, job: str, table: str, *, known: bool = False) -> None:
    """Raise if a job must not write to a table because its log is damaged, or is gone.

    Parameters
    ----------
    known
        Whether the job has written to the table on its checkpoint: then the table must exist.

    Raises
    ------
    StreamwardenError
        ``OUTPUT_GONE``; ``TABLE_DAMAGED``, whose remedy names the newest verified savepoint before the damage.
    """
    found = damaged_version(workspace, table)
    if found is None:
        if known and DeltaLog(workspace.files, table).latest is None:
            raise StreamwardenError("OUTPUT_GONE", f"{job}: {table_key(table)} has no Delta log")
        return
    version, what = found
    for one in catalog.savepoints(workspace, job):
        if one.verdict == "verified" and _at(one.manifest, table) < version:
            command = f"streamwarden restore {job} --savepoint {one.manifest.id}"
            remedy = f"`{command}` rolls the table's log back to before this entry, and the job writes its rows again."
            raise StreamwardenError("TABLE_DAMAGED", what, remedy=remedy)
    raise StreamwardenError("TABLE_DAMAGED", what)


def check_source(workspace: Workspace, table: str) -> None:
    """Raise if a job must not read from a table because its log is damaged: it would silently skip rows.

    Raises
    ------
    StreamwardenError
        ``TABLE_DAMAGED``.
    """
    found = damaged_version(workspace, table)
    if found is not None:
        remedy = "Restore the table with the job or program that writes it, then deploy this job."
        raise StreamwardenError("TABLE_DAMAGED", f"{found[1]}, in the source table", remedy=remedy)


def damaged_outputs(workspace: Workspace, spec: JobSpec) -> dict[str, int]:
    """Return the first damaged version of each damaged output table."""
    found = {sink.table: damaged_version(workspace, sink.table) for sink in spec.delta_sinks}
    return {table: damage[0] for table, damage in found.items() if damage is not None}


def unfit(workspace: Workspace, job: str, manifest: Manifest, cut: dict[str, int]) -> Iterator[StreamwardenError]:
    """Return why tables whose logs are cut off can't continue from a savepoint; empty if all can.

    Parameters
    ----------
    cut
        The first removed version of each table.
    """
    for table, version in cut.items():
        if _at(manifest, table) >= version:
            yield StreamwardenError(
                "RESTORE_OUTPUT_GONE",
                f"{table}: version {version} of its log is damaged, the savepoint has {_at(manifest, table)}",
                remedy="Choose an older savepoint: `streamwarden savepoints list` shows them.",
            )
        for reader in readers_of(workspace, [table], but=job).get(table, []):
            if _has_read(workspace, reader, table, version):
                yield StreamwardenError(
                    "RESTORE_BREAKS_READERS",
                    f"{reader} has read version {version} of {table}, which is damaged and would be written again",
                    remedy=_remedy(workspace, manifest, reader, table, version),
                )


def _remedy(workspace: Workspace, manifest: Manifest, reader: str, table: str, version: int) -> str:
    before = next(
        (
            one
            for one in catalog.savepoints(workspace, reader)
            if one.verdict == "verified" and not _after(one, table, version)
        ),
        None,
    )
    if before is None:
        return (
            f"Restore the entry from a backup of the disk or bucket: {reader} has no verified savepoint from before"
            f" it. `streamwarden savepoints verify {reader} all` checks the unverified ones."
        )
    return (
        f"Restore the reader first, and leave it suspended: `streamwarden restore {reader} --savepoint"
        f" {before.manifest.id} --suspended`. Then `streamwarden restore {manifest.job}"
        f" --savepoint {manifest.id}`, then `streamwarden deploy {reader}`."
    )


def outdate_savepoints(workspace: Workspace, table: str, version: int, *, by: str) -> list[str]:
    """Mark the savepoints that a table's cut log leaves behind; return their jobs and ids.

    These are the savepoints of the table at a removed version, and those of readers that have read one. The versions
    will exist again with other rows: a job that started there would skip rows or have them twice, silently.
    """
    marked = []
    for job in workspace.files.folders(SAVEPOINTS):
        for one in catalog.savepoints(workspace, job):
            if not one.record.outdated and (_at(one.manifest, table) >= version or _after(one, table, version)):
                catalog.outdate(
                    workspace, one, f"{table} was cut off at version {version}, which this savepoint needs", by=by
                )
                marked.append(f"{job} {one.manifest.id}")
    return marked


def cut_off(workspace: Workspace, table: str, version: int) -> None:
    """Remove a table's log from a damaged entry on, newest first, as if those commits had never existed.

    Does nothing if the entry is no longer damaged: a repeated call may come after new commits. VACUUM removes the data
    files that only these commits named.
    """
    found = damaged_version(workspace, table)
    if found is None or found[0] != version:
        return
    folder = delta_log_key(table)
    # Only a hint, and it may name a checkpoint that is removed.
    workspace.files.delete(f"{folder}/_last_checkpoint")
    entries = [info.key for info in workspace.files.walk(folder) if _ENTRY.fullmatch(info.key.rsplit("/", 1)[1])]
    for key in sorted(entries, reverse=True):
        if int(key.rsplit("/", 1)[1][:20]) >= version:
            workspace.files.delete(key)


def _at(manifest: Manifest, table: str) -> int:
    """Return a table's version at a savepoint; -1 if the table did not exist."""
    version = next((sink.version for sink in manifest.sinks if sink.table == table), None)
    return -1 if version is None else version


def _has_read(workspace: Workspace, job: str, table: str, version: int) -> bool:
    """Return whether a job that streams from a Delta table has read a version of it, or may have."""
    reference = JobDocuments(workspace.storage, job).checkpoint.read()
    reader = CheckpointReader(workspace.storage, reference.path) if reference is not None else None
    last = reader.last_offset() if reader is not None else None
    offsets = reader.offsets(last) if reader is not None and last is not None else None
    desired = JobDocuments(workspace.storage, job).desired.read()
    if offsets is None or reference is None or desired is None:
        return False
    names = reference.sources or list(desired.spec.inputs)
    return _is_any_past(desired.spec, dict(zip(names, offsets.sources, strict=False)), table, version)


def _after(one: Savepoint, table: str, version: int) -> bool:
    """Return whether a savepoint's job had read a version of a table."""
    return _is_any_past(one.manifest.spec, one.manifest.positions, table, version)


def _is_any_past(spec: JobSpec, positions: Mapping[str, str | None], table: str, version: int) -> bool:
    mine = [positions.get(name) for name, source in spec.delta_sources.items() if source.table == table]
    return any(offset is not None and _is_past(offset, version) for offset in mine)


def _is_past(offset: str, version: int) -> bool:
    position = parse(offset)
    # Index -1 is the position before a version's first row.
    return (int(position["reservoirVersion"]), int(position["index"])) > (version, -1)


def _is_there(workspace: Workspace, key: str) -> bool:
    try:
        workspace.files.read(key)
    except FileNotFoundError:
        return False
    return True


def _is_whole(data: bytes) -> bool:
    try:
        return all(isinstance(parse(line), dict) for line in data.splitlines())
    except ValueError:
        return False
