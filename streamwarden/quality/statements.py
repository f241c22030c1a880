"""What a suite's SQL may be: one query that reads its own tables, and nothing else.

A suite is data. Its SQL is Spark's, and runs on Spark or, translated, on DuckDB. Spark has no switch that keeps a query
from files, other tables and Java's methods. So each statement is parsed and checked when the suite is loaded. DuckDB
has such a switch, and :mod:`streamwarden.quality.sql` sets it: a second lock.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["BATCH", "StatementError", "condition", "other", "parsed"]

BATCH = "batch"
"""The name of the rows under check."""

_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_TABLE = re.compile(r"tables\.([A-Za-z0-9_]+)")

_REFUSED_FUNCTIONS = {
    # Java's methods.
    *("java_method", "reflect", "try_reflect"),
    # Files: these read a descriptor by its path.
    *("from_protobuf", "to_protobuf"),
    # Text that is run as SQL, and the session's settings.
    *("current_setting", "getenv", "getvariable", "query", "query_table"),
}
_MOST = 100_000
"""Characters. The parser takes a second for these."""


class StatementError(ValueError):
    """A statement that a suite may not have, or that nobody can parse."""


def other(table: str) -> str:
    """Return the name of another table that a query reads as ``{tables.NAME}``."""
    return f"table_{table}"


@lru_cache(maxsize=1024)
def parsed(query: str) -> Any:
    """Return a query of Spark's SQL with ``{batch}`` and ``{tables.NAME}``, parsed. Its callers must not change it.

    Raises
    ------
    StatementError
        It is not one query, or reads anything but these tables.
    """
    from sqlglot import exp

    text, allowed = _filled(query)
    tree = _parse_one(text)
    if not isinstance(tree, exp.Query):
        raise StatementError("only a SELECT is allowed")
    # A QueryTransform runs a command of the shell: SELECT TRANSFORM(a) USING 'command'.
    refused = (exp.DML, exp.Command, exp.Into, exp.Copy, exp.Create, exp.Drop, exp.QueryTransform)
    if (found := next(tree.find_all(*refused), None)) is not None:
        raise StatementError(f"only a SELECT is allowed, and not {found.key.upper()}")
    for step in tree.find_all(exp.With):
        if step.args.get("recursive"):
            raise StatementError("a recursive query is not allowed: it may never end")
    allowed |= {one.alias_or_name for one in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        _check_table(table, allowed)
    for function in tree.find_all(exp.Func):
        _check_function(function)
    return tree


@lru_cache(maxsize=1024)
def condition(text: str) -> Any:
    """Return a condition about a row in Spark's SQL, parsed. Its callers must not change it.

    Raises
    ------
    StatementError
        It is none, or has a query in it.
    """
    from sqlglot import exp

    tree = parsed(f"SELECT 1 FROM {{batch}} WHERE ({_escaped(text)})")
    given = {name for name, value in tree.args.items() if value}
    alone = isinstance(tree, exp.Select) and not given - {"expressions", "from", "from_", "where", "kind"}
    where = tree.args["where"].this if alone else None
    if not isinstance(where, exp.Paren) or len(list(tree.find_all(exp.Query))) != 1:
        raise StatementError("a condition about a row is needed, without a query in it")
    return where.this


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _filled(query: str) -> tuple[str, set[str]]:
    """Return the query with the names of its tables, and these names."""
    allowed = {BATCH}

    def name(found: re.Match[str]) -> str:
        inner = found[1]
        if inner is None:
            return found[0][0]
        if inner == BATCH:
            return BATCH
        table = _TABLE.fullmatch(inner)
        if table is None:
            raise StatementError("only {batch} and {tables.NAME} are filled in; a brace of the query is doubled: {{")
        allowed.add(other(table[1]))
        return other(table[1])

    return _BRACES.sub(name, query), allowed


def _parse_one(text: str) -> Any:
    import sqlglot
    from sqlglot.errors import SqlglotError

    if len(text) > _MOST:
        raise StatementError(f"longer than {_MOST:,} characters")
    try:
        found = [one for one in sqlglot.parse(text, read="spark") if one is not None]
    except SqlglotError as error:
        raise StatementError(" ".join(str(error).split())[:300]) from error
    except RecursionError:
        raise StatementError("too deeply nested") from None
    except Exception as error:
        # The parser itself fails for some texts that are no SQL.
        raise StatementError(f"the parser fails: {type(error).__name__}") from error
    if len(found) != 1:
        raise StatementError(f"one statement is allowed, and not {len(found)}")
    return found[0]


def _check_table(table: exp.Table, allowed: set[str]) -> None:
    from sqlglot import exp

    # parquet.`/a/folder` has a database, and read_files('/a/folder') is a function.
    plain = isinstance(table.this, exp.Identifier) and not table.args.get("db") and not table.args.get("catalog")
    if not plain or table.name not in allowed:
        said = table.sql(dialect="spark")[:80]
        raise StatementError(f"it reads {said!r}, and may read {{batch}} and {{tables.NAME}} only")
    if table.args.get("version") or table.args.get("when"):
        raise StatementError("it reads another version of a table")


def _check_function(function: exp.Func) -> None:
    from sqlglot import exp

    name = function.name if isinstance(function, exp.Anonymous) else function.sql_name()
    if name.lower() in _REFUSED_FUNCTIONS:
        raise StatementError(f"the function {name.lower()} is not allowed")
    if isinstance(function.parent, exp.Dot) and function.arg_key == "expression":
        # system.builtin.reflect: the same function by another name.
        raise StatementError(f"the function {name.lower()} is not allowed with a schema's name")
