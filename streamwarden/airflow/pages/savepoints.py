"""Savepoints: the catalogue with proof and size, which generation came from which, and what retention does."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import RetentionSpec
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.savepoints.retention import Fate, fates
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["TONES", "Generation", "JobSavepoints", "Kept", "lineage", "savepoints_of"]

TONES = {"verified": "good", "damaged": "bad", "unverified": "off"}


@dataclass(frozen=True)
class Kept:
    """A savepoint of the catalogue.

    Parameters
    ----------
    of
        The savepoint.
    facts
        As the command line describes it.
    fate
        What retention does with it.
    """

    of: Savepoint
    facts: dict[str, Any]
    fate: Fate


@dataclass
class Generation:
    """A generation with its savepoints, and the generations that began from them.

    Parameters
    ----------
    number
        Its number.
    current
        Whether the job is on it.
    savepoints
        Oldest first.
    later
        Generations by the id of the savepoint that they began from.
    """

    number: int
    current: bool
    savepoints: list[Savepoint] = field(default_factory=list)
    later: dict[str, list[Generation]] = field(default_factory=dict)


@dataclass(frozen=True)
class JobSavepoints:
    """The savepoints of a job.

    Parameters
    ----------
    job
        The job.
    kept
        Newest first.
    roots
        Its generations, those first that began from no known savepoint.
    error
        Why they can't be read.
    """

    job: str
    kept: list[Kept]
    roots: list[Generation]
    error: StreamwardenError | None = None

    @property
    def bytes(self) -> int:
        """What all of them take; files shared with others count once each."""
        return sum(one.facts["own_bytes"] for one in self.kept)


def savepoints_of(workspace: Workspace, job: str, now: datetime) -> JobSavepoints:
    """Return the savepoints of a job."""
    try:
        found = catalog.savepoints(workspace, job)
        documents = JobDocuments(workspace.storage, job)
        desired, reference = documents.desired.read(), documents.checkpoint.read()
        policy = desired.spec.savepoints.keep if desired is not None else RetentionSpec()
        fate = fates(found, policy, now)
        kept = [Kept(one, catalog.describe(workspace, one), fate[one.id]) for one in found]
        current = reference.generation if reference is not None else None
        return JobSavepoints(job, kept, lineage(found, current, reference.savepoint if reference else None))
    except StreamwardenError as error:
        return JobSavepoints(job, [], [], error)


def lineage(found: list[Savepoint], current: int | None, base: str | None) -> list[Generation]:
    """Return the generations that began from no known savepoint, with all others below them.

    Parameters
    ----------
    found
        A job's savepoints.
    current
        The generation in force; None for a job that never ran.
    base
        The savepoint that it began from.
    """
    generations: dict[int, Generation] = {}
    began: dict[int, str | None] = {}
    for one in sorted(found, key=lambda one: one.id):
        number = one.summary.generation
        generations.setdefault(number, Generation(number, number == current)).savepoints.append(one)
        began[number] = one.summary.parent
    if current is not None and current not in generations:
        generations[current] = Generation(current, True)
        began[current] = base
    holders = {one.id: generations[one.summary.generation] for one in found}
    roots = []
    for number, generation in sorted(generations.items()):
        parent = began[number]
        holder = holders.get(parent) if parent is not None else None
        if holder is None or parent is None or holder.number >= number:
            roots.append(generation)
        else:
            holder.later.setdefault(parent, []).append(generation)
    return roots
