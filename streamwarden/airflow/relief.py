"""A run of a job's DAG that relieves one whose supervise task has used up half of its tries.

Airflow's retries are finite, and a job runs for longer than any number of them lasts. The fresh run deploys nothing: it
attaches to whatever the one before it has watched.
"""

from __future__ import annotations

import re

from airflow.sdk import Context
from airflow.sdk.exceptions import DagRunTriggerException

from streamwarden.airflow.triggering import run_to_trigger

__all__ = ["is_due", "relief", "relief_id", "relieved_by"]

_RELIEVES = "relieves"
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


def relief_id(run_id: str) -> str:
    """Return the id of the run that relieves another: the same in each try."""
    found = _ID.fullmatch(run_id)
    number, first = (int(found[1]), found[2]) if found else (0, run_id)
    return f"relief__{number + 1}__{first}"


def relief(dag_id: str, run_id: str) -> DagRunTriggerException:
    """Return what a task raises to have its run relieved; it succeeds by that."""
    note = f"goes on supervising after {run_id}, whose tries run out"
    return run_to_trigger(dag_id, relief_id(run_id), note=note, conf={_RELIEVES: run_id})


def relieved_by(context: Context) -> str | None:
    """Return the id of the run that a run relieves, or None."""
    found = (context["dag_run"].conf or {}).get(_RELIEVES)
    return str(found) if found else None
