"""Rows in JSON as rows of the Delta table that a job reads: parsed by its columns, and recognised by their content."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import json as arrow_json

from streamwarden.errors import StreamwardenError
from streamwarden.model import exact_json
from streamwarden.model.source_spec import DeltaSource
from streamwarden.model.spec import JobSpec
from streamwarden.operations.quarantine import Content
from streamwarden.store.workspace import Workspace

__all__ = ["SourceRows", "content_of", "named_source"]

_BLOCK = 2**20
_KEPT: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_timestamp,
)


def named_source(spec: JobSpec, told: str | None) -> str | None:
    """Return which source a row came from; None if it is unknown."""
    return next(iter(spec.inputs)) if spec.sources is None else told if told in spec.inputs else None


def content_of(workspace: Workspace, spec: JobSpec) -> Content | None:
    """Return what recognises rows of a job that reads tables by their content; None for a job that reads files only."""
    known = {
        name: SourceRows(workspace, source.table)
        for name, source in spec.inputs.items()
        if isinstance(source, DeltaSource) and _exists(workspace, source.table)
    }
    if not known:
        return None

    def content(rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
        found: list[str | None] = [None] * len(rows)
        for name, source in known.items():
            mine = [number for number, row in enumerate(rows) if named_source(spec, row.get("source")) == name]
            hashes = source.hashes([rows[number].get("raw") for number in mine])
            for number, hashed in zip(mine, hashes, strict=True):
                found[number] = hashed
        return found

    return content


class SourceRows:
    """Reads rows in JSON by the columns that a table has now.

    Raises
    ------
    StreamwardenError
        ``TABLE_NOT_FOUND``.
    """

    def __init__(self, workspace: Workspace, table: str) -> None:
        address, options = workspace.delta_rs(table)
        try:
            self._schema = pa.schema(DeltaTable(address, storage_options=options).schema())
        except (DeltaError, OSError) as error:
            raise StreamwardenError("TABLE_NOT_FOUND", f"{table}: {error}") from error
        # Arrow reads a date only as text.
        self._read_as = pa.schema(
            [field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in self._schema]
        )

    @property
    def names(self) -> list[str]:
        """The table's columns."""
        return list(self._schema.names)

    @property
    def required(self) -> list[str]:
        """The columns that are never null."""
        return [field.name for field in self._schema if not field.nullable]

    @property
    def unreadable(self) -> str | None:
        """The first column whose values JSON does not keep, with its type; None if there is none."""
        field = next((one for one in self._schema if not (pa.types.is_date(one.type) or _is_kept(one.type))), None)
        return None if field is None else f"{field.name} ({field.type})"

    def check(self, row: Mapping[str, Any], words: str) -> None:
        """Raise ``QUARANTINE_ROWS_INVALID`` for a row that the table can't take."""
        foreign = sorted(set(row) - set(self.names))
        if foreign:
            raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{words}: the source has no column {foreign[0]}")
        lacking = [name for name in self.required if row.get(name) is None]
        if lacking:
            raise StreamwardenError(
                "QUARANTINE_ROWS_INVALID", f"{words}: column {lacking[0]} of the source is never null"
            )
        try:
            self.parsed(exact_json.dumps(row))
        except (pa.ArrowException, ValueError) as error:
            raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{words}: {error}") from error

    def parsed(self, lines: str) -> pa.Table:
        """Parse JSON lines."""
        data = lines.encode()
        longest = max(map(len, data.splitlines()), default=0)
        found = arrow_json.read_json(
            io.BytesIO(data),
            # A row must fit into a block.
            read_options=arrow_json.ReadOptions(block_size=max(_BLOCK, 2 * longest)),
            parse_options=arrow_json.ParseOptions(explicit_schema=self._read_as, unexpected_field_behavior="ignore"),
        )
        return found.select(self._schema.names).cast(self._schema)

    def hashes(self, texts: Sequence[str | None]) -> list[str | None]:
        """Return a hash of each row; None for one that can't be read.

        Nulls do not count: a column that the table gets later changes no hash.
        """
        found: list[str | None] = [None] * len(texts)
        # A text of several lines would be several rows, and hide that another has none.
        single = [number for number, text in enumerate(texts) if text and text.strip() and len(text.splitlines()) == 1]
        if self.unreadable is None:
            for number, row in zip(single, self._rows([texts[one] or "" for one in single]), strict=True):
                found[number] = None if row is None else _hash(row)
        return found

    def _rows(self, texts: Sequence[str]) -> list[dict[str, Any] | None]:
        if not texts:
            return []
        try:
            rows: list[dict[str, Any] | None] = self.parsed("\n".join(texts)).to_pylist()
        except (pa.ArrowException, ValueError):
            rows = []
        if len(rows) == len(texts):
            return rows
        if len(texts) == 1:
            return [None]
        half = len(texts) // 2
        return self._rows(texts[:half]) + self._rows(texts[half:])


def _is_kept(kind: pa.DataType) -> bool:
    """Return whether JSON keeps a type's values, and Arrow reads them."""
    if pa.types.is_struct(kind):
        return all(_is_kept(kind.field(number).type) for number in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_kept(kind.value_type)
    return any(is_kind(kind) for is_kind in _KEPT)


def _hash(row: Mapping[str, Any]) -> str:
    there = {name: value for name, value in row.items() if value is not None}
    plain = json.dumps(there, default=lambda value: value.isoformat() if isinstance(value, datetime) else str(value))
    return hashlib.sha256(plain.encode()).hexdigest()[:32]


def _exists(workspace: Workspace, table: str) -> bool:
    address, options = workspace.delta_rs(table)
    return bool(DeltaTable.is_deltatable(address, storage_options=options))
