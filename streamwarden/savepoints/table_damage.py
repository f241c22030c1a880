"""Damaged entries of a Delta table's log: found before a job writes on top of them, and cut off by a restore.

Delta takes an empty ``N.json`` for a commit without actions: what a batch wrote is gone from the table in silence, and
the batch counts as written. A newest commit that is missing is a table one version younger, as silently. All other
damage Delta names itself, at each try anew, and in its own words.

Source: the Delta transaction log protocol; each ``N.json`` has an action a line, and a writer may add ``N.crc``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.savepoint import Manifest
from streamwarden.model.spec import JobSpec
from streamwarden.savepoints import catalog
from streamwarden.savepoints.compatibility import readers_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = [
    "check_output",
    "check_source",
    "cut_off",
    "damaged_outputs",
    "damaged_version",
    "forget_damaged_checkpoints",
    "unfit",
]

_ENTRY = re.compile(r"(\d{20})\.(json|crc|checkpoint(?:\..*)?\.parquet)")

_READ = 3
"""How many of the newest entries are read: an empty one shows without. 3: what a disk had not yet written is new."""


def damaged_version(workspace: Workspace, table: str) -> tuple[int, str] | None:
    """Return the first version of a table whose entry of the log is damaged, with what is wrong; None if none is."""
    folder = f"tables/{table}/_delta_log"
    sizes: dict[str, dict[int, int]] = {"json": {}, "crc": {}, "parquet": {}}
    for info in workspace.files.walk(folder):
        found = _ENTRY.fullmatch(info.key.rsplit("/", 1)[1])
        if found is not None:
            sizes[found[2].rsplit(".", 1)[-1]][int(found[1])] = info.size
    commits = sizes["json"]
    # What Delta's own newest checkpoint holds is not read from the entries before it.
    begin = max((version for version, size in sizes["parquet"].items() if size), default=min(commits, default=0))
    newest = max([*commits, *(version for version in sizes["crc"] if version > begin)], default=-1)
    for version in range(begin, newest + 1):
        name = f"{folder}/{version:020d}.json"
        if version not in commits:
            # Asked once more: a listing in which a writer adds files may have the later ones only.
            if version > begin and not _is_there(workspace, name):
                return version, f"{name} is missing"
        elif not commits[version]:
            return version, f"{name} is empty"
        elif version > newest - _READ and not _is_whole(workspace.files.read(name)):
            return version, f"{name} is cut"
    return None


def forget_damaged_checkpoints(workspace: Workspace, table: str) -> None:
    """Remove Delta's own newest checkpoint of a table if it is empty or cut, with the hint that names it.

    It holds nothing that the commits don't, and delta-rs can't open a table with such a one. Delta makes another.
    """
    folder = f"tables/{table}/_delta_log"
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


def check_output(workspace: Workspace, job: str, table: str) -> None:
    """Raise if a job must not write to a table, since its log is damaged.

    Raises
    ------
    StreamwardenError
        ``TABLE_DAMAGED``, whose remedy names the newest verified savepoint of before.
    """
    found = damaged_version(workspace, table)
    if found is None:
        return
    version, what = found
    for one in catalog.savepoints(workspace, job):
        if one.verdict == "verified" and _at(one.manifest, table) < version:
            command = f"streamwarden restore {job} --savepoint {one.manifest.id}"
            remedy = f"`{command}` takes the table's log back to before this entry, and writes what it held again."
            raise StreamwardenError("TABLE_DAMAGED", what, remedy=remedy)
    raise StreamwardenError("TABLE_DAMAGED", what)


def check_source(workspace: Workspace, table: str) -> None:
    """Raise if a job must not read from a table, since its log is damaged: it would pass over rows in silence.

    Raises
    ------
    StreamwardenError
        ``TABLE_DAMAGED``.
    """
    found = damaged_version(workspace, table)
    if found is not None:
        remedy = "Bring the table back with the job or program that writes it, then deploy this job."
        raise StreamwardenError("TABLE_DAMAGED", f"{found[1]}, of the source", remedy=remedy)


def damaged_outputs(workspace: Workspace, spec: JobSpec) -> dict[str, int]:
    """Return the first damaged version of each output table that has one."""
    found = {sink.table: damaged_version(workspace, sink.table) for sink in spec.sinks}
    return {table: damage[0] for table, damage in found.items() if damage is not None}


def unfit(workspace: Workspace, job: str, manifest: Manifest, cut: dict[str, int]) -> Iterator[StreamwardenError]:
    """Return why tables whose logs are cut off can't go on from a savepoint; nothing if they all can.

    Parameters
    ----------
    cut
        The first version of each that goes.
    """
    for table, version in cut.items():
        if _at(manifest, table) >= version:
            yield StreamwardenError(
                "RESTORE_OUTPUT_GONE",
                f"{table}: version {version} of its log is damaged, and the savepoint is of {_at(manifest, table)}",
                remedy="Choose an older savepoint: `streamwarden savepoints list` shows them.",
            )
        for reader in readers_of(workspace, [table], but=job).get(table, []):
            if _has_read(workspace, reader, version):
                yield StreamwardenError(
                    "RESTORE_BREAKS_READERS",
                    f"{reader} has read version {version} of {table}",
                    remedy="Bring the entry back from a copy of the disk or bucket. Were its rows written again, that"
                    " job would have some of them twice, or never.",
                )


def cut_off(workspace: Workspace, table: str, version: int) -> None:
    """Remove a table's log from a damaged entry on, newest first: as if those commits had never been.

    Does nothing where the entry is not damaged any more: whoever repeats it may come after new commits. The files of
    data that only these commits named are left to VACUUM.
    """
    found = damaged_version(workspace, table)
    if found is None or found[0] != version:
        return
    folder = f"tables/{table}/_delta_log"
    # A hint only, and it may name a checkpoint that goes.
    workspace.files.delete(f"{folder}/_last_checkpoint")
    entries = [info.key for info in workspace.files.walk(folder) if _ENTRY.fullmatch(info.key.rsplit("/", 1)[1])]
    for key in sorted(entries, reverse=True):
        if int(key.rsplit("/", 1)[1][:20]) >= version:
            workspace.files.delete(key)


def _at(manifest: Manifest, table: str) -> int:
    """Return a table's version at a savepoint; -1 if it did not exist."""
    version = next((sink.version for sink in manifest.sinks if sink.table == table), None)
    return -1 if version is None else version


def _has_read(workspace: Workspace, job: str, version: int) -> bool:
    """Tell whether a job that streams from a Delta table has taken in a version of it, or may have."""
    reference = JobDocuments(workspace.storage, job).checkpoint.read()
    reader = CheckpointReader(workspace.storage, reference.path) if reference is not None else None
    last = reader.last_offset() if reader is not None else None
    offsets = reader.offsets(last) if reader is not None and last is not None else None
    if offsets is None or not offsets.sources or offsets.sources[0] is None:
        return False
    position = json.loads(offsets.sources[0])
    # Index -1 stands before a version's first row.
    return (int(position["reservoirVersion"]), int(position["index"])) > (version, -1)


def _is_there(workspace: Workspace, key: str) -> bool:
    try:
        workspace.files.read(key)
    except FileNotFoundError:
        return False
    return True


def _is_whole(data: bytes) -> bool:
    try:
        return all(isinstance(json.loads(line), dict) for line in data.splitlines())
    except ValueError:
        return False
