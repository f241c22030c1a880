"""What an operation is about, in words, for the command line and the pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamwarden.model.operation import Operation
from streamwarden.store.effective_spec import FIELDS

__all__ = ["CHANGE", "facts_of"]

CHANGE = "from → to"
"""The topic of what a rescale changes."""


def facts_of(one: Operation) -> Iterator[tuple[str, str]]:
    """Yield topic and text: what changes, and from which savepoint."""
    was, to = one.plan.was, one.plan.to
    if was and to:
        numbers = [(name, getattr(was, name), getattr(to, name)) for name in FIELDS]
        yield CHANGE, ", ".join(f"{name} {old} → {new}" for name, old, new in numbers if old != new)
    else:
        # Refused, or of another kind.
        asked: dict[str, Any] = {name: one.params.get(name) for name in FIELDS}
        if any(asked.values()):
            yield "asked for", ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
    if one.plan.savepoint:
        yield "savepoint", one.plan.savepoint
    if one.plan.state_rows is not None:
        yield "state rows", f"{one.plan.state_rows:,}"
