"""Compare a table's columns with the job's: missing columns, foreign columns, and reasons against writing.

A table's property, :data:`RECORD`, names the columns that the job wrote last. For a column that the table lacks, the
property distinguishes a new column of the module from a dropped one. For a column that the module lacks, it
distinguishes a removed column from a foreign one. A table's version includes the property, so a restore restores it.

Source of the columns' format: Spark's JSON of a schema, which Delta's log also uses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import SinkSpec

__all__ = ["IS_FINAL", "RECORD", "Column", "Comparison", "Misfit", "columns_of", "compare", "record_of", "refuse"]

IS_FINAL = "is_final"
"""Column that marks a row which can't change any more; the sink maintains it, see ``final_when_passed``."""

RECORD = "streamwarden.columns"
"""The table's property: the names of the job's columns, as a JSON list."""

_SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name
        Its name.
    type
        Its SQL type, without nullability.
    nullable
        Whether it accepts nulls.
    """

    name: str
    type: str
    nullable: bool = True

    def __str__(self) -> str:
        return f"{self.name} {self.type}"


@dataclass(frozen=True)
class Misfit:
    """A reason why a job can't write a table.

    Parameters
    ----------
    column
        The column's name.
    before, after
        Its type in the table and in the job; None if it does not exist there.
    why
        The fault, as half a sentence.
    remedy
        The remedy.
    """

    column: str
    before: str | None
    after: str | None
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"column {self.column}: {self.why}"


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a table with a job.

    Parameters
    ----------
    added
        Columns of the job that the table lacks, and that will be added.
    foreign
        Columns of the table that are not the job's, and that it can ignore.
    misfits
        Reasons why the job can't write it.
    """

    added: tuple[Column, ...] = ()
    foreign: tuple[Column, ...] = ()
    misfits: tuple[Misfit, ...] = ()


def columns_of(fields: Iterable[Mapping[str, Any]], sink: SinkSpec | None = None) -> tuple[Column, ...]:
    """Return columns from the fields of a schema in JSON.

    Parameters
    ----------
    fields
        Each with name, type and nullable.
    sink
        Set if a module declares the fields: applies the sink's changes; the sink adds ``is_final`` itself.
    """
    found = [Column(field["name"], _type(field["type"]), field["nullable"]) for field in fields]
    if sink is None:
        return tuple(found)
    final = [Column(IS_FINAL, "boolean")] if sink.final_when_passed else []
    return (*(one for one in found if one.name != IS_FINAL), *final)


def record_of(properties: Mapping[str, str]) -> frozenset[str] | None:
    """Return the names of the job's columns in a table's properties; None if they have no record."""
    text = properties.get(RECORD)
    return None if text is None else frozenset(json.loads(text))


def compare(
    job: Iterable[Column], table: Iterable[Column], record: frozenset[str] | None, *, place: str, released: bool = False
) -> Comparison:
    """Compare the columns of a job with those of its table.

    Parameters
    ----------
    job, table
        The columns.
    record
        See :func:`record_of`.
    place
        The table's SQL name, for remedies.
    released
        Whether recorded columns that the job lacks are nobody's: another version of the job added them, and the
        job was rolled back from it.
    """
    wanted = {column.name: column for column in job}
    there = {column.name: column for column in table}
    by_case = {name.lower(): name for name in there}
    added, misfits = [], []
    for name, column in wanted.items():
        found, alike = there.get(name), by_case.get(name.lower())
        if found is not None:
            if found.type != column.type:
                misfits.append(_other_type(column, found))
        elif alike is not None:
            misfits.append(_other_case(column, there[alike]))
        elif record is not None and name not in record:
            added.append(column)
        else:
            misfits.append(_missing(column, place, known=record is not None))
    cases = {name.lower() for name in wanted}
    foreign = []
    for column in there.values():
        if column.name.lower() in cases:
            continue
        if record is not None and column.name in record and not released:
            misfits.append(_removed(column, place))
        elif not column.nullable:
            misfits.append(_not_null(column, place))
        else:
            foreign.append(column)
    return Comparison(tuple(added), tuple(foreign), tuple(misfits))


def refuse(table: str, misfits: Iterable[Misfit]) -> None:
    """Raise if there is a misfit.

    Raises
    ------
    StreamwardenError
        ``SINK_SCHEMA_MISMATCH``, with every misfit and each remedy.
    """
    found = list(misfits)
    if found:
        what = f"table {table}: {'; '.join(map(str, found))}"
        raise StreamwardenError(
            "SINK_SCHEMA_MISMATCH", what, remedy=" ".join(dict.fromkeys(one.remedy for one in found))
        )


def _other_type(column: Column, found: Column) -> Misfit:
    why = f"the job writes {column.type}, the table has {found.type}"
    remedy = (
        f"Write {column.name} as {found.type}, or under another name; or give the job another table (`table` of its"
        " sink)."
    )
    return Misfit(column.name, found.type, column.type, why, remedy)


def _other_case(column: Column, found: Column) -> Misfit:
    why = f"the table has it as {found.name}, and Delta ignores case"
    remedy = f"Name it {found.name} in the module's OUTPUTS and rows."
    return Misfit(column.name, str(found), column.type, why, remedy)


def _missing(column: Column, place: str, *, known: bool) -> Misfit:
    add = f"ALTER TABLE {place} ADD COLUMNS (`{column.name}` {column.type})"
    if known:
        why = f"the job has written it ({column.type}), but the table no longer has it: dropped or renamed"
        remedy = (
            f"Rename it back (ALTER TABLE {place} RENAME COLUMN … TO `{column.name}`), or bring back an earlier version"
            f" of the table (RESTORE TABLE {place} TO VERSION AS OF …). If its values are not needed: {add}."
        )
    else:
        why = f"the table lacks it ({column.type}), and no job of this version has written the table yet"
        remedy = f"If the table is the job's: {add}. Else give the job another table (`table` of its sink)."
    return Misfit(column.name, None, column.type, why, remedy)


def _removed(column: Column, place: str) -> Misfit:
    why = f"the job has written it ({column.type}), but its module no longer has it"
    keep = (
        "Keep final_when_passed in the sink."
        if column.name == IS_FINAL
        else f"Keep {column.name} in the module's OUTPUTS, and write null."
    )
    remedy = (
        f"{keep} If the job should leave it unchanged from now on:"
        f" ALTER TABLE {place} UNSET TBLPROPERTIES ('{RECORD}'); it then counts as a column that others added."
    )
    return Misfit(column.name, column.type, None, why, remedy)


def _not_null(column: Column, place: str) -> Misfit:
    why = f"it is not the job's ({column.type}) and accepts no nulls, so the job can't write a row"
    remedy = f"ALTER TABLE {place} ALTER COLUMN `{column.name}` DROP NOT NULL."
    return Misfit(column.name, column.type, None, why, remedy)


def _type(kind: Any) -> str:
    if isinstance(kind, str):
        return _SQL_NAMES.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{_type(kind['elementType'])}>"
        case "map":
            return f"map<{_type(kind['keyType'])},{_type(kind['valueType'])}>"
        case "struct":
            fields = (f"{field['name']}:{_type(field['type'])}" for field in kind["fields"])
            return f"struct<{','.join(fields)}>"
        case _:
            return json.dumps(kind, sort_keys=True)
