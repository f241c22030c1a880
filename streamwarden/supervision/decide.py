"""Watching a job: what is the matter with it, and what to do about that.

Everything here works on documents, so that the Airflow trigger, ``streamwarden supervise`` and a test decide alike, and
a supervisor may die and another go on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import RestartSpec
from streamwarden.model.status import (
    Ending,
    ErrorInfo,
    Supervision,
    utc_now,
)
from streamwarden.supervision.health_rules import Facts, Health, judge, stuck_for
from streamwarden.supervision.observe import Observation, Phase, is_here

__all__ = ["Action", "Verdict", "assess", "decide"]

_STUCK = "it lives, and has committed no batch"


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
        begun = pending_ending(seen, memory, "suspend")
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
    if stops and (seen.desired.state == "suspended" or not is_here(seen)):
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
        return _within_budget(seen, memory, why, now, error=stuck_error(seen, why))
    return Verdict(Action.WAIT, seen.reason)


def _within_budget(
    seen: Observation, memory: Supervision, why: str, now: datetime, *, error: ErrorInfo | None
) -> Verdict:
    assert seen.desired is not None
    given_up = pending_ending(seen, memory, "fail")
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


def pending_ending(seen: Observation, memory: Supervision, action: Literal["fail", "suspend"]) -> Ending | None:
    ending = memory.ending
    ours = ending is not None and (ending.incarnation, ending.action) == (seen.incarnation, action)
    return ending if ours else None


def stuck_error(seen: Observation, why: str) -> ErrorInfo:
    return ErrorInfo.of(StreamwardenError("DRIVER_STUCK", f"incarnation {seen.incarnation}: {why}"))


def _backoff(policy: RestartSpec, spent: int, seen: Observation) -> timedelta:
    # Doubled as a number: a timedelta overflows long before the budget of a day is spent, and a float by 2**1024.
    doubled = policy.backoff.total_seconds() * 2.0 ** min(spent, 64)
    wait = timedelta(seconds=min(doubled, policy.backoff_max.total_seconds()))
    # Seeded by the incarnation: every supervisor that looks computes the same moment, and jobs that a common cause
    # brought down do not all come back at once.
    jitter: float = random.Random(seen.incarnation).uniform(0.8, 1.2)
    return wait * jitter
