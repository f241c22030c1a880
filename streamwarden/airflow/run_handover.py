"""A run of a job's DAG that relieves one whose supervise task has used up half of its tries.

Airflow's retries are finite, and a job runs for longer than any number of them lasts. The fresh run deploys nothing: it
attaches to whatever the one before it has watched.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import DagRunTriggerException

from streamwarden.airflow.triggering import run_to_trigger
from streamwarden.supervision.claim import Claim

__all__ = ["RELIEVES", "are_used_up", "is_due", "relief", "relief_id", "relief_of", "relieved_by"]

RELIEVES = "relieves"
"""The key of a run's conf that names the run which it takes over from."""

_ID = re.compile(r"relief__(\d+)__(.+)")


def is_due(attempt: int, max_tries: int, retries: int) -> bool:
    """Tell whether a task had better hand over.

    With half of the retries left, so that one that is lost while it hands over has another.

    Parameters
    ----------
    attempt
        Which try this is, from 1.
    max_tries
        As Airflow counts them: retries after the first try, raised by each clear.
    retries
        The operator's.
    """
    return attempt > 1 and max_tries + 1 - attempt <= retries // 2


def are_used_up(claim: Claim, *, retries: int, retry_delay: timedelta, ended: datetime) -> bool:
    """Tell whether the tries after a claim's can all have come and gone without one that began.

    A try that dies before it begins (the API server is away, the worker lacks a package) leaves no trace that a later
    task may read. But all that a claim has left take their time, and none of them comes while the task is deferred: a
    task that ended sooner, or from being deferred, was ended by a person.

    Parameters
    ----------
    claim
        The last one of the task's run.
    retries, retry_delay
        The operator's; the retries count where the claim is not a try's.
    ended
        When the task ended, or somewhat later: then a person's hand in that time is taken for used-up tries, and the
        job goes on.
    """
    left = (claim.granted or retries) + 1 - max(claim.attempt, 1)
    return not claim.deferred and ended - (claim.deferred_at or claim.at) >= left * retry_delay


def relief_id(run_id: str) -> str:
    """Return the id of the run that relieves another: the same in each try."""
    found = _ID.fullmatch(run_id)
    number, first = (int(found[1]), found[2]) if found else (0, run_id)
    return f"relief__{number + 1}__{first}"


def relief_of(ti: Any) -> str:
    """Return the id of the run that relieves a task's run, or is to: after any that has, and was ended since.

    Of a run that was relieved and is cleared later, the id next to it is taken.
    """
    fresh = relief_id(ti.run_id)
    while ti.get_dr_count(dag_id=ti.dag_id, run_ids=[fresh], states=["success", "failed"]):
        fresh = relief_id(fresh)
    return fresh


def relief(ti: Any) -> DagRunTriggerException:
    """Return what a task raises to have its run relieved; it succeeds by that."""
    note = f"goes on supervising after {ti.run_id}, whose tries run out"
    return run_to_trigger(ti.dag_id, relief_of(ti), note=note, conf={RELIEVES: ti.run_id})


def relieved_by(context: Context) -> str | None:
    """Return the id of the run that a run relieves, or None."""
    found = (context["dag_run"].conf or {}).get(RELIEVES)
    return str(found) if found else None
