"""Restores, rollouts and rescales: the list, and one of them as a timeline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nlargest

from streamwarden.model.operation import Operation, StepName
from streamwarden.operations.operation_words import facts_of
from streamwarden.runtime.operation_lock import operations_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["Bar", "Timeline", "find_operation", "list_operations", "operation_of_run", "timeline_of"]

_LISTED = 50

_GOES = frozenset({StepName.STOP, StepName.SWITCH, StepName.ROLL_BACK})
"""With these a job begins to commit nothing."""

_COMES = frozenset({StepName.FIRST_BATCH, StepName.WAIT_FOR_HEALTH, StepName.START_AGAIN, StepName.VERIFY_ROLLBACK})
"""After these it commits again."""

TONES = {"done": "good", "failed": "bad", "rolled back": "warn", "running": "busy", "interrupted": "bad"}


@dataclass(frozen=True)
class Bar:
    """A step on the timeline; places are percents of its length.

    Parameters
    ----------
    name, detail
        The step, and what it found.
    left, width
        Where its bar is.
    seconds
        How long it took; None while it runs.
    away
        Whether the job commits nothing during it.
    """

    name: str
    detail: str
    left: float
    width: float
    seconds: float | None
    away: bool


@dataclass(frozen=True)
class Timeline:
    """An operation as a timeline.

    Parameters
    ----------
    of
        The operation.
    facts
        What it is about: topic and text.
    bars
        Its steps.
    seconds
        Its length, until now while it runs.
    down
        Left and width of the downtime, in percent; None without one, or before it is measured.
    """

    of: Operation
    facts: list[tuple[str, str]]
    bars: list[Bar]
    seconds: float
    down: tuple[float, float] | None

    @property
    def tone(self) -> str:
        """The colour of its state."""
        return TONES[self.of.state.value]


def list_operations(workspace: Workspace, jobs: list[str]) -> list[Operation]:
    """Return the newest operations of jobs, newest first."""
    ids: list[tuple[str, str]] = []
    current: dict[str, Operation] = {}
    for job in jobs:
        documents = JobDocuments(workspace.storage, job)
        now = documents.operation.read()
        if now is not None:
            current[now.id] = now
        ids += [(name, job) for name in {*documents.past_operations(), *([now.id] if now is not None else [])}]
    found = []
    # Ids begin with the time: only the newest ones are read.
    for name, job in nlargest(_LISTED, ids):
        one = current.get(name) or JobDocuments(workspace.storage, job).past_operation(name).read()
        if one is not None:
            found.append(one)
    return found


def find_operation(workspace: Workspace, job: str, name: str) -> Operation | None:
    """Return an operation of a job by its id."""
    documents = JobDocuments(workspace.storage, job)
    now = documents.operation.read()
    if now is not None and now.id == name:
        return now
    # Looked up, and not made a path of: the address may hold anything.
    return documents.past_operation(name).read() if name in documents.past_operations() else None


def operation_of_run(workspace: Workspace, jobs: list[str], dag_id: str, run_id: str) -> Operation | None:
    """Return the newest operation that a DAG run performed."""
    # As operators write it; the person who has triggered the run may follow.
    by = f"airflow:{dag_id}/{run_id}"
    for job in jobs:
        for number, one in enumerate(operations_of(JobDocuments(workspace.storage, job))):
            if one.by == by or one.by.startswith(f"{by}, "):
                return one
            if number >= _LISTED:
                break
    return None


def timeline_of(one: Operation, now: datetime) -> Timeline:
    """Return an operation's timeline.

    Parameters
    ----------
    now
        The end of a running one.
    """
    end = max([one.ended_at or now, *(step.ended_at for step in one.steps if step.ended_at is not None)])
    length = max((end - one.started_at).total_seconds(), 0.1)

    def share(seconds: float) -> float:
        return round(min(max(100 * seconds / length, 0), 100), 3)

    bars, away = [], False
    for step in one.steps:
        away = away or step.name in _GOES
        left = (step.started_at - one.started_at).total_seconds()
        took = ((step.ended_at or end) - step.started_at).total_seconds()
        done = (step.ended_at - step.started_at).total_seconds() if step.ended_at is not None else None
        bars.append(Bar(step.name, step.detail, share(left), max(share(took), 0.3), done, away))
        away = away and step.name not in _COMES
    return Timeline(one, list(facts_of(one)), bars, length, _down(one, length))


def _down(one: Operation, length: float) -> tuple[float, float] | None:
    """Return the downtime's place: from the last commit before to the first commit after."""
    if one.plan.downtime_s is None or one.plan.stopped_at is None:
        return None
    first = next((step for step in one.steps if step.name == StepName.FIRST_BATCH and step.ended_at is not None), None)
    end = first.ended_at if first is not None else one.plan.stopped_at + timedelta(seconds=one.plan.downtime_s)
    assert end is not None
    right = (end - one.started_at).total_seconds()
    left = max(right - one.plan.downtime_s, 0)
    return round(100 * left / length, 3), round(100 * min((right - left) / length, 1), 3)
