"""Restores, rollouts and rescales as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rich.markup import escape
from rich.table import Table

from streamwarden.model.operation import Operation
from streamwarden.operations.operation_words import facts_of

__all__ = ["operation_table"]


def operation_table(found: list[Operation]) -> Table:
    """Return operations as a table: requester, reason, changes, steps and outcome."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("operation", "step", "took", "detail"):
        table.add_column(name, justify="right" if name == "took" else "left")
    for one in found:
        table.add_row(f"{one.kind} {one.id}", one.state, "", f"at {one.started_at:%Y-%m-%d %H:%M:%S}")
        for name, took, detail in _rows(one):
            table.add_row("", name, took, escape(detail))
    return table


def _rows(one: Operation) -> Iterator[tuple[str, str, str]]:
    yield "who", "", one.by
    if one.plan.approved_by:
        yield "approved by", "", one.plan.approved_by
    if one.params.get("reason"):
        yield "why", "", str(one.params["reason"])
    yield from ((name, "", detail) for name, detail in facts_of(one))
    for step in one.steps:
        yield step.name, _seconds(step.started_at, step.ended_at), step.detail
    if one.plan.downtime_s is not None:
        yield "downtime", f"{one.plan.downtime_s:.1f} s", "last commit before to first commit after"
    if one.error is not None:
        yield "error", "", f"[{one.error.code}] {one.error.what}"
    yield "verdict", _seconds(one.started_at, one.ended_at), one.state


def _seconds(began: datetime, ended: datetime | None) -> str:
    return f"{(ended - began).total_seconds():.1f} s" if ended else "…"
