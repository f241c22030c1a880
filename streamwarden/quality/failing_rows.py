"""The failing rows of an expectation, as a query of DuckDB's SQL: for examples, at any number of failing rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamwarden.quality.arguments import ROWS, SOURCE_FILE, UNIQUE, literal, quoted, row_condition
from streamwarden.quality.sql import BATCH, condition_in_duckdb, translated

__all__ = ["chosen", "condition", "failing_rows_query", "file_literal", "own_columns"]

Quote = Callable[[str], str]


def failing_rows_query(
    kind: str, arguments: Mapping[str, Any], keys: Sequence[str], columns: Sequence[str]
) -> str | None:
    """Return a query for the keys and columns of the rows that fail; None for an expectation that is not about rows.

    Parameters
    ----------
    kind, arguments
        The expectation.
    keys
        Columns that identify a row.
    columns
        The rows' columns.
    """
    if kind == ROWS:
        return translated(str(arguments["unexpected_rows_query"]))
    found = condition(kind, arguments, columns)
    if found is None:
        return None
    wanted = dict.fromkeys([*keys, *own_columns(arguments), *([SOURCE_FILE] if SOURCE_FILE in columns else [])])
    there = [name for name in wanted if name in columns or name.split(".")[0] in columns]
    listed = ", ".join(
        quoted(name) if name in columns else f"{quoted(name, columns)} AS {quoted(name)}" for name in there
    )
    return f"SELECT {listed} FROM {chosen(arguments)} {'QUALIFY' if kind in UNIQUE else 'WHERE'} {found}"


def chosen(arguments: Mapping[str, Any]) -> str:
    """Return the rows that an expectation is about, as a table of DuckDB's SQL."""
    rows = row_condition(arguments)
    return BATCH if rows is None else f"(SELECT * FROM {BATCH} WHERE {condition_in_duckdb(rows)})"


def own_columns(arguments: Mapping[str, Any]) -> list[str]:
    """Return the columns that an expectation's arguments name."""
    single = [str(arguments[name]) for name in ("column", "column_A", "column_B") if name in arguments]
    return [*single, *map(str, arguments.get("column_list", ()))]


def file_literal(path: str) -> str:
    """Return a file's path in DuckDB's SQL, where a quote ends it and some signs are a pattern."""
    return literal(re.sub(r"[*?\[]", lambda sign: f"[{sign[0]}]", path))


def condition(kind: str, arguments: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    """Return when a row fails, in SQL that Spark and DuckDB share; None if the expectation is not about rows.

    The condition is true for a failing row, and false or null for others. ``mostly`` plays no part.
    """
    make = _CONDITIONS.get(kind)
    return make(arguments, lambda name: quoted(str(name), columns)) if make is not None else None


def _between(arguments: Mapping[str, Any], quote: Quote, value: str | None = None) -> str:
    value = value or quote(arguments["column"])
    parts = []
    if arguments.get("min_value") is not None:
        parts.append(f"{value} {'<=' if arguments.get('strict_min') else '<'} {literal(arguments['min_value'])}")
    if arguments.get("max_value") is not None:
        parts.append(f"{value} {'>=' if arguments.get('strict_max') else '>'} {literal(arguments['max_value'])}")
    return f"({' OR '.join(parts) or 'FALSE'})"


def _pair(arguments: Mapping[str, Any], quote: Quote) -> str:
    fails = "<" if arguments.get("or_equal") else "<="
    return f"{quote(arguments['column_A'])} {fails} {quote(arguments['column_B'])}"


def _repeated(columns: Sequence[str], quote: Quote) -> str:
    names = ", ".join(map(quote, columns))
    there = " OR ".join(f"{quote(name)} IS NOT NULL" for name in columns)
    return f"count(*) OVER (PARTITION BY {names}) > 1 AND ({there})"


def _in_set(arguments: Mapping[str, Any], quote: Quote, *, inverted: bool = False) -> str:
    column = quote(arguments["column"])
    if arguments.get("value_set") is None:
        return "FALSE"
    # A null in the list would make NOT IN null for every row.
    values = ", ".join(literal(value) for value in arguments["value_set"] if value is not None)
    if not values:
        return "FALSE" if inverted else f"{column} IS NOT NULL"
    return f"{column} {'IN' if inverted else 'NOT IN'} ({values})"


_CONDITIONS: dict[str, Callable[[Mapping[str, Any], Quote], str]] = {
    "expect_column_values_to_not_be_null": lambda a, q: f"{q(a['column'])} IS NULL",
    "expect_column_values_to_be_null": lambda a, q: f"{q(a['column'])} IS NOT NULL",
    "expect_column_values_to_be_between": _between,
    "expect_column_value_lengths_to_be_between": lambda a, q: _between(a, q, f"length({q(a['column'])})"),
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_not_be_in_set": lambda a, q: _in_set(a, q, inverted=True),
    "expect_column_values_to_match_regex": lambda a, q: f"NOT regexp_matches({q(a['column'])}, {literal(a['regex'])})",
    "expect_column_values_to_not_match_regex": lambda a, q: f"regexp_matches({q(a['column'])}, {literal(a['regex'])})",
    "expect_column_pair_values_a_to_be_greater_than_b": _pair,
    "expect_column_values_to_be_unique": lambda a, q: _repeated([a["column"]], q),
    "expect_compound_columns_to_be_unique": lambda a, q: _repeated(a["column_list"], q),
}
