"""The actions of a supervisor: restart, stop and kill a driver, and record the reason."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Literal

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.status import Exit
from streamwarden.model.supervision import Decision, Ending, Restart, Supervision
from streamwarden.runtime.launchers.launch import launch_driver, launcher_of
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.runtime.processes import kill
from streamwarden.storage import Conflict
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.decide import Action, Verdict, found_no_cluster, pending_ending, stuck_error
from streamwarden.supervision.observe import Observation, Phase, current_incarnation, process_of_driver

__all__ = [
    "ask_to_stop",
    "clear_ending",
    "end_stuck",
    "kill_by_hand",
    "kill_driver",
    "kill_silent",
    "record_decision",
    "record_ending",
    "restart",
]

_KEPT = 50
_FREE = 8
"""So many restarts that spend no budget are kept: back-off doubles with each, up to its limit."""

_TAKEOVER = timedelta(seconds=30)
"""How long a supervisor may take from its recorded restart to the launch. 30 s: two small writes and a fork."""


def record_decision(workspace: Workspace, job: str, what: str, why: str) -> None:
    """Record a decision, for ``streamwarden status``."""
    decision = Decision(at=utc_now(), what=what, why=why)

    def record(memory: Supervision | None) -> Supervision:
        memory = memory or Supervision()
        return memory.model_copy(update={"decisions": [*memory.decisions, decision][-_KEPT:]})

    JobDocuments(workspace.storage, job).supervision.update(record)


def record_ending(workspace: Workspace, seen: Observation, verdict: Verdict, error: ErrorInfo) -> None:
    """Record that a job failed or must be suspended. :func:`decide` repeats the verdict until it is done or undone.

    The record of a failed job stays until a deploy. :func:`clear_ending` removes the record of a suspended job.
    """
    now = utc_now()
    decision = Decision(at=now, what=verdict.action.value, why=verdict.why)
    action: Literal["fail", "suspend"] = "suspend" if verdict.action is Action.SUSPEND else "fail"

    def record(memory: Supervision | None) -> Supervision:
        memory = memory or Supervision()
        ending = memory.ending
        if seen.incarnation is not None:
            ending = Ending(
                incarnation=seen.incarnation,
                at=now,
                action=action,
                why=verdict.why,
                error=error,
                savepoint=verdict.savepoint,
            )
        return memory.model_copy(update={"decisions": [*memory.decisions, decision][-_KEPT:], "ending": ending})

    JobDocuments(workspace.storage, seen.job).supervision.update(record)


def clear_ending(workspace: Workspace, job: str) -> None:
    """Remove the record of an ending that was carried out."""
    JobDocuments(workspace.storage, job).supervision.update(
        lambda memory: (memory or Supervision()).model_copy(update={"ending": None})
    )


def restart(workspace: Workspace, seen: Observation, *, by: str, why: str | None = None) -> str | None:
    """Start a new driver after the observed incarnation, once.

    First kills a silent or a stuck driver, see :func:`kill_driver`. A stuck driver that can't be killed is asked to
    stop, and restarted after it has stopped. If several supervisors restart the same ended incarnation, one launches.

    Parameters
    ----------
    why
        The verdict's reason; default the observation's.

    Returns
    -------
    str or None
        The new incarnation. None if another supervisor or an operation was faster, or the old driver could not be
        ended yet.
    """
    documents = JobDocuments(workspace.storage, seen.job)
    assert seen.desired is not None and seen.incarnation is not None
    after, why = seen.incarnation, why or seen.reason
    if seen.phase.alive and not end_stuck(workspace, seen, by=by, why=why):
        return None
    ours = Restart(at=utc_now(), after=after, reason=why, counts=not found_no_cluster(seen))
    # If fewer restarts were kept than the budget allows, the budget could never be spent.
    kept = max(_KEPT, seen.desired.spec.restarts.max) + _FREE

    def record(memory: Supervision | None) -> Supervision:
        memory = memory or Supervision()
        others = [entry for entry in memory.restarts if entry.after != after]
        # A supervisor that recorded a restart and launched nothing in this time has died: the next supervisor restarts.
        if any(entry.after == after and ours.at - entry.at < _TAKEOVER for entry in memory.restarts):
            return memory
        if pending_ending(seen, memory, "fail") is not None:
            return memory
        decision = Decision(at=ours.at, what=f"restart after {after}", why=why)
        # Those that don't count must not push out those that do.
        free = [entry for entry in others if not entry.counts][-_FREE:]
        others = [entry for entry in others if entry.counts or entry in free]
        return Supervision(restarts=[*others, ours][-kept:], decisions=[*memory.decisions, decision][-_KEPT:])

    if ours not in documents.supervision.update(record).restarts:
        return None
    kill_silent(workspace, seen)
    # The job may have been stopped or deployed again since the observation, or an operation may have begun.
    if active_operation(workspace, seen.job) is not None:
        return None
    desired = documents.desired.read() or seen.desired
    if desired.state == "suspended" or current_incarnation(documents) != after:
        return None
    return launch_driver(workspace, desired, by=by, reason=f"restart: {why}")


def ask_to_stop(workspace: Workspace, seen: Observation, *, by: str, why: str) -> None:
    """Ask the observed driver to stop between batches, once."""
    assert seen.incarnation is not None
    JobDocuments(workspace.storage, seen.job).request_stop(seen.incarnation, by=by, reason=why)


def end_stuck(workspace: Workspace, seen: Observation, *, by: str, why: str) -> bool:
    """Kill a driver that lives and is stuck, and write its exit; return whether it was killed.

    A driver on another machine without a driver host can't be killed from here: it is asked to stop, once.
    """
    if kill_driver(workspace, seen):
        _say_for_it(JobDocuments(workspace.storage, seen.job), seen, stuck_error(seen, why))
        return True
    ask_to_stop(workspace, seen, by=by, why=why)
    return False


def kill_by_hand(workspace: Workspace, seen: Observation, *, by: str) -> bool:
    """Kill a driver that does not stop, and write its exit; return whether it was killed."""
    if not kill_driver(workspace, seen):
        return False
    killed = StreamwardenError("DRIVER_KILLED", f"incarnation {seen.incarnation}: by {by}, while it was {seen.phase}")
    _say_for_it(JobDocuments(workspace.storage, seen.job), seen, ErrorInfo.of(killed))
    return True


def _say_for_it(documents: JobDocuments, seen: Observation, error: ErrorInfo) -> None:
    """Write exit.json for a driver that we killed; otherwise observers report DRIVER_DIED, an unknown cause."""
    assert seen.incarnation is not None
    batch = seen.heartbeat.batch if seen.heartbeat else None
    ended = Exit(incarnation=seen.incarnation, at=utc_now(), outcome="failed", error=error, batch=batch)
    # If the driver wrote its own exit before, that exit stays.
    with suppress(Conflict):
        documents.exit(seen.incarnation).create(ended)


def kill_silent(workspace: Workspace, seen: Observation) -> bool:
    """Kill a driver that was silent for longer than its lease, as :func:`kill_driver`; return whether it was killed.

    The process may hang or be paused, and would continue its batch when it wakes.
    """
    return seen.phase is Phase.SILENT and kill_driver(workspace, seen)


def kill_driver(workspace: Workspace, seen: Observation) -> bool:
    """Kill the observed driver on this machine, or through its launcher; return whether it was killed."""
    process = process_of_driver(seen)
    if process is not None and kill(process):
        return True
    return seen.incarnation is not None and launcher_of(workspace).kill(seen.job, seen.incarnation)
