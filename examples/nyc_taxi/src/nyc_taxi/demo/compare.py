"""Tables compared exactly, in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa

__all__ = ["EXAMPLES", "Difference", "compare_rows", "duckdb_memory", "in_cents", "sum_in_dollars", "without_zones"]

EXAMPLES = 5
"""Differences that are shown, at most."""


@dataclass(frozen=True)
class Difference:
    """Differences of a table from the expected one.

    Parameters
    ----------
    table
        The table's name.
    expected, actual
        Numbers of rows.
    missing
        Expected keys that are missing.
    extra
        Keys that are not expected, including second rows of one key.
    different
        Keys with different values.
    examples
        Up to five differences of all kinds, as text.
    """

    table: str
    expected: int
    actual: int
    missing: int
    extra: int
    different: int
    examples: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether the tables are equal."""
        return not (self.missing or self.extra or self.different)

    def __str__(self) -> str:
        if self.equal:
            return f"{self.table}: equal, {self.expected:,} rows"
        head = (
            f"{self.table}: {self.missing:,} missing, {self.extra:,} extra, {self.different:,} different"
            f" ({self.expected:,} rows expected, {self.actual:,} found)"
        )
        return "\n  ".join([head, *self.examples])


def compare_rows(
    name: str, expected: pa.Table, actual: pa.Table, keys: Sequence[str], columns: Sequence[str]
) -> Difference:
    """Compare two tables row by row.

    Parameters
    ----------
    name
        The table's name.
    expected, actual
        The tables.
    keys
        Columns that identify a row.
    columns
        All columns to compare, the keys among them.
    """
    with duckdb_memory() as db:
        # Second rows of one key pair with each other, so that they are neither hidden nor multiplied.
        key = ", ".join(f'"{column}"' for column in keys)
        for side, table in (("expected", expected), ("actual", actual)):
            db.register(f"{side}_rows", without_zones(table.select(list(columns))))
            order = ", ".join(f'"{column}"' for column in columns)
            db.execute(
                f"CREATE TABLE {side} AS SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY {order}) AS nth"
                f" FROM {side}_rows"
            )
        same = " AND ".join(f'e."{column}" IS NOT DISTINCT FROM a."{column}"' for column in (*keys, "nth"))
        values = [column for column in columns if column not in keys]
        differs = " OR ".join(f'e."{column}" IS DISTINCT FROM a."{column}"' for column in values) or "false"
        described = {
            side: "concat_ws(' ', "
            + ", ".join(f"""'{column}=' || coalesce({side}."{column}"::VARCHAR, 'null')""" for column in columns)
            + ")"
            for side in ("e", "a")
        }
        db.execute(
            f"""
            CREATE TABLE found AS
            SELECT CASE WHEN a.nth IS NULL THEN 'missing' WHEN e.nth IS NULL THEN 'extra' ELSE 'different' END AS kind,
                   {described["e"]} AS wanted, {described["a"]} AS had
            FROM expected e FULL JOIN actual a ON {same}
            WHERE a.nth IS NULL OR e.nth IS NULL OR {differs}
            """
        )
        counts = dict(db.execute("SELECT kind, count(*) FROM found GROUP BY kind").fetchall())
        examples = db.execute(f"SELECT * FROM found ORDER BY kind, wanted, had LIMIT {EXAMPLES}").fetchall()
    return Difference(
        table=name,
        expected=expected.num_rows,
        actual=actual.num_rows,
        missing=counts.get("missing", 0),
        extra=counts.get("extra", 0),
        different=counts.get("different", 0),
        examples=tuple(_example(*found) for found in examples),
    )


def in_cents(amount: str) -> str:
    """Return SQL for an amount in whole cents, 0 if there is none."""
    return f"coalesce(CAST(round({amount} * 100) AS BIGINT), 0)"


def sum_in_dollars(amount: str) -> str:
    """Return SQL for the exact sum of an amount."""
    # DuckDB divides decimals as doubles; multiplication keeps decimals.
    return f"CAST(CAST(sum({in_cents(amount)}) AS DECIMAL(18, 0)) * CAST(0.01 AS DECIMAL(3, 2)) AS DECIMAL(18, 2))"


def without_zones(table: pa.Table) -> pa.Table:
    """Convert times to UTC without a zone, which DuckDB handles more simply."""
    fields = [
        pa.field(field.name, pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


@contextmanager
def duckdb_memory() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database in memory with two threads."""
    with duckdb.connect(":memory:", config={"threads": 2}) as db:
        yield db


def _example(kind: str, wanted: str, had: str) -> str:
    if kind == "different":
        return f"different: expected {wanted}; found {had}"
    return f"{kind}: {wanted if kind == 'missing' else had}"
