"""Prepare an output table before the first batch: create it, or add the job's new columns."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from streamwarden.formats.output_columns import RECORD, Column, Misfit, columns_of, compare, record_of, refuse

__all__ = ["copy_record", "ensure_table"]

_log = logging.getLogger(__name__)

_CONSTRAINT = "delta.constraints."

_FILE_SIZE = {"delta.targetFileSize": "16mb"}
"""For upserts by delta-rs, which rewrite whole files: at its default, 100 MB, each batch would rewrite rows of days."""
_ANY_PROPERTY = "spark.databricks.delta.allowArbitraryProperties.enabled"
"""Delta without Databricks does not know that property, and refuses it otherwise."""


def ensure_table(
    session: SparkSession,
    path: str,
    name: str,
    columns: StructType,
    *,
    partition_by: Sequence[str] = (),
    upserted: bool = False,
    released: bool = False,
    guard: Callable[[], None] = lambda: None,
) -> list[str]:
    """Create a table, or add the job's new columns to it; return notes about its columns for a person.

    Columns that others added are left alone, as long as rows without them can be written.

    Parameters
    ----------
    path, name
        The table's folder, and its name.
    columns
        The job's columns.
    partition_by
        The partition columns of a new table.
    upserted
        Whether rows of a new table will be updated.
    released
        See :func:`~streamwarden.formats.output_columns.compare`.
    guard
        Called before an existing table is changed; raises if this driver may not write.

    Raises
    ------
    StreamwardenError
        ``SINK_SCHEMA_MISMATCH``; nothing is changed then.
    """
    if not DeltaTable.isDeltaTable(session, path):
        builder = DeltaTable.createIfNotExists(session).location(path).property(RECORD, _record(columns.names))
        # All columns are nullable: constraints belong to the expectations, whose violation does not stop the job.
        for column in columns.fields:
            builder = builder.addColumn(column.name, column.dataType)
        if partition_by:
            builder = builder.partitionedBy(*partition_by)
        for name, value in _FILE_SIZE.items() if upserted else ():
            builder = builder.property(name, value)
        session.conf.set(_ANY_PROPERTY, "true")
        try:
            builder.execute()
        finally:
            session.conf.unset(_ANY_PROPERTY)
        return []
    place = _place(path)
    there = session.read.format("delta").load(path).schema
    properties = _properties(session, path)
    found = compare(
        columns_of(columns.jsonValue()["fields"]),
        columns_of(there.jsonValue()["fields"]),
        record_of(properties),
        place=place,
        released=released,
    )
    broken = _broken(session, place, properties, there, found.foreign) if found.foreign else []
    refuse(name, [*found.misfits, *broken])
    notes = []
    if found.added:
        guard()
        new = ", ".join(f"{_quoted(one.name)} {_sql(session, columns[one.name].dataType)}" for one in found.added)
        # If a successor has added a column meanwhile, Spark raises and changes nothing.
        session.sql(f"ALTER TABLE {place} ADD COLUMNS ({new})")
        notes.append(f"table {name}: columns that this start added: {_list(found.added)}")
        _log.info(notes[-1])
    if record_of(properties) != frozenset(columns.names):
        guard()
        _keep_record(session, path, columns.names)
    if found.foreign:
        # Delta fills a default or a generated column.
        what = "null in rows that it inserts, left as they are in rows that it updates"
        notes.append(f"table {name}: columns that are not the job's: {_list(found.foreign)}: {what}")
        _log.warning(notes[-1])
    return notes


def copy_record(session: SparkSession, source: str, path: str, names: Iterable[str]) -> None:
    """Record the job's columns in the copy of a table: the recorded columns of the original.

    Parameters
    ----------
    source, path
        The folders of the table and its copy.
    names
        The copy's columns.
    """
    record = record_of(_properties(session, source))
    _keep_record(session, path, [name for name in names if record is None or name in record])


def _keep_record(session: SparkSession, path: str, names: Iterable[str]) -> None:
    text = _record(names).replace("\\", "\\\\").replace("'", "\\'")
    session.sql(f"ALTER TABLE {_place(path)} SET TBLPROPERTIES ('{RECORD}' = '{text}')")


def _broken(
    session: SparkSession, place: str, properties: Mapping[str, str], there: StructType, foreign: Sequence[Column]
) -> list[Misfit]:
    """Return the CHECK constraints on foreign columns that a row of the job can't satisfy.

    A constraint that also involves the job's columns depends on the row; it is checked by the batch.
    """
    nulls = ", ".join(
        f"CAST(NULL AS {_sql(session, there[one.name].dataType)}) AS {_quoted(one.name)}" for one in foreign
    )
    found = []
    for key, expression in properties.items():
        if not key.startswith(_CONSTRAINT):
            continue
        try:
            row = session.sql(f"SELECT ({expression}) AS met FROM (SELECT {nulls})").first()
        except AnalysisException:
            continue
        # As in Delta: null counts as a violation.
        if row is not None and row.met is not True:
            constraint = key.removeprefix(_CONSTRAINT)
            why = f"the constraint {constraint} ({expression}) refuses a null there, and the column is not the job's"
            remedy = f"ALTER TABLE {place} DROP CONSTRAINT `{constraint}`."
            column = next((one for one in foreign if one.name.lower() in expression.lower()), foreign[0])
            found.append(Misfit(column.name, column.type, None, why, remedy))
    return found


def _properties(session: SparkSession, path: str) -> dict[str, str]:
    return {row.key: row.value for row in session.sql(f"SHOW TBLPROPERTIES {_place(path)}").collect()}


def _record(names: Iterable[str]) -> str:
    return json.dumps(list(names), separators=(",", ":"))


def _place(path: str) -> str:
    return f"delta.{_quoted(path)}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _sql(session: SparkSession, kind: DataType) -> str:
    """Return a type in SQL notation, with quoted names."""
    jvm = session._jvm
    assert jvm is not None
    text: str = jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json()).sql()
    return text


def _list(columns: Iterable[Column]) -> str:
    return ", ".join(map(str, columns))
