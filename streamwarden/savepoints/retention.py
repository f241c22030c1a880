"""Which savepoints retention keeps, which it removes, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from streamwarden.model.durations import format_duration
from streamwarden.model.savepoint import Origin
from streamwarden.model.spec import KeepSpec, RetentionSpec

if TYPE_CHECKING:
    from streamwarden.savepoints.catalog import Savepoint

__all__ = ["Fate", "expired", "fates", "protected"]


_GOES = "removed by the next housekeeping"


@dataclass(frozen=True)
class Fate:
    """What retention does with a savepoint.

    Parameters
    ----------
    removed
        Whether the next housekeeping removes it.
    at
        When it becomes too old; None: it never does, or something protects it.
    why
        In words.
    """

    removed: bool
    at: datetime | None
    why: str


def protected(found: list[Savepoint]) -> dict[str, str]:
    """Return, by id, why each protected savepoint is protected; `found` is newest first."""
    why = {one.id: f"has the label {one.record.label!r}" for one in found if one.record.label}
    why.update({one.id: "is in use" for one in found if one.record.in_use_by})
    newest = next((one for one in found if one.verdict == "verified"), None)
    if newest is not None:
        why.setdefault(newest.id, "is the newest verified one")
    return why


def expired(found: list[Savepoint], retention: RetentionSpec, now: datetime) -> list[Savepoint]:
    """Return savepoints beyond count or age, per origin, oldest first; `found` is newest first."""
    known = fates(found, retention, now)
    return sorted((one for one in found if known[one.id].removed), key=lambda one: one.id)


def fates(found: list[Savepoint], retention: RetentionSpec, now: datetime) -> dict[str, Fate]:
    """Return by id what retention does with each savepoint; `found` is newest first."""
    kept = protected(found)
    return {
        one.id: Fate(False, None, f"stays: it {kept[one.id]}") if one.id in kept else _fate(one, place, policy, now)
        for one, place, policy in _places(found, retention)
    }


def _places(found: list[Savepoint], retention: RetentionSpec) -> Iterator[tuple[Savepoint, int, KeepSpec]]:
    """Yield each savepoint with its place in its group, newest first, and the policy of its origin."""
    for origin in Origin:
        policy = retention.of(origin.value)
        mine = [one for one in found if one.record.origin is origin]
        # Count damaged savepoints separately: they must not push out good ones.
        damaged = [one for one in mine if one.verdict == "damaged"]
        for group in ([one for one in mine if one not in damaged], damaged):
            for place, one in enumerate(group):
                yield one, place, policy


def _fate(one: Savepoint, place: int, policy: KeepSpec, now: datetime) -> Fate:
    origin, field = one.record.origin.value, f"savepoints.keep.{one.record.origin.value.replace('-', '_')}"
    end = one.summary.taken_at + policy.age if policy.age is not None else None
    if end is not None and now > end:
        assert policy.age is not None
        return Fate(True, end, f"{_GOES}: older than {format_duration(policy.age)} ({field}.age)")
    if policy.count is not None and place >= policy.count:
        return Fate(True, None, f"{_GOES}: beyond the newest {policy.count} ({field}.count)")
    parts = []
    if policy.count is not None:
        newer = policy.count - place
        parts.append(f"until {newer} newer {origin} one{'s are' if newer > 1 else ' is'} taken")
    if end is not None:
        parts.append(f"until {end:%Y-%m-%d %H:%M} UTC")
    return Fate(False, end, f"stays {' or '.join(parts)}" if parts else "stays until a person deletes it")
