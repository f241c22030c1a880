"""A run of a job's DAG relieves one whose supervise task has used half of its tries.

Airflow's retries are finite, and a job outlives any number of them. The fresh run deploys nothing: it attaches to the
driver that the previous run supervised.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import DagRunTriggerException

from streamwarden.airflow.trigger_dag_run import run_to_trigger
from streamwarden.supervision.claim import Claim

__all__ = ["RELIEVES", "are_used_up", "is_due", "relief", "relief_id", "relief_of", "relieved_by"]

RELIEVES = "relieves"
"""The key of a run's conf that names the run which it relieves."""

_ID = re.compile(r"relief__(\d+)__(.+)")


def is_due(attempt: int, max_tries: int, retries: int) -> bool:
    """Return whether a task should hand over.

    It does so with half of the retries left: if a try is lost during the handover, a retry remains.

    Parameters
    ----------
    attempt
        The number of this try, from 1.
    max_tries
        As Airflow counts them: retries after the first try, raised by each clear.
    retries
        The operator's retries.
    """
    return attempt > 1 and max_tries + 1 - attempt <= retries // 2


def are_used_up(claim: Claim, *, retries: int, retry_delay: timedelta, ended: datetime) -> bool:
    """Return whether all tries after a claim's may have been used up without starting.

    If a try dies before it starts (the API server is away, the worker lacks a package), a later task finds no trace of
    it. But the remaining tries take their time, and none of them runs while the task is deferred. If a task ended
    sooner, or while deferred, a person ended it.

    Parameters
    ----------
    claim
        The last claim of the task's run.
    retries, retry_delay
        The operator's; the retries count if the claim does not come from a try.
    ended
        Upper bound of the task's end time. If a user marks the task in that interval, it is misread as exhausted
        retries and the job keeps running.
    """
    left = (claim.granted or retries) + 1 - max(claim.attempt, 1)
    return not claim.deferred and ended - (claim.deferred_at or claim.at) >= left * retry_delay


def relief_id(run_id: str) -> str:
    """Return the id of the run that relieves another; it is the same in each try."""
    found = _ID.fullmatch(run_id)
    number, first = (int(found[1]), found[2]) if found else (0, run_id)
    return f"relief__{number + 1}__{first}"


def relief_of(ti: Any) -> str:
    """Return the id of the run that relieves, or will relieve, a task's run; it follows earlier reliefs that ended.

    If a relieved run is cleared later, its relief gets the next id.
    """
    fresh = relief_id(ti.run_id)
    while ti.get_dr_count(dag_id=ti.dag_id, run_ids=[fresh], states=["success", "failed"]):
        fresh = relief_id(fresh)
    return fresh


def relief(ti: Any) -> DagRunTriggerException:
    """Return the exception by which a task requests the relief of its run; Airflow marks the task as succeeded."""
    note = f"takes over supervision from {ti.run_id}, which is running out of tries"
    return run_to_trigger(ti.dag_id, relief_of(ti), note=note, conf={RELIEVES: ti.run_id})


def relieved_by(context: Context) -> str | None:
    """Return the id of the run that a run relieves, or None."""
    found = (context["dag_run"].conf or {}).get(RELIEVES)
    return str(found) if found else None
