"""What a supervisor does: restart, stop, kill, and keep on record why."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Literal

from streamwarden.errors import StreamwardenError
from streamwarden.model.status import (
    Decision,
    Ending,
    ErrorInfo,
    Exit,
    Request,
    Restart,
    Supervision,
    utc_now,
)
from streamwarden.runtime.launcher import launch_driver
from streamwarden.runtime.processes import kill
from streamwarden.storage import Conflict
from streamwarden.store.documents import JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.decide import Action, Verdict, pending_ending, stuck_error
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

_TAKEOVER = timedelta(seconds=30)
"""How long a supervisor that said it restarts may take to launch. 30 s: a launch is two small writes and a fork."""


def record_decision(workspace: Workspace, job: str, what: str, why: str) -> None:
    """Keep what was decided, for ``streamwarden status``."""
    decision = Decision(at=utc_now(), what=what, why=why)

    def record(memory: Supervision | None) -> Supervision:
        memory = memory or Supervision()
        return memory.model_copy(update={"decisions": [*memory.decisions, decision][-_KEPT:]})

    JobDocuments(workspace.storage, job).supervision.update(record)


def record_ending(workspace: Workspace, seen: Observation, verdict: Verdict, error: ErrorInfo) -> None:
    """Keep that a job fails, or is to be suspended, so that :func:`decide` says so until that is done or undone.

    A job that failed is never done with: see :func:`clear_ending` for one that was suspended.
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
    """Forget an ending that was carried out."""
    JobDocuments(workspace.storage, job).supervision.update(
        lambda memory: (memory or Supervision()).model_copy(update={"ending": None})
    )


def restart(workspace: Workspace, seen: Observation, *, by: str, why: str | None = None) -> str | None:
    """Start the driver again after the incarnation that was observed, once.

    Kills what is left of a silent driver on this machine first, and one that lives and is stuck. A stuck one on another
    machine can only be asked to stop: it is restarted once it has. Of several supervisors that try it for the same
    ended incarnation, one does it.

    Parameters
    ----------
    why
        The verdict's reason; default the observation's.

    Returns
    -------
    str or None
        The new incarnation, or None if another supervisor was faster, or the old one could not be ended yet.
    """
    documents = JobDocuments(workspace.storage, seen.job)
    assert seen.desired is not None and seen.incarnation is not None
    after, why = seen.incarnation, why or seen.reason
    if seen.phase.alive and not end_stuck(workspace, seen, by=by, why=why):
        return None
    ours = Restart(at=utc_now(), after=after, reason=why)
    # Were fewer remembered than the budget has, it could never be spent.
    kept = max(_KEPT, seen.desired.spec.restarts.max)

    def record(memory: Supervision | None) -> Supervision:
        memory = memory or Supervision()
        others = [entry for entry in memory.restarts if entry.after != after]
        # One that said so and launched nothing since has died in between: the next supervisor does it.
        if any(entry.after == after and ours.at - entry.at < _TAKEOVER for entry in memory.restarts):
            return memory
        if pending_ending(seen, memory, "fail") is not None:
            return memory
        decision = Decision(at=ours.at, what=f"restart after {after}", why=why)
        return Supervision(restarts=[*others, ours][-kept:], decisions=[*memory.decisions, decision][-_KEPT:])

    if ours not in documents.supervision.update(record).restarts:
        return None
    kill_silent(seen)
    # It may have been stopped or deployed anew since the observation.
    desired = documents.desired.read() or seen.desired
    if desired.state == "suspended" or current_incarnation(documents) != after:
        return None
    return launch_driver(workspace, desired, by=by, reason=f"restart: {why}")


def ask_to_stop(workspace: Workspace, seen: Observation, *, by: str, why: str) -> None:
    """Ask the driver that was observed to stop between batches, unless somebody has."""
    assert seen.incarnation is not None
    documents = JobDocuments(workspace.storage, seen.job)
    if not documents.open_requests(seen.incarnation):
        request = Request(id=new_id(), kind="stop", incarnation=seen.incarnation, at=utc_now(), by=by, reason=why)
        documents.request(seen.incarnation, request.id).write(request)


def end_stuck(workspace: Workspace, seen: Observation, *, by: str, why: str) -> bool:
    """Kill a driver that lives and is stuck, and say so in its name; return whether that was done.

    Of another machine's driver that is not possible: it is asked to stop, once.
    """
    if kill_driver(seen):
        _say_for_it(JobDocuments(workspace.storage, seen.job), seen, stuck_error(seen, why))
        return True
    ask_to_stop(workspace, seen, by=by, why=why)
    return False


def kill_by_hand(workspace: Workspace, seen: Observation, *, by: str) -> bool:
    """Kill a driver that does not stop, and say so in its name; return whether that was done."""
    if not kill_driver(seen):
        return False
    killed = StreamwardenError("DRIVER_KILLED", f"incarnation {seen.incarnation}: by {by}, while it was {seen.phase}")
    _say_for_it(JobDocuments(workspace.storage, seen.job), seen, ErrorInfo.of(killed))
    return True


def _say_for_it(documents: JobDocuments, seen: Observation, error: ErrorInfo) -> None:
    """Write the exit of a driver that was just killed: who finds no process and no word concludes that nobody knows."""
    assert seen.incarnation is not None
    batch = seen.heartbeat.batch if seen.heartbeat else None
    ended = Exit(incarnation=seen.incarnation, at=utc_now(), outcome="failed", error=error, batch=batch)
    # If it got to its own end before, that word stands.
    with suppress(Conflict):
        documents.exit(seen.incarnation).create(ended)


def kill_silent(seen: Observation) -> bool:
    """Kill a driver of this machine that has been silent for longer than its lease lasts; return whether there was one.

    It may be hung or suspended, and would go on as if nothing had been when it wakes.
    """
    return seen.phase is Phase.SILENT and kill_driver(seen)


def kill_driver(seen: Observation) -> bool:
    """Kill the driver that was observed, if it is one of this machine; return whether there was one."""
    process = process_of_driver(seen)
    return process is not None and kill(process)
