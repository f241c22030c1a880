"""The exact set of checkpoint files that a batch needs.

Sources: Spark 4.2's ``OffsetSeqLog``, ``CommitLog``, ``CompactibleFileStreamLog``, ``RocksDBFileManager``,
``HDFSBackedStateStoreProvider`` and ``OperatorStateMetadataV2``. Batch N leaves every state store at version N+1. A
store's version consists of the newest snapshot up to it and the later changes. RocksDB: ``V.zip``, which names its SST
files, and ``V.changelog``. The memory backend: ``V.snapshot`` and ``V.delta``.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.checkpoint import MOST_PARTITIONS, BatchOffsets, CheckpointReader
from streamwarden.formats.damage import checkpoint_damaged
from streamwarden.storage import FileStore, Storage

__all__ = [
    "Closure",
    "OperatorFiles",
    "StateFileMissing",
    "check_described",
    "closure",
    "newest_closure",
    "relocated",
    "repartitioned",
    "source_needed",
]

_VERSIONED = re.compile(r"(\d+)(_[0-9a-f-]{36})?\.(zip|changelog|snapshot|delta)")
_SCHEMA = re.compile(r"(^|/)(_stateSchema/|_metadata/schema$)")
_SNAPSHOTS = {"zip": "changelog", "snapshot": "delta"}
_UNREADABLE = (ValueError, KeyError, TypeError, IndexError, EOFError)
"""Exceptions from reading a file that is empty, truncated, or in a foreign format."""

_TRIES = 5
_MOST_METADATA = 64 << 20
"""Bytes of a snapshot's list of files, which is some kilobytes. A damaged archive can unpack to any size."""


class StateFileMissing(Exception):
    """A file that the batch needs is missing or damaged: Spark's maintenance deleted it meanwhile, or it was lost."""


@dataclass
class OperatorFiles:
    """The files of one stateful operator.

    Parameters
    ----------
    id, name, partitions, stores
        From the operator's metadata.
    files
        Paths of its files, relative to the checkpoint.
    bytes
        Their total size.
    schema_sha256
        SHA-256 of its state schema files.
    single
        Whether its state is in one partition, independent of their number: an aggregation without keys, or a
        limit.
    """

    id: int
    name: str
    partitions: int
    stores: list[str]
    files: list[str] = field(default_factory=list)
    bytes: int = 0
    schema_sha256: str = ""
    single: bool = False


@dataclass
class Closure:
    """The files that a batch needs.

    Parameters
    ----------
    files
        Size by path; paths are relative to the checkpoint.
    metadata
        Files among them that name other files by absolute paths, and so must be rewritten in a copy.
    operators
        Stateful operators by id.
    """

    files: dict[str, int]
    metadata: list[str]
    operators: list[OperatorFiles]


def closure(store: FileStore, checkpoint: str, offsets: BatchOffsets) -> Closure:
    """Return the files that make up the state after a committed batch.

    Parameters
    ----------
    store
        The store of the checkpoint.
    checkpoint
        The checkpoint's key.
    offsets
        The batch.

    Raises
    ------
    StateFileMissing
        If a file is missing, empty or truncated.
    StreamwardenError
        ``SAVEPOINT_UNSUPPORTED`` for a checkpoint in an unknown format.
    """
    batch = offsets.batch
    found = {info.key[len(checkpoint) + 1 :]: info.size for info in store.walk(checkpoint)}
    # Hadoop's checksum files lie next to the real files. Hadoop reads a copy without them unchecked; we check SHA-256.
    found = {path: size for path, size in found.items() if not path.rsplit("/", 1)[-1].startswith(".")}
    for needed in ("metadata", f"offsets/{batch}", f"commits/{batch}"):
        if needed not in found:
            raise StateFileMissing(needed)
    chosen = {"metadata"}
    chosen.update(path for path in found if _log_entry(path) is not None and (_log_entry(path) or 0) <= batch)
    chosen.update(path for path in found if path.startswith("sources/") and source_needed(path, offsets))
    operators = []
    metadata = []
    numbers = {path.split("/")[1] for path in found if path.startswith("state/")}
    # Other folders are not Spark's.
    for operator in sorted(filter(str.isdecimal, numbers), key=int):
        try:
            files, described = _operator(store, checkpoint, found, int(operator), offsets)
        except _UNREADABLE as error:
            raise StateFileMissing(f"state/{operator}: its metadata or schema is empty or cut: {error}") from error
        operators.append(files)
        chosen.update(files.files)
        if described is not None:
            metadata.append(described)
    for path in sorted(chosen):
        # Older entries are kept only for completeness; RocksDB's own log may be empty.
        if not found[path] and "/logs/" not in path and (_log_entry(path) or batch) >= batch - 1:
            raise StateFileMissing(f"{path} (it is empty)")
    return Closure({path: found[path] for path in sorted(chosen)}, metadata, operators)


def check_described(documents: Storage, checkpoint: str) -> None:
    """Check that a checkpoint's state metadata is readable: Spark's error for an empty or truncated schema is useless.

    Raises
    ------
    StreamwardenError
        ``CHECKPOINT_DAMAGED``, naming the file.
    """
    for key in documents.list(f"{checkpoint}/state"):
        path = key[len(checkpoint) + 1 :]
        described = re.fullmatch(r"state/\d+/_metadata/(metadata|v2/\d+)", path)
        if described is None and not _SCHEMA.search(path):
            continue
        entry = documents.read(key)
        if entry is None:
            continue
        try:
            if described is not None:
                parse(entry.data.decode().partition("\n")[2])
            elif not entry.data:
                raise EOFError
            else:
                _has_keys(entry.data)
        except _UNREADABLE as error:
            raise checkpoint_damaged(documents, checkpoint, f"{path}: it is empty or cut") from error


def newest_closure(store: FileStore, documents: Storage, checkpoint: str) -> Closure | None:
    """Return the files that make up the state after the newest committed batch; None if no batch was committed.

    Raises
    ------
    StreamwardenError
        ``CHECKPOINT_DAMAGED`` if a file is missing; otherwise as :func:`closure`.
    """
    reader = CheckpointReader(documents, checkpoint)
    for left in reversed(range(_TRIES)):
        batch = reader.last_commit()
        offsets = reader.offsets(batch) if batch is not None else None
        if offsets is None:
            return None
        try:
            return closure(store, checkpoint, offsets)
        except StateFileMissing as error:
            # Spark's maintenance removed it meanwhile: there is a newer batch by now.
            if not left:
                raise checkpoint_damaged(documents, checkpoint, str(error)) from error
    raise AssertionError


def relocated(metadata: bytes, operator: int, checkpoint_uri: str) -> bytes:
    """Return an operator's metadata with its schema file paths moved to another checkpoint.

    Spark names the schema files by absolute paths: an unchanged copy reads the schema of the original, and fails when
    the original is removed.

    Parameters
    ----------
    metadata
        The file: a version line, then JSON.
    operator
        The operator's id.
    checkpoint_uri
        URI of the target checkpoint, with its scheme.
    """
    version, _, text = metadata.decode().partition("\n")
    content = parse(text)
    marker = f"/state/{operator}/_stateSchema/"
    for store in content["stateStoreInfo"]:
        paths = store.get("stateSchemaFilePaths", [])
        store["stateSchemaFilePaths"] = [checkpoint_uri + marker + path.rsplit(marker, 1)[-1] for path in paths]
    return f"{version}\n{json.dumps(content, separators=(',', ':'))}".encode()


def _log_entry(path: str) -> int | None:
    folder, _, name = path.partition("/")
    return int(name) if folder in ("offsets", "commits") and name.isdecimal() else None


def source_needed(path: str, offsets: BatchOffsets) -> bool:
    """Return whether a batch needs a file of its sources' logs, given by its path relative to the checkpoint."""
    _, number, name = [*path.split("/", 2), ""][:3]
    if not number.isdecimal():
        return True
    index = int(number)
    offset = offsets.sources[index] if index < len(offsets.sources) else None
    try:
        position = parse(offset) if offset else {}
    except ValueError:
        position = {}
    entry = re.fullmatch(r"(\d+)(\.compact)?", name)
    if entry is None or not isinstance(position, dict) or "logOffset" not in position:
        # Not a file source's log but a source's own fixed file, such as Kafka's initial offsets.
        return True
    return int(entry[1]) <= int(position["logOffset"])


def repartitioned(metadata: bytes, partitions: int) -> bytes:
    """Return an operator's metadata with another number of partitions.

    Spark 4.2.0 repartitions the state of operators with metadata of version 1 but keeps the old number in it. Readers
    that use the metadata, including a second repartition, then see only the old number of partitions and silently lose
    the others.
    """
    version, _, text = metadata.decode().partition("\n")
    content = parse(text)
    for store in content["stateStoreInfo"]:
        store["numPartitions"] = partitions
    return f"{version}\n{json.dumps(content, separators=(',', ':'))}".encode()


def _operator(
    store: FileStore, checkpoint: str, found: dict[str, int], operator: int, offsets: BatchOffsets
) -> tuple[OperatorFiles, str | None]:
    batch = offsets.batch
    base = f"state/{operator}"
    below = {path[len(base) + 1 :]: size for path, size in found.items() if path.startswith(f"{base}/")}
    described, info = _metadata(store, checkpoint, base, below, batch)
    stores = info["stateStoreInfo"]
    # The batch's own number overrides the metadata: after a repartition the metadata may hold the old number.
    declared = max(int(one["numPartitions"]) for one in stores)
    if declared > MOST_PARTITIONS:
        raise ValueError(f"numPartitions is {declared}")
    partitions = int(offsets.conf.get("spark.sql.shuffle.partitions", declared))
    others = {str(partition) for partition in range(1, max(partitions, declared))}
    schemas = sorted(path for path in below if _SCHEMA.search(path))
    written = [_read(store, f"{checkpoint}/{base}/{path}") for path in schemas]
    # An aggregation without keys and a limit have one partition, whatever their metadata contains. An operator that was
    # rescaled to one partition has keys, and its state can be redistributed by them.
    keyed = partitions == 1 and bool(written) and _has_keys(written[0])
    single = not keyed and not any(path.partition("/")[0] in others for path in below)
    result = OperatorFiles(
        operator,
        info["operatorInfo"]["operatorName"],
        partitions,
        [one["storeName"] for one in stores],
        single=single,
    )
    chosen = {described, *schemas}
    for one in stores:
        for partition in range(1 if single else partitions):
            folder = str(partition) if one["storeName"] == "default" else f"{partition}/{one['storeName']}"
            chosen.update(_store(store, f"{checkpoint}/{base}", below, folder, batch + 1))
    result.files = sorted(f"{base}/{path}" for path in chosen)
    result.bytes = sum(found[path] for path in result.files)
    result.schema_sha256 = hashlib.sha256(b"".join(written)).hexdigest()
    names_files = any(one.get("stateSchemaFilePaths") for one in stores)
    return result, f"{base}/{described}" if names_files else None


def _has_keys(schema: bytes) -> bool:
    """Return whether a file of Spark's state schemas declares key columns.

    Parameters
    ----------
    schema
        Strings as Java's ``DataOutput.writeUTF`` writes them, the version first. In version 2 a text longer than such
        a string's maximum is preceded by its number of pieces. Version 3 is only used by operators with keys.
        Unknown versions return False.
    """
    version, rest = _utf(schema)
    if version not in ("v1", "v2"):
        return version == "v3"
    pieces = 1
    if version == "v2":
        pieces, rest = int.from_bytes(rest[:4]), rest[4:]
    text = ""
    for _ in range(pieces):
        if not rest:
            raise EOFError("a piece of the schema is missing")
        piece, rest = _utf(rest)
        text += piece
    return bool(parse(text)["fields"])


def _utf(data: bytes) -> tuple[str, bytes]:
    end = 2 + int.from_bytes(data[:2])
    return data[2:end].decode(), data[end:]


def _metadata(
    store: FileStore, checkpoint: str, base: str, below: dict[str, int], batch: int
) -> tuple[str, dict[str, Any]]:
    written = [path for path in below if re.fullmatch(r"_metadata/v2/\d+", path)]
    past = [path for path in written if int(path.rsplit("/", 1)[1]) <= batch]
    path = max(past, key=lambda p: int(p.rsplit("/", 1)[1]), default="_metadata/metadata")
    if path not in below:
        raise StateFileMissing(f"{base}/{path}")
    text = _read(store, f"{checkpoint}/{base}/{path}").decode()
    # A version line precedes the JSON.
    return path, parse(text.partition("\n")[2])


def _store(store: FileStore, base: str, below: dict[str, int], folder: str, version: int) -> Iterable[str]:
    """Return the files of one store at one version."""
    kinds: dict[str, set[int]] = {"zip": set(), "changelog": set(), "snapshot": set(), "delta": set()}
    for path in below:
        parent, _, name = path.rpartition("/")
        match = _VERSIONED.fullmatch(name) if parent == folder else None
        if match is None:
            continue
        if match[2]:
            raise StreamwardenError(
                "SAVEPOINT_UNSUPPORTED", f"{base}/{path}: state checkpoint format 2, which names versions by random ids"
            )
        kinds[match[3]].add(int(match[1]))
    snapshot = "snapshot" if kinds["snapshot"] or kinds["delta"] else "zip"
    change = _SNAPSHOTS[snapshot]
    start = max((number for number in kinds[snapshot] if number <= version), default=0)
    for number in range(start + 1, version + 1):
        if number not in kinds[change]:
            raise StateFileMissing(f"{base}/{folder}/{number}.{change}")
    chosen = [f"{folder}/{number}.{change}" for number in range(start + 1, version + 1)]
    if start:
        name = f"{folder}/{start}.{snapshot}"
        chosen.append(name)
        if snapshot == "zip":
            for path in _tables_of(store, f"{base}/{name}"):
                full = f"{folder}/{path}"
                if full not in below:
                    raise StateFileMissing(f"{base}/{full}")
                chosen.append(full)
    return chosen


def _tables_of(store: FileStore, snapshot: str) -> list[str]:
    """Return the files that a RocksDB snapshot names, relative to its store's folder."""
    try:
        with zipfile.ZipFile(io.BytesIO(_read(store, snapshot))) as content:
            if content.getinfo("metadata").file_size > _MOST_METADATA:
                raise ValueError("its metadata is too large")
            described = parse(content.read("metadata").decode().partition("\n")[2])
    except (*_UNREADABLE, zipfile.BadZipFile) as error:
        raise StateFileMissing(f"{snapshot} (it is empty or cut: {error})") from error
    tables = [f"SSTs/{one['dfsSstFileName']}" for one in described.get("sstFiles") or ()]
    return tables + [f"logs/{one['dfsLogFileName']}" for one in described.get("logFiles") or ()]


def _read(store: FileStore, key: str) -> bytes:
    try:
        return store.read(key)
    except FileNotFoundError:
        raise StateFileMissing(key) from None
