"""Read and write the checkpoints of a Delta log, in Python.

Source: the Delta transaction log protocol. Read are classic checkpoints in one or several parts, and V2 checkpoints
with their sidecars. By hand, because deltalake returns neither deletion vectors nor tags of a table's files.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.delta_log import is_action
from streamwarden.storage import FileStore

__all__ = ["Checkpoint", "checkpoint_of", "newest_checkpoint", "read_checkpoint"]

_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9a-fA-F-]{36}))?\.(parquet|json)")
# These may have empty values, which are not the same as absent ones.
_MAPS = ("partitionValues", "tags", "configuration", "options")
# The same statistics and partition values in the table's types, beside their text.
_TYPED = ("stats_parsed", "partitionValues_parsed")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint.

    Parameters
    ----------
    version
        The table's version.
    names
        Its files in ``_delta_log``.
    """

    version: int
    names: tuple[str, ...]


def newest_checkpoint(names: Iterable[str], version: int) -> Checkpoint | None:
    """Return the newest whole checkpoint up to a version, of the files in a log's folder; None if there is none."""
    found: list[Checkpoint] = []
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) > version:
            continue
        if match[3]:
            parts.setdefault((int(match[1]), int(match[3])), []).append(name)
        else:
            found.append(Checkpoint(int(match[1]), (name,)))
    # One with a missing part was interrupted.
    found += [Checkpoint(of, tuple(sorted(these))) for (of, count), these in parts.items() if len(these) == count]
    return max(found, key=lambda one: one.version, default=None)


def read_checkpoint(files: FileStore, folder: str, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return a checkpoint's actions.

    Parameters
    ----------
    files
        The storage of the table.
    folder
        Its ``_delta_log``.

    Raises
    ------
    StreamwardenError
        ``TABLE_DAMAGED``: a file of it is missing or unreadable.
    """
    actions: list[dict[str, Any]] = []
    for name in checkpoint.names:
        rows = _rows(files, f"{folder}/{name}")
        for row in rows:
            if "sidecar" in row:
                # Always in this folder, whatever the rest of the path says.
                actions += _rows(files, f"{folder}/_sidecars/{unquote(row['sidecar']['path']).rsplit('/', 1)[-1]}")
        actions += rows
    return actions


def checkpoint_of(actions: Sequence[dict[str, Any]]) -> bytes:
    """Return a classic checkpoint of a table's actions. delta-rs makes it, of a table with one commit."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "_delta_log"
        log.mkdir()
        (log / f"{0:020d}.json").write_text("".join(json.dumps(one) + "\n" for one in actions))
        DeltaTable(folder).create_checkpoint()
        return (log / f"{0:020d}.checkpoint.parquet").read_bytes()


def _rows(files: FileStore, key: str) -> list[dict[str, Any]]:
    try:
        data = files.read(key)
    except FileNotFoundError as error:
        raise StreamwardenError("TABLE_DAMAGED", f"{key}: {error}") from error
    try:
        if key.endswith(".json"):
            return [parse(line) for line in data.splitlines() if line.strip()]
        found = pq.read_table(io.BytesIO(data)).to_pylist(maps_as_pydicts="lossy")
    except (OSError, ValueError, pa.ArrowException) as error:
        # pyarrow raises OSError for a footer that it can't decode.
        raise StreamwardenError("TABLE_DAMAGED", f"{key}: {error}") from error
    if not all(is_action(row) for row in map(_sparse, found)):
        raise StreamwardenError("TABLE_DAMAGED", f"{key}: it is no checkpoint of Delta's")
    return [_action(row) for row in found]


def _action(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a checkpoint as the action that it holds."""
    action: dict[str, Any] = _sparse(row)
    for name in _TYPED:
        action.get("add", {}).pop(name, None)
    return action


def _sparse(value: Any) -> Any:
    """Return a value without the columns that are empty because the row holds something else."""
    if isinstance(value, dict):
        return {key: one if key in _MAPS else _sparse(one) for key, one in value.items() if one is not None}
    return [_sparse(one) for one in value] if isinstance(value, list) else value
