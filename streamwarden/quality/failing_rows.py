"""The failing rows of an expectation, as a query of DuckDB's SQL: for examples, at any number of failing rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from streamwarden.quality.engine import ROWS
from streamwarden.quality.sql import BATCH, translated

__all__ = ["UNIQUE", "condition", "failing_rows_query", "file_literal", "quoted"]

UNIQUE = {"expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique"}
"""Expectations about several rows."""


def failing_rows_query(kind: str, arguments: Mapping[str, Any], keys: Sequence[str], schema: pa.Schema) -> str | None:
    """Return a query for the keys and columns of the rows that fail; None for an expectation that is not about rows.

    Parameters
    ----------
    kind, arguments
        The expectation.
    keys
        Columns that identify a row.
    schema
        The rows' columns; None if they are not known: all columns are named.
    """
    if kind == ROWS:
        return translated(str(arguments["unexpected_rows_query"]))
    found = condition(kind, arguments)
    if found is None:
        return None
    own = [arguments[name] for name in ("column", "column_A", "column_B") if name in arguments]
    wanted = [*keys, *own, *arguments.get("column_list", ())]
    columns = ", ".join(quoted(name) for name in dict.fromkeys(wanted) if schema is None or name in schema.names)
    qualify = "QUALIFY" if kind in UNIQUE else "WHERE"
    return f"SELECT {columns} FROM {BATCH} {qualify} {found}"


def condition(kind: str, arguments: Mapping[str, Any]) -> str | None:
    """Return when a row fails, in SQL that Spark and DuckDB share; None if the expectation is not about rows.

    The condition is true for a failing row, and false or null for others. ``mostly`` plays no part.
    """
    make = _CONDITIONS.get(kind)
    return make(arguments) if make is not None else None


def quoted(name: str) -> str:
    """Return a column's name in DuckDB's SQL."""
    return '"' + str(name).replace('"', '""') + '"'


def file_literal(path: str) -> str:
    """Return a file's path in DuckDB's SQL, where a quote ends it and some signs are a pattern."""
    return _literal(re.sub(r"[*?\[]", lambda sign: f"[{sign[0]}]", path))


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, (int, float)):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"


def _list(values: Sequence[Any]) -> str:
    return ", ".join(map(_literal, values))


def _between(arguments: Mapping[str, Any]) -> str:
    column = quoted(arguments["column"])
    parts = []
    if arguments.get("min_value") is not None:
        parts.append(f"{column} {'<=' if arguments.get('strict_min') else '<'} {_literal(arguments['min_value'])}")
    if arguments.get("max_value") is not None:
        parts.append(f"{column} {'>=' if arguments.get('strict_max') else '>'} {_literal(arguments['max_value'])}")
    return f"({' OR '.join(parts)})"


def _pair(arguments: Mapping[str, Any]) -> str:
    fails = "<" if arguments.get("or_equal") else "<="
    return f"{quoted(arguments['column_A'])} {fails} {quoted(arguments['column_B'])}"


def _repeated(columns: Sequence[str]) -> str:
    names = ", ".join(map(quoted, columns))
    there = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in columns)
    return f"count(*) OVER (PARTITION BY {names}) > 1 AND ({there})"


_CONDITIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "expect_column_values_to_not_be_null": lambda a: f"{quoted(a['column'])} IS NULL",
    "expect_column_values_to_be_null": lambda a: f"{quoted(a['column'])} IS NOT NULL",
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_be_in_set": lambda a: f"{quoted(a['column'])} NOT IN ({_list(a['value_set'])})",
    "expect_column_values_to_not_be_in_set": lambda a: f"{quoted(a['column'])} IN ({_list(a['value_set'])})",
    "expect_column_values_to_match_regex": lambda a: (
        f"NOT regexp_matches({quoted(a['column'])}, {_literal(a['regex'])})"
    ),
    "expect_column_pair_values_a_to_be_greater_than_b": _pair,
    "expect_column_values_to_be_unique": lambda a: _repeated([a["column"]]),
    "expect_compound_columns_to_be_unique": lambda a: _repeated(a["column_list"]),
}
