"""Suites' SQL on rows in memory: Spark's SQL, run by DuckDB.

A suite's queries are Spark's SQL, because a range that does not fit into memory is checked by Spark. sqlglot translates
them for DuckDB. Times are without a zone there, in UTC: as Spark shows them in a session whose zone is UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads

from streamwarden.quality.statements import BATCH, StatementError, condition, other, parsed

__all__ = ["BATCH", "QueryError", "condition_in_duckdb", "other", "run", "translated", "without_zones"]

_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    # Neither files nor servers, extensions or other databases; and no variable of Python's that is named like a table.
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "threads": "2",
}


class QueryError(Exception):
    """A query that DuckDB cannot run, in words."""


@cache
def translated(query: str) -> str:
    """Return a query of Spark's SQL, with ``{batch}`` and ``{tables.NAME}``, in DuckDB's.

    Raises
    ------
    QueryError
        It cannot be parsed or translated, or reads anything but these tables.
    """
    try:
        return _in_duckdb(parsed(query))
    except StatementError as error:
        raise QueryError(str(error)) from error


@cache
def condition_in_duckdb(text: str) -> str:
    """Return a condition of Spark's SQL in DuckDB's; for errors see :func:`translated`."""
    try:
        return _in_duckdb(condition(text))
    except StatementError as error:
        raise QueryError(str(error)) from error


def _in_duckdb(tree: Any) -> str:
    from sqlglot import exp
    from sqlglot.errors import ErrorLevel, SqlglotError

    # sqlglot drops the condition without a word.
    if any(isinstance(node.this, exp.Expression) and node.args.get("expression") for node in tree.find_all(exp.Exists)):
        raise QueryError("exists(list, condition) has no translation: write size(filter(list, condition)) > 0")
    try:
        return str(tree.sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE))
    except SqlglotError as error:
        raise QueryError(" ".join(str(error).split())[:300]) from error


def run(query: str, tables: Mapping[str, pa.Table | pads.Dataset]) -> pa.Table:
    """Run a query of DuckDB's SQL over tables in memory, or files that are read as the query goes on.

    Parameters
    ----------
    query
        The query.
    tables
        The tables by the names that the query uses.

    Raises
    ------
    QueryError
        DuckDB's error.
    """
    import duckdb

    with duckdb.connect(config=_CLOSED) as session:
        # As a session of Spark's: the machine's zone plays no part.
        session.execute("SET TimeZone = 'UTC'")
        session.execute("SET lock_configuration = true")
        for name, table in tables.items():
            session.register(name, table)
        try:
            return session.sql(query).to_arrow_table()
        except duckdb.Error as error:
            raise QueryError(str(error).splitlines()[0]) from error


def without_zones(table: pa.Table) -> pa.Table:
    """Return the rows with times in UTC and without a zone: DuckDB rounds times with a zone by its own."""
    fields: list[Any] = []
    for field in table.schema:
        kind = field.type
        fields.append(field.with_type(pa.timestamp(kind.unit)) if pa.types.is_timestamp(kind) else field)
    return table.cast(pa.schema(fields))
