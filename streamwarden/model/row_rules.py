"""Row rules: expectations whose failing rows are quarantined, compiled to Spark predicates before Spark starts.

A rule travels in the job's spec. So a batch that is repeated after a crash is judged by the same rules, whatever the
suite says meanwhile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from streamwarden.model.spec_base import Strict

__all__ = ["QUARANTINE_SUFFIX", "Kind", "RowRule", "compile_rule", "quarantine_of"]

QUARANTINE_SUFFIX = "_quarantine"

Kind = Literal["any", "number", "text", "boolean", "time", "ordered"]
"""What a column must be. ordered: numbers, texts or times, and the same for all columns of the rule."""

_MOST = 2**63


class RowRule(Strict):
    """A rule about single rows of a table."""

    id: str = Field(description="The expectation's `meta.id`.")
    reason: str = Field(description="What is expected, in words; the reason in the quarantine table.")
    fails: str = Field(description="Spark SQL: true for a row that fails. Null counts as met.")
    columns: dict[str, Kind] = Field(description="The columns that it compares, and what they must be.")


def quarantine_of(table: str) -> str:
    """Return the name of a table's quarantine table."""
    return f"{table}{QUARANTINE_SUFFIX}"


def compile_rule(kind: str, arguments: Mapping[str, Any], *, name: str, reason: str, recent: bool = False) -> RowRule:
    """Compile an expectation.

    Nulls are judged only by ``expect_column_values_to_not_be_null``. NaN is greater than every number, as in Spark.

    Parameters
    ----------
    kind, arguments
        The expectation's type and arguments.
    name, reason
        Its id, and what it expects in words.
    recent
        Whether it is about the rows of the last days.

    Raises
    ------
    ValueError
        If it can't be decided for each row on its own. The message begins with the field.
    """
    make, known = _COMPILERS.get(kind, (None, ()))
    if make is None:
        raise ValueError(f"type: {kind} can't be a row rule; these can: {', '.join(sorted(_COMPILERS))}")
    if recent:
        raise ValueError("meta.rows: a rule about recent rows or other tables can't be decided for a row on its own")
    if arguments.get("mostly", 1) != 1:
        raise ValueError("kwargs.mostly: a row rule holds for each row; leave it out")
    for key, value in arguments.items():
        if key not in (*known, "mostly") and value is not None:
            raise ValueError(f"kwargs.{key}: is not supported in a row rule")
    for key in ("column", "column_A", "column_B"):
        if not isinstance(arguments.get(key, ""), str):
            raise ValueError(f"kwargs.{key}: is no text")
    try:
        fails, columns = make(arguments)
    except KeyError as missing:
        raise ValueError(f"kwargs.{missing.args[0]}: is missing") from None
    return RowRule(id=name, reason=reason, fails=fails, columns=columns)


_Compiled = tuple[str, dict[str, Kind]]


def _not_null(arguments: Mapping[str, Any]) -> _Compiled:
    column = arguments["column"]
    return f"{_quoted(column)} IS NULL", {column: "any"}


def _between(arguments: Mapping[str, Any]) -> _Compiled:
    column, kinds, parts = arguments["column"], set(), []
    for bound, looser, stricter in (("min", "<", "<="), ("max", ">", ">=")):
        value = arguments.get(f"{bound}_value")
        if value is None:
            continue
        literal, kind = _literal(value, f"kwargs.{bound}_value", times=True)
        if kind not in ("number", "time"):
            raise ValueError(f"kwargs.{bound}_value: {value!r} is neither a number nor a time")
        kinds.add(kind)
        parts.append(f"{_quoted(column)} {stricter if arguments.get(f'strict_{bound}') else looser} {literal}")
    if len(kinds) != 1:
        raise ValueError("kwargs.min_value: give min_value or max_value, both of one kind")
    return " OR ".join(parts), {column: kinds.pop()}


def _set(negated: str) -> Callable[[Mapping[str, Any]], _Compiled]:
    def compiled(arguments: Mapping[str, Any]) -> _Compiled:
        column, values = arguments["column"], arguments["value_set"]
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise ValueError("kwargs.value_set: give a list of values")
        found = [_literal(value, "kwargs.value_set") for value in values]
        kinds = {kind for _, kind in found}
        if len(kinds) != 1:
            raise ValueError("kwargs.value_set: give only numbers, only texts or only booleans")
        return f"{_quoted(column)} {negated}IN ({', '.join(text for text, _ in found)})", {column: kinds.pop()}

    return compiled


def _regex(arguments: Mapping[str, Any]) -> _Compiled:
    column, regex = arguments["column"], arguments["regex"]
    try:
        re.compile(regex)
    except (re.error, TypeError) as error:
        raise ValueError(f"kwargs.regex: {error}") from None
    return f"NOT ({_quoted(column)} RLIKE {_text(regex)})", {column: "text"}


def _pair(arguments: Mapping[str, Any]) -> _Compiled:
    first, second = arguments["column_A"], arguments["column_B"]
    fails = "<" if arguments.get("or_equal") else "<="
    return f"{_quoted(first)} {fails} {_quoted(second)}", {first: "ordered", second: "ordered"}


_COMPILERS: dict[str, tuple[Callable[[Mapping[str, Any]], _Compiled], tuple[str, ...]]] = {
    "expect_column_values_to_not_be_null": (_not_null, ("column",)),
    "expect_column_values_to_be_between": (
        _between,
        ("column", "min_value", "max_value", "strict_min", "strict_max"),
    ),
    "expect_column_values_to_be_in_set": (_set("NOT "), ("column", "value_set")),
    "expect_column_values_to_not_be_in_set": (_set(""), ("column", "value_set")),
    "expect_column_values_to_match_regex": (_regex, ("column", "regex")),
    "expect_column_pair_values_a_to_be_greater_than_b": (_pair, ("column_A", "column_B", "or_equal")),
}
"""Type: compiler, and the arguments that it understands."""


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _literal(value: Any, field: str, *, times: bool = False) -> tuple[str, Kind]:
    if isinstance(value, bool):
        return str(value).upper(), "boolean"
    if isinstance(value, int) and abs(value) < _MOST:
        return f"{value}L", "number"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value!r}D", "number"
    if isinstance(value, str) and not times:
        return _text(value), "text"
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{field}: {value!r} is neither a number nor a time") from None
        # Without a zone: UTC, as the sessions of drivers are.
        return f"TIMESTAMP '{moment.isoformat(' ')}'", "time"
    raise ValueError(f"{field}: {value!r} can't be compared with a column")
