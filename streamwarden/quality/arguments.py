"""What suites may say in an expectation's arguments, so that it means the same in memory and on Spark.

Great Expectations accepts more than its engines evaluate: conditions in pandas' language, pairs with their own rule for
nulls. Such a suite is refused when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from streamwarden.quality.statements import condition, parsed

__all__ = [
    "PAIRS",
    "QUERY",
    "ROWS",
    "SOURCE_FILE",
    "UNIQUE",
    "checked_arguments",
    "literal",
    "quoted",
    "row_condition",
    "without_condition",
]

ROWS = "unexpected_rows_expectation"
"""Great Expectations' name for a query that returns the failing rows."""
QUERY = "unexpected_rows_query"
"""The argument of such an expectation with its query."""
UNIQUE = {"expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique"}
"""Expectations about several rows."""

SOURCE_FILE = "source_file"
"""The column of tables that name the landed file of each row: examples show it, so that a person finds the file."""

PAIRS = {"expect_column_pair_values_a_to_be_greater_than_b"}
"""Expectations about two columns of a row."""

_NULLS = dict.fromkeys(UNIQUE, "all_values_are_missing") | dict.fromkeys(PAIRS, "both_values_are_missing")
_SIGNS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_BOUNDS = ("min_value", "max_value")


def checked_arguments(kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an expectation's arguments, with bounds that are moments in UTC and without a zone.

    Raises
    ------
    ValueError
        An argument can't be evaluated alike in memory and on Spark; the message names it.
    """
    if kind == ROWS and "row_condition" in arguments:
        raise ValueError("row_condition: write the condition into the query's WHERE")
    if kind == ROWS and QUERY in arguments:
        parsed(str(arguments[QUERY]))
    if (rows := row_condition(arguments)) is not None:
        condition(rows)
    _check_self_contained(kind, arguments)
    ignored = arguments.get("ignore_row_if")
    if kind in _NULLS and ignored is not None and ignored != _NULLS[kind]:
        raise ValueError(f"ignore_row_if: only {_NULLS[kind]!r} is supported for {kind}")
    if kind in UNIQUE and arguments.get("mostly", 1) != 1:
        raise ValueError(f"mostly: {kind} has none, because a repeated key counts for all of its rows")
    return {name: _in_utc(value) if name in _BOUNDS else value for name, value in arguments.items()}


def _check_self_contained(kind: str, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError if an argument names what lies outside of the table."""
    for name in arguments:
        # Further expectations of Great Expectations run SQL of any kind, on any source of data.
        if ("query" in name or "table" in name or "data_source" in name) and (kind, name) != (ROWS, QUERY):
            raise ValueError(f"{name}: only {ROWS} may have a query, as {QUERY}")
    pending: list[Any] = [arguments]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            # A JSON schema's validator fetches what an address leads to, files too.
            for name in ("$ref", "$dynamicRef", "$recursiveRef"):
                if not str(value.get(name, "#")).startswith("#"):
                    raise ValueError(f"{name}: {value[name]!r} is not inside of the suite")
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def row_condition(arguments: Mapping[str, Any]) -> str | None:
    """Return which rows an expectation is about, in Spark's SQL; None for all rows.

    Raises
    ------
    ValueError
        Another language than Spark's SQL or Great Expectations' conditions.
    """
    given, parser = arguments.get("row_condition"), arguments.get("condition_parser")
    if given is None:
        return None
    if isinstance(given, str):
        if parser != "spark":
            raise ValueError(f"condition_parser: {parser!r} can't be evaluated on Spark and in memory; use 'spark'")
        return given
    if not isinstance(given, Mapping):
        raise ValueError("row_condition: must be a text or an object")
    return _condition(given)


def without_condition(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without the condition for rows."""
    return {name: value for name, value in arguments.items() if name not in ("row_condition", "condition_parser")}


def quoted(name: str, columns: Sequence[str] | None = None) -> str:
    """Return a column's name in DuckDB's SQL.

    Parameters
    ----------
    columns
        The columns that there are: ``a.b`` is a field of the column ``a`` if there is no such column.
    """
    parts = [name] if columns is None or name in columns else name.split(".")
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def literal(value: Any) -> str:
    """Return a value of JSON in SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, (int, float)):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"


def _condition(given: Mapping[str, Any]) -> str:
    make = _CONDITIONS.get(str(given.get("type")))
    try:
        if make is not None:
            return make(given)
    except (KeyError, TypeError) as error:
        raise ValueError(f"row_condition: {error} is missing or wrong") from error
    raise ValueError(f"row_condition: type {given.get('type')!r} is none of {', '.join(_CONDITIONS)}")


def _column(given: Mapping[str, Any]) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in str(given["column"]["name"]).split("."))


def _comparison(given: Mapping[str, Any]) -> str:
    operator, value = given["operator"], given["parameter"]
    if operator in ("IN", "NOT_IN"):
        return f"{_column(given)} {operator.replace('_', ' ')} ({', '.join(map(literal, value))})"
    return f"{_column(given)} {_SIGNS[operator]} {literal(value)}"


def _joined(word: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda given: "(" + f" {word} ".join(_condition(one) for one in given["conditions"]) + ")"


_CONDITIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "comparison": _comparison,
    "nullity": lambda given: f"{_column(given)} IS {'' if given['is_null'] else 'NOT '}NULL",
    "and": _joined("AND"),
    "or": _joined("OR"),
}


def _in_utc(value: Any) -> Any:
    # Great Expectations can't compare a moment with a zone with Spark's values, which have none.
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return value
    return value if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
