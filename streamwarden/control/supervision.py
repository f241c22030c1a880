"""Watching a job: what is the matter with it, and what to do about that.

Everything here works on documents, so that the Airflow trigger, ``streamwarden supervise`` and a test decide alike, and
a supervisor may die and another go on.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel

from streamwarden.control.documents import (
    Decision,
    Desired,
    Document,
    Ending,
    ErrorInfo,
    Exit,
    Heartbeat,
    JobDocuments,
    Launch,
    Operation,
    Progress,
    Request,
    Restart,
    Supervision,
    utc_now,
)
from streamwarden.control.health.rules import Facts, Health, judge, stuck_for
from streamwarden.control.ids import new_id
from streamwarden.control.launcher import launch_driver
from streamwarden.control.lease import lease_is_live
from streamwarden.control.operation import active_operation
from streamwarden.control.processes import ProcessRef, is_alive, kill
from streamwarden.control.spec import RestartSpec
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError
from streamwarden.storage import Conflict

__all__ = [
    "START_TIMEOUT",
    "Action",
    "Claim",
    "Observation",
    "Phase",
    "Silence",
    "Verdict",
    "ask_to_stop",
    "assess",
    "claim",
    "clear_ending",
    "current_claim",
    "decide",
    "end_stuck",
    "kill_by_hand",
    "kill_driver",
    "kill_silent",
    "note_deferred",
    "observe",
    "observe_for_sure",
    "process_of_driver",
    "record_decision",
    "record_ending",
    "restart",
]

START_TIMEOUT = timedelta(seconds=90)
"""How long a launched process may take to its first heartbeat. 90 s: a JVM and Python on a machine under heavy load.
Where leases are long, it may take longer."""

_AFTER_LEASE = timedelta(seconds=30)
"""How much longer than a lease it may take at least: before it speaks, it waits until a dead driver's has run out, and
2 s more. The rest of the 30 s is for its own start."""

_KEPT = 50

_STUCK = "it lives, and has committed no batch"

_TAKEOVER = timedelta(seconds=30)
"""How long a supervisor that said it restarts may take to launch. 30 s: a launch is two small writes and a fork."""


class Phase(StrEnum):
    """What a job is doing."""

    NOT_DEPLOYED = "not deployed"
    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DEAD = "dead"
    SILENT = "silent"

    @property
    def alive(self) -> bool:
        """Whether a driver process does the job's work now, as far as it can be told."""
        return self in _ALIVE


_ALIVE = {Phase.STARTING, Phase.WAITING, Phase.RUNNING, Phase.RETRYING, Phase.STOPPING}


@dataclass(frozen=True)
class Observation:
    """A job as its documents show it at one moment.

    Parameters
    ----------
    phase
        What it is doing.
    reason
        Why this phase was concluded, in words.
    since
        When it was last known to be otherwise: the exit, or the last sign of life.
    error
        The last error, for the phases that have one.
    operation
        What is being done to the job, such as a restore, while it is.
    asked_at
        For a driver that lives though its job is suspended: when it was first asked to stop; None if it never was.
    """

    job: str
    phase: Phase
    reason: str
    since: datetime
    desired: Desired | None = None
    incarnation: str | None = None
    launch: Launch | None = None
    heartbeat: Heartbeat | None = None
    progress: Progress | None = None
    exit: Exit | None = None
    error: ErrorInfo | None = None
    operation: Operation | None = None
    asked_at: datetime | None = None


class Action(StrEnum):
    """What a supervisor does next."""

    WAIT = "wait"
    RESTART = "restart"
    STOP = "stop"
    FINISH = "finish"
    FAIL = "fail"
    SUSPEND = "suspend"


@dataclass(frozen=True)
class Verdict:
    """A decision with its reason.

    Parameters
    ----------
    action
        What to do.
    why
        In words.
    not_before
        For RESTART: when the back-off has passed.
    error
        For FAIL and SUSPEND: what to raise.
    savepoint
        For SUSPEND: whether to take a savepoint with the stop.
    """

    action: Action
    why: str
    not_before: datetime | None = None
    error: ErrorInfo | None = None
    savepoint: bool = False


_LOOK_S = 0.25

_SECOND_LOOK = timedelta(seconds=3)
"""How much longer than a heartbeat's interval a driver must be seen silent. 3 s: a write to a store that is slow as it
comes back."""


class Silence:
    """Tells a driver that is silent from one that could not be heard: who looks must have looked for a while.

    After an outage of the store, or a machine that slept, the first look finds the heartbeat of before, and a healthy
    driver's next one comes a moment later.
    """

    def __init__(self) -> None:
        self._seen: tuple[str | None, datetime | None] | None = None
        self._since = 0.0

    def is_doubtful(self, workspace: Workspace, seen: Observation) -> bool:
        """Take an observation; tell whether it is of a silent driver that had better be looked at again."""
        if seen.phase is not Phase.SILENT:
            self._seen = None
            return False
        # By the process's own clock, which does not count a sleep.
        now, this = time.monotonic(), (seen.incarnation, seen.heartbeat.at if seen.heartbeat else None)
        if this != self._seen:
            self._seen, self._since = this, now
        return now - self._since < self.lasts(workspace)

    @staticmethod
    def lasts(workspace: Workspace) -> float:
        """Return for how many seconds who looks must have looked."""
        return (workspace.profile.heartbeat + _SECOND_LOOK).total_seconds()


def observe_for_sure(workspace: Workspace, job: str) -> Observation:
    """Observe a job before its driver is perhaps ended: for some seconds, if it is silent.

    See :class:`Silence`. A silent one is one that has not spoken all that time; or that has, several times, always of
    long ago, as where clocks do not agree.
    """
    silence = Silence()
    deadline = time.monotonic() + 3 * silence.lasts(workspace)
    while silence.is_doubtful(workspace, seen := observe(workspace, job)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return seen


class Claim(BaseModel):
    """Who supervises a job now. A fence: what an earlier supervisor still does late must not hit a later one's job.

    Parameters
    ----------
    holder
        Names the supervisor; for Airflow its DAG run.
    attempt
        Which try of the holder's it is.
    granted
        How many tries the holder was granted. It grows when a person asks for another one, and only then.
    at
        Since when.
    deferred
        Whether the holder's trigger watches the job now. Otherwise its task is to do something, or has yet to begin.
    deferred_at
        Since when that is so or not; None where it has not changed since `at`.
    """

    holder: str
    attempt: int
    granted: int = 0
    at: datetime
    deferred: bool = False
    deferred_at: datetime | None = None


def claim(workspace: Workspace, job: str, ours: Claim, *, over_own: bool = True) -> Claim | None:
    """Become the supervisor of a job, and return the claim that stood before.

    Does not ask whether the earlier one agrees: the newest supervisor is the one.

    Parameters
    ----------
    over_own
        False leaves a claim alone that this very holder has already.
    """
    before: list[Claim | None] = []

    def take(found: Claim | None) -> Claim:
        before.append(found)
        return found if found is not None and found.holder == ours.holder and not over_own else ours

    _claim_document(workspace, job).update(take)
    return before[-1]


def current_claim(workspace: Workspace, job: str) -> Claim | None:
    """Return who supervises a job, or None if nobody ever did."""
    return _claim_document(workspace, job).read()


def note_deferred(workspace: Workspace, job: str, *, holder: str, attempt: int, deferred: bool) -> None:
    """Keep in the claim whether its holder's trigger watches the job; a claim of another holder or try is left alone.

    Parameters
    ----------
    holder, attempt
        Of the claim that is meant.
    deferred
        Whether it does.
    """
    document = _claim_document(workspace, job)
    found = document.read_versioned()
    if found is None or (found[0].holder, found[0].attempt) != (holder, attempt) or found[0].deferred == deferred:
        return
    # Who was faster has claimed the job, or is the same trigger in a second triggerer.
    with suppress(Conflict):
        document.replace(found[0].model_copy(update={"deferred": deferred, "deferred_at": utc_now()}), found[1])


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


def observe(workspace: Workspace, job: str) -> Observation:
    """Read a job's documents and conclude what it is doing. Writes nothing."""
    documents = JobDocuments(workspace.storage, job)
    now = utc_now()
    operation = active_operation(workspace, job)
    desired = documents.desired.read()
    incarnation = _current_incarnation(documents)
    if desired is None or incarnation is None:
        return Observation(job, Phase.NOT_DEPLOYED, "no driver was ever launched", now, desired=desired)
    launch = documents.launch(incarnation).read()
    # Read before the exit, so that a driver that ends in between shows as ended.
    heartbeat = documents.heartbeat(incarnation).read()
    progress = documents.progress(incarnation).read()
    ended = documents.exit(incarnation).read()
    phase, reason, since, error = _conclude(workspace, incarnation, launch, heartbeat, ended, now)
    if phase is Phase.DEAD:
        # It may have written its end between the two looks, and then its last error says more.
        ended = documents.exit(incarnation).read()
        phase, reason, since, error = _conclude(workspace, incarnation, launch, heartbeat, ended, now)
    if operation is None and not phase.alive:
        # One that has begun since is why it is down.
        operation = active_operation(workspace, job)
    asked: list[datetime] = []
    if phase.alive and desired.state == "suspended":
        # Only then: a listing at each look of every job would cost more than it tells.
        asked = [request.at for request in documents.open_requests(incarnation)]
    return Observation(
        job=job,
        phase=phase,
        reason=reason,
        since=since,
        desired=desired,
        incarnation=incarnation,
        launch=launch,
        heartbeat=heartbeat,
        progress=progress,
        exit=ended,
        error=error,
        operation=operation,
        asked_at=min(asked, default=None),
    )


def decide(seen: Observation, memory: Supervision, *, now: datetime | None = None) -> Verdict:
    """Conclude from an observation what to do.

    Parameters
    ----------
    seen
        The observation.
    memory
        Earlier restarts, for back-off and budget; and whether the job was given up.
    now
        The time; default the real one.
    """
    now = now or utc_now()
    if seen.desired is None or seen.phase is Phase.NOT_DEPLOYED:
        error = ErrorInfo.of(StreamwardenError("NOT_DEPLOYED", seen.job))
        return Verdict(Action.FAIL, seen.reason, error=error)
    if seen.operation is not None:
        # It stops and starts drivers itself, and answers for what becomes of the job.
        return Verdict(Action.WAIT, f"{seen.operation.kind} {seen.operation.id} is working on the job")
    if seen.phase.alive:
        return _judge_living(seen, memory, now)
    if seen.desired.state == "suspended":
        begun = _ending(seen, memory, "suspend")
        if begun is not None:
            # The driver took longer to stop than its supervisor waited, or that one died: the rest is still to be done.
            return Verdict(Action.SUSPEND, begun.why, error=begun.error, savepoint=begun.savepoint)
        return Verdict(Action.FINISH, f"{seen.reason}, and the job is to be suspended")
    if seen.error is not None and not seen.error.retryable:
        return Verdict(Action.FAIL, f"{seen.reason}; starting again can't help", error=seen.error)
    return _within_budget(seen, memory, seen.reason, now, error=seen.error)


_NEXT = {
    Action.WAIT: "its supervisor waits",
    Action.RESTART: "it is restarted",
    Action.STOP: "it is being stopped",
    Action.FINISH: "it stays stopped",
    Action.FAIL: "it stays down until somebody deploys it",
    Action.SUSPEND: "it is being suspended",
}
"""What an alarm says of each action."""


def assess(seen: Observation, memory: Supervision, verdict: Verdict, *, now: datetime | None = None) -> Health:
    """Conclude how well a job is. While an operation works on it, its being down, or stopping, is no finding.

    Parameters
    ----------
    seen, memory
        As for :func:`decide`.
    verdict
        What that decided.
    """
    if seen.desired is None:
        return Health()
    down = ""
    if seen.operation is None and seen.phase is not Phase.NOT_DEPLOYED:
        if not seen.phase.alive:
            down = f"the driver is {seen.phase}: {seen.reason}; {_NEXT[verdict.action]}"
        elif verdict.action is Action.FAIL:
            # It is given up while it lives: as good as down, and about to be.
            down = f"the driver is {seen.phase}: {verdict.why}; {_NEXT[verdict.action]}"
    return judge(_facts(seen, memory, now or utc_now(), down=down, final=verdict.action is Action.FAIL))


def _facts(seen: Observation, memory: Supervision, now: datetime, *, down: str = "", final: bool = False) -> Facts:
    assert seen.desired is not None
    stopping_since = None
    if seen.desired.state == "suspended" and seen.phase.alive and seen.operation is None:
        stopping_since = seen.asked_at or seen.desired.updated_at
    return Facts(
        now=now,
        desired=seen.desired,
        alive=seen.phase.alive,
        heartbeat=seen.heartbeat,
        progress=seen.progress,
        launched_at=seen.launch.at if seen.launch else None,
        restarts=memory.restarts,
        down=down,
        final=final,
        stopping_since=stopping_since,
    )


def _judge_living(seen: Observation, memory: Supervision, now: datetime) -> Verdict:
    assert seen.desired is not None
    health = seen.desired.spec.health
    stops = seen.phase is Phase.STOPPING or seen.asked_at is not None
    if stops and (seen.desired.state == "suspended" or not _is_here(seen)):
        return Verdict(Action.WAIT, seen.reason)
    if seen.desired.state == "suspended":
        # Launched while somebody stopped the job, who found no driver to ask.
        return Verdict(Action.STOP, "the job is to be suspended, and its driver was not asked to stop")
    rows = seen.progress.last.state_rows if seen.progress and seen.progress.last else 0
    limit = health.state_rows.critical
    if limit is not None and rows >= limit and health.on_state_limit != "warn" and not stops:
        what = f"{seen.job}: {rows:,} keys in the state; health.state_rows.critical is {limit:,}"
        error = ErrorInfo.of(StreamwardenError("STATE_LIMIT_REACHED", what))
        return Verdict(
            Action.SUSPEND,
            f"{rows:,} keys in the state, the limit is {limit:,}",
            error=error,
            savepoint=health.on_state_limit == "savepoint_and_stop",
        )
    # Also of one that stops, though its job is to run: what asked it to may have given up, and it hangs in its batch.
    stuck = stuck_for(_facts(seen, memory, now))
    # One that waits for its source table is told of, and that's all: no restart brings the table, and jobs may be
    # deployed in any order.
    if stuck is not None and health.restart_when_stuck and seen.phase is not Phase.WAITING:
        why = f"{_STUCK} for {stuck.total_seconds():.0f} s"
        return _within_budget(seen, memory, why, now, error=_stuck_error(seen, why))
    return Verdict(Action.WAIT, seen.reason)


def _within_budget(
    seen: Observation, memory: Supervision, why: str, now: datetime, *, error: ErrorInfo | None
) -> Verdict:
    assert seen.desired is not None
    given_up = _ending(seen, memory, "fail")
    if given_up is not None:
        # Also when the restarts that spent the budget are old: nobody has seen to the job since.
        return Verdict(Action.FAIL, given_up.why, error=given_up.error)
    policy = seen.desired.spec.restarts
    spent = [entry for entry in memory.restarts if now - entry.at < policy.window]
    if len(spent) >= policy.max:
        last = f"{error.code}: {error.what}" if error else why
        remedy = f"{error.remedy} Then deploy the job again." if error else None
        spent_error = ErrorInfo.of(
            StreamwardenError(
                "RESTART_BUDGET_SPENT",
                f"{seen.job}: {len(spent)} restarts within {policy.window} (restarts.max {policy.max}). Last: {last}",
                remedy=remedy,
            ),
            traceback=error.traceback if error else "",
        )
        return Verdict(Action.FAIL, why, error=spent_error)
    # A living one has no end to count from, and has cost time enough.
    not_before = None if seen.phase.alive else seen.since + _backoff(policy, len(spent), seen)
    return Verdict(Action.RESTART, why, not_before=not_before)


def _ending(seen: Observation, memory: Supervision, action: Literal["fail", "suspend"]) -> Ending | None:
    ending = memory.ending
    ours = ending is not None and (ending.incarnation, ending.action) == (seen.incarnation, action)
    return ending if ours else None


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
        if _ending(seen, memory, "fail") is not None:
            return memory
        decision = Decision(at=ours.at, what=f"restart after {after}", why=why)
        return Supervision(restarts=[*others, ours][-kept:], decisions=[*memory.decisions, decision][-_KEPT:])

    if ours not in documents.supervision.update(record).restarts:
        return None
    kill_silent(seen)
    # It may have been stopped or deployed anew since the observation.
    desired = documents.desired.read() or seen.desired
    if desired.state == "suspended" or _current_incarnation(documents) != after:
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
        _say_for_it(JobDocuments(workspace.storage, seen.job), seen, _stuck_error(seen, why))
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


def _stuck_error(seen: Observation, why: str) -> ErrorInfo:
    return ErrorInfo.of(StreamwardenError("DRIVER_STUCK", f"incarnation {seen.incarnation}: {why}"))


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


def process_of_driver(seen: Observation) -> ProcessRef | None:
    """Return the process of the driver that was observed, as far as it is known."""
    return seen.heartbeat.process if seen.heartbeat else seen.launch.process if seen.launch else None


def _is_here(seen: Observation) -> bool:
    """Tell whether the driver that was observed is a process of this machine, which can be killed."""
    process = process_of_driver(seen)
    return process is not None and is_alive(process) is not None


def _claim_document(workspace: Workspace, job: str) -> Document[Claim]:
    return Document(
        workspace.storage, f"{JobDocuments(workspace.storage, job).base}/supervisor.json", Claim, derived=True
    )


def _current_incarnation(documents: JobDocuments) -> str | None:
    lease = documents.lease.read()
    # Of two drivers started at once the newer may be the one that was refused: the holder is the current one.
    # One that has written its end and not given it back yet is no longer it, if another was launched after it.
    if lease is not None and lease_is_live(lease) and documents.exit(lease.incarnation).read() is None:
        return lease.incarnation
    launched = documents.incarnations()
    for incarnation in reversed(launched):
        ended = documents.exit(incarnation).read()
        # One that was refused the lease never was the job's driver; what became of the holder counts.
        if ended is None or ended.error is None or ended.error.code != "LEASE_HELD":
            return incarnation
    return launched[-1] if launched else None


def _conclude(
    workspace: Workspace,
    incarnation: str,
    launch: Launch | None,
    heartbeat: Heartbeat | None,
    ended: Exit | None,
    now: datetime,
) -> tuple[Phase, str, datetime, ErrorInfo | None]:
    if ended is not None:
        if ended.outcome == "stopped":
            return Phase.STOPPED, f"stopped after batch {ended.batch}", ended.at, None
        what = f"{ended.error.code}: {ended.error.what.splitlines()[0]}" if ended.error else "failed"
        return Phase.FAILED, what, ended.at, ended.error
    process = heartbeat.process if heartbeat else launch.process if launch else None
    last_sign = heartbeat.at if heartbeat else launch.at if launch else now
    if process is not None and is_alive(process) is False:
        code = "DRIVER_DIED" if heartbeat else "DRIVER_DID_NOT_START"
        died = StreamwardenError(code, f"incarnation {incarnation}, pid {process.pid}")
        return Phase.DEAD, f"its process {process.pid} is gone", last_sign, ErrorInfo.of(died)
    limit = workspace.profile.lease if heartbeat else max(START_TIMEOUT, workspace.profile.lease + _AFTER_LEASE)
    age = now - last_sign
    if age > limit:
        silent = StreamwardenError(
            "DRIVER_SILENT", f"incarnation {incarnation}: nothing for {age.total_seconds():.0f} s"
        )
        return Phase.SILENT, f"no heartbeat for {age.total_seconds():.0f} s", last_sign, ErrorInfo.of(silent)
    if heartbeat is None:
        return Phase.STARTING, "launched, no heartbeat yet", last_sign, None
    # A driver's own states are phases of its job, by the same names.
    phase = Phase(heartbeat.state.value)
    return phase, heartbeat.reason or phase.value, heartbeat.at, None


def _backoff(policy: RestartSpec, spent: int, seen: Observation) -> timedelta:
    # Doubled as a number: a timedelta overflows long before the budget of a day is spent, and a float by 2**1024.
    doubled = policy.backoff.total_seconds() * 2.0 ** min(spent, 64)
    wait = timedelta(seconds=min(doubled, policy.backoff_max.total_seconds()))
    # Seeded by the incarnation: every supervisor that looks computes the same moment, and jobs that a common cause
    # brought down do not all come back at once.
    jitter: float = random.Random(seen.incarnation).uniform(0.8, 1.2)
    return wait * jitter
