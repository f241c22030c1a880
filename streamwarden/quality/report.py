"""Render results as self-contained HTML pages. All values are escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from streamwarden.model.gate import Decision
from streamwarden.quality.gate_words import versions_words
from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult

__all__ = ["render_index", "render_report"]

_ORDER = {"failed": 0, "no_rows": 0, "not_found": 0, "unreadable": 0, "warned": 1, "passed": 2}
_STATUS = {
    "failed": "failed",
    "no_rows": "no rows",
    "not_found": "not found",
    "unreadable": "unreadable",
    "warned": "passed, with warnings",
    "passed": "passed",
}
# Longer values are cut, to keep the page readable.
_LONGEST = 200


def render_report(run: QualityRun, decision: Decision | None = None) -> str:
    """Return a run as one HTML page: the verdict first, then the tables, failing ones first.

    Parameters
    ----------
    decision
        The gate's hold of the checked range, or a person's acceptance.
    """
    tables = sorted(run.tables, key=lambda table: _ORDER[table.status])
    return _environment().get_template("report.html.j2").render(run=run, tables=tables, decision=decision)


def render_index(runs: Sequence[Mapping[str, Any] | QualityRun]) -> str:
    """Return a list of runs as one HTML page, in the given order, each with a link to its report.

    Parameters
    ----------
    runs
        Each with ``run_id``, ``started``, ``seconds``, ``success`` and ``tables``.
    """
    return _environment().get_template("index.html.j2").render(runs=runs)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("streamwarden.quality"),
        # Always on, not by file name: table names, messages and examples come from data.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(cell=_cell, moment=_moment, seconds=_seconds, versions=_versions)
    environment.globals.update(groups=_groups, status_words=_STATUS, tone=_tone, example_columns=_example_columns)
    return environment


def _groups(table: TableResult) -> list[tuple[str, list[ExpectationResult]]]:
    passed = [item for item in table.expectations if item.success]
    found = [("failed", table.failures), ("warning", table.warnings), ("passed", passed)]
    return [(name, items) for name, items in found if items]


def _tone(status: str) -> str:
    return {0: "bad", 1: "warn", 2: "good"}[_ORDER[status]]


def _example_columns(item: ExpectationResult) -> list[str]:
    return list(dict.fromkeys(name for row in item.examples for name in row))


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if value == "":
        return "(empty text)"
    text = ", ".join(str(part) for part in value) if isinstance(value, list) else str(value)
    if isinstance(value, list) and not text:
        return "(empty list)"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _moment(value: str | None) -> str:
    if value is None:
        return "-"
    return f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M:%S} UTC"


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def _versions(checked: Decision | TableResult) -> str:
    """Return the versions of a range in words. The first decision about a table publishes one version."""
    after, version = checked.after, checked.version
    if version is None or after is None or after < 0 or after + 1 >= version:
        return f"version {version}"
    return versions_words(after, version)
