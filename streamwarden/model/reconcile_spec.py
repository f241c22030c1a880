"""How the rows of an upserted table follow from the job's sources, for corrections of late rows."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from streamwarden.model.spec_base import Strict

__all__ = ["ReconcileSpec"]

_TABLE = re.compile(r"\{tables\.(\w+)\}")


class ReconcileSpec(Strict):
    """A batch computation of the table's rows: it finds rows that the watermark dropped (docs/corrections.md)."""

    query: str = Field(
        description="Spark's SQL that computes the table's rows, without `is_final`, from `{tables.NAME}`: tables that"
        " are sources of the job. It is run by DuckDB, with times in UTC."
    )
    count: str = Field(
        description="The column that counts the rows of the source in a row of the table: more of them were late."
    )

    @field_validator("query")
    @classmethod
    def _reads(cls, value: str) -> str:
        if not _TABLE.search(value):
            raise ValueError("it reads no {tables.NAME}")
        return value

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that the query reads."""
        return tuple(dict.fromkeys(_TABLE.findall(self.query)))
