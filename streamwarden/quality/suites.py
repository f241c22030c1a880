"""Expectation suites as files: one Great Expectations suite for each table, in Great Expectations' JSON.

Loading needs neither Great Expectations nor Spark, so an invalid suite fails before a JVM starts. Great Expectations
checks expectation types and arguments when it builds the suite.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.names import Name
from streamwarden.quality.arguments import QUERY, checked_arguments
from streamwarden.quality.results import Severity
from streamwarden.store.config import describe_validation
from streamwarden.store.row_rules import compiled

__all__ = [
    "Expectation",
    "ExpectationMeta",
    "RecentRows",
    "Suite",
    "SuiteMeta",
    "load_suite",
    "load_suites",
    "suite_digest",
    "suite_names",
]

_TABLE = re.compile(r"\{tables\.(\w+)\}")


class _Document(BaseModel):
    # Great Expectations adds its own fields when it saves a suite; they are allowed.
    model_config = ConfigDict(extra="ignore", frozen=True)


class RecentRows(_Document):
    """The rows of the last days, by a column of times: for rules about more than the new rows."""

    column: str = Field(description="A column with times.")
    days: int = Field(ge=1, le=3650, description="Days before its newest value in the table.")


class ExpectationMeta(_Document):
    """Streamwarden's metadata of an expectation, beyond Great Expectations' fields."""

    id: str = Field(
        min_length=1,
        description="Stable name, unique in the suite; results of many runs are compared by it. Not the field `id` of"
        " Great Expectations, which must be a UUID.",
    )
    columns: tuple[str, ...] = Field(
        default=(), description="The columns it is about, where its arguments do not say it: SQL queries."
    )
    recent: RecentRows | None = Field(
        default=None,
        description="Judge the rows of the last days, and not the new ones: missing hours, unusual volumes. The gate"
        " does; a check of whole tables leaves such an expectation out.",
    )
    tables: dict[Name, str | None] = Field(
        default_factory=dict,
        description="Other tables that a query reads as `{tables.NAME}`, each with its column of times: only its rows"
        " from the begin of `recent` on are read. null: all of its rows, as of a lookup table.",
    )
    rows: Literal["quarantine"] | None = Field(
        default=None, description="quarantine: the job that writes the table moves failing rows to TABLE_quarantine."
    )


class Expectation(_Document):
    """One expectation of a suite."""

    type: str
    arguments: dict[str, Any] = Field(default_factory=dict, validation_alias=AliasChoices("kwargs"))
    severity: Severity = Field(description="critical: its failure fails the table. warning and info: it is reported.")
    description: str = Field(
        default="", description="What is expected, as a sentence that a reader of the report understands."
    )
    notes: str = Field(default="", description="Why it is expected.")
    meta: ExpectationMeta

    @field_validator("notes", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        return "\n".join(str(line) for line in value) if isinstance(value, list) else value or ""

    @field_validator("description", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return value or ""

    @field_validator("arguments")
    @classmethod
    def _bound_query(cls, value: dict[str, Any]) -> dict[str, Any]:
        # Great Expectations only logs a hint; the query would then read any table at any version.
        if QUERY in value and "{batch}" not in str(value[QUERY]):
            raise ValueError(f"{QUERY} must read from {{batch}}, the table at the version under check")
        return value

    @model_validator(mode="before")
    @classmethod
    def _evaluable(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("kwargs"), dict):
            return {**value, "kwargs": checked_arguments(str(value.get("type")), value["kwargs"])}
        return value

    @model_validator(mode="after")
    def _named_tables(self) -> Self:
        query = str(self.arguments.get(QUERY, ""))
        used = set(_TABLE.findall(query))
        if used != set(self.meta.tables):
            wrong = sorted(used ^ set(self.meta.tables))
            raise ValueError(f"meta.tables and the query's {{tables.NAME}} differ: {', '.join(wrong)}")
        if any(self.meta.tables.values()) and self.meta.recent is None:
            raise ValueError("meta.tables: a column of times needs meta.recent, which says from when on")
        return self

    @model_validator(mode="after")
    def _row_rule(self) -> Self:
        compiled(self.type, self.arguments, self.meta.model_dump(), self.sentence)
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The expectation's columns; empty for the whole table."""
        if self.meta.columns:
            return self.meta.columns
        names: list[str] = []
        for key in ("column", "column_A", "column_B"):
            if key in self.arguments:
                names.append(str(self.arguments[key]))
        for name in self.arguments.get("column_list", ()):
            names.append(str(name))
        return tuple(names)

    @property
    def sentence(self) -> str:
        """The description, else a text made from type and arguments."""
        if self.description:
            return self.description
        words = self.type.removeprefix("expect_").replace("_", " ")
        said = ", ".join(f"{key} = {value}" for key, value in self.arguments.items())
        return f"Expect {words}{f' ({said})' if said else ''}."


class SuiteMeta(_Document):
    """Streamwarden's metadata of a table."""

    keys: tuple[str, ...] = Field(min_length=1, description="Columns that lead a person to a failing row.")
    owner: str = Field(default="", description="Who answers for the table; shown in reports and alarms.")


class Suite(_Document):
    """The expectations for one output table."""

    name: Name = Field(description="The table; also the file's stem.")
    notes: str = ""
    meta: SuiteMeta
    expectations: tuple[Expectation, ...]

    def only(self, expectations: Iterable[Expectation]) -> Suite:
        """Return the suite with some of its expectations."""
        return self.model_copy(update={"expectations": tuple(expectations)})

    @field_validator("expectations")
    @classmethod
    def _not_empty(cls, value: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
        # A suite without expectations would always pass.
        if not value:
            raise ValueError("the suite expects nothing")
        seen: set[str] = set()
        for expectation in value:
            if expectation.meta.id in seen:
                raise ValueError(f"meta.id {expectation.meta.id!r} is given twice")
            seen.add(expectation.meta.id)
        return value


def load_suite(path: Path) -> Suite:
    """Load one suite.

    Raises
    ------
    StreamwardenError
        ``SUITE_INVALID``, with file and field.
    """
    try:
        raw = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StreamwardenError("SUITE_INVALID", f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise StreamwardenError("SUITE_INVALID", f"{path}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise StreamwardenError("SUITE_INVALID", f"{path}: must be an object")
    try:
        suite = Suite.model_validate(raw)
    except ValidationError as error:
        raise StreamwardenError("SUITE_INVALID", f"{path}: {describe_validation(error)}") from error
    if suite.name != path.stem:
        raise StreamwardenError("SUITE_INVALID", f"{path}: name: is {suite.name!r}, but the file is {path.name}")
    return suite


def suite_names(folder: Path) -> list[str]:
    """Return the tables that have a suite, sorted, without loading any.

    Raises
    ------
    StreamwardenError
        ``SUITE_INVALID``: no suite at all.
    """
    known = sorted(path.stem for path in folder.glob("*.json"))
    if not known:
        raise StreamwardenError("SUITE_INVALID", f"{folder}: no suite (TABLE.json) in this folder")
    return known


def suite_digest(path: Path) -> str:
    """Return the first digits of the SHA-256 of a suite's file; empty if there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def load_suites(folder: Path, tables: Iterable[str] | None = None) -> list[Suite]:
    """Load the suites of a folder, sorted by table, or those of given tables in the given order.

    Checks neither the tables nor Great Expectations' own rules.

    Parameters
    ----------
    folder
        Folder with one ``TABLE.json`` for each table.
    tables
        Tables; default all.

    Raises
    ------
    StreamwardenError
        ``SUITE_INVALID``: no suite at all, none for a requested table, or an unusable suite.
    """
    known = suite_names(folder)
    wanted = known if tables is None else list(dict.fromkeys(tables))
    if not wanted:
        # An empty choice would pass without any check.
        raise StreamwardenError("SUITE_INVALID", f"no table was named (suites: {', '.join(known)})")
    for table in wanted:
        if table not in known:
            raise StreamwardenError(
                "SUITE_INVALID",
                f"{folder / f'{table}.json'}: no suite for table {table!r} (suites: {', '.join(known)})",
                remedy="Name one of these tables, or write a suite for this one; docs/quality.md says how.",
            )
    return [load_suite(folder / f"{table}.json") for table in wanted]
