"""Decide what a supervisor does next about a job, and judge the job's health.

All functions work on documents. So the Airflow trigger, ``streamwarden supervise`` and a test decide alike, and a new
supervisor continues where a dead supervisor ended.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.spec import RestartSpec
from streamwarden.model.supervision import Ending, Supervision
from streamwarden.supervision.health_rules import Facts, Health, judge, stuck_for
from streamwarden.supervision.observe import Observation, Phase, is_here

__all__ = ["Action", "Verdict", "assess", "decide", "found_no_cluster", "pending_ending", "stuck_error"]

_AWAY: frozenset[ErrorCode] = frozenset({"YARN_UNREACHABLE", "KUBERNETES_UNREACHABLE"})
_STUCK = "it is alive but has committed no batch"


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
        For RESTART: the end of the back-off.
    error
        For FAIL and SUSPEND: the error to raise.
    savepoint
        For SUSPEND: whether to take a savepoint with the stop.
    """

    action: Action
    why: str
    not_before: datetime | None = None
    error: ErrorInfo | None = None
    savepoint: bool = False


def decide(seen: Observation, memory: Supervision, *, now: datetime | None = None) -> Verdict:
    """Return the next action for an observation.

    Parameters
    ----------
    seen
        The observation.
    memory
        Earlier restarts, for back-off and budget; and whether the job was given up.
    now
        The time; default the current time.
    """
    now = now or utc_now()
    if seen.desired is None or seen.phase is Phase.NOT_DEPLOYED:
        error = ErrorInfo.of(StreamwardenError("NOT_DEPLOYED", seen.job))
        return Verdict(Action.FAIL, seen.reason, error=error)
    if seen.operation is not None:
        # The operation stops and starts drivers itself, and is responsible for the job until it ends.
        return Verdict(Action.WAIT, f"{seen.operation.kind} {seen.operation.id} is working on the job")
    if seen.phase.alive:
        return _judge_living(seen, memory, now)
    if seen.desired.state == "suspended":
        begun = pending_ending(seen, memory, "suspend")
        if begun is not None:
            # The driver stopped after its supervisor's time-out, or that supervisor died: the suspension is incomplete.
            return Verdict(Action.SUSPEND, begun.why, error=begun.error, savepoint=begun.savepoint)
        return Verdict(Action.FINISH, f"{seen.reason}, and the job is to be suspended")
    if seen.error is not None and not seen.error.retryable:
        return Verdict(Action.FAIL, f"{seen.reason}; a restart can't help", error=seen.error)
    return _within_budget(seen, memory, seen.reason, now, error=seen.error)


_NEXT = {
    Action.WAIT: "its supervisor waits",
    Action.RESTART: "its supervisor restarts it, if one runs",
    Action.STOP: "it is being stopped",
    Action.FINISH: "it stays stopped",
    Action.FAIL: "it stays down until somebody deploys it",
    Action.SUSPEND: "it is being suspended",
}
"""The words for each action in an alarm."""


def assess(seen: Observation, memory: Supervision, verdict: Verdict, *, now: datetime | None = None) -> Health:
    """Return a job's health. While an operation works on the job, a stopping or ended driver is no finding.

    Parameters
    ----------
    seen, memory
        As for :func:`decide`.
    verdict
        The result of :func:`decide`.
    """
    if seen.desired is None:
        return Health()
    down = ""
    if seen.operation is None and seen.phase is not Phase.NOT_DEPLOYED:
        if not seen.phase.alive:
            down = f"the driver is {seen.phase}: {seen.reason}; {_NEXT[verdict.action]}"
        elif verdict.action is Action.FAIL:
            # The driver lives, but the job was given up: it counts as down, since the driver is about to be ended.
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
        held=seen.held,
    )


def _judge_living(seen: Observation, memory: Supervision, now: datetime) -> Verdict:
    assert seen.desired is not None
    health = seen.desired.spec.health
    stops = seen.phase is Phase.STOPPING or seen.asked_at is not None
    if stops and (seen.desired.state == "suspended" or not is_here(seen)):
        return Verdict(Action.WAIT, seen.reason)
    if seen.desired.state == "suspended":
        # The driver was launched during a stop, which found no driver to ask.
        return Verdict(Action.STOP, "the job is to be suspended, but its driver was not asked to stop")
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
    # Also for a driver that stops although its job must run: the requester may have given up while its batch hangs.
    stuck = stuck_for(_facts(seen, memory, now))
    # A driver that waits for its source table only raises an alarm. A restart does not create the table, and jobs may
    # be deployed in any order.
    if stuck is not None and health.restart_when_stuck and seen.phase is not Phase.WAITING:
        why = f"{_STUCK} for {stuck.total_seconds():.0f} s"
        return _within_budget(seen, memory, why, now, error=stuck_error(seen, why))
    return Verdict(Action.WAIT, seen.reason)


def found_no_cluster(seen: Observation) -> bool:
    """Return whether the observed start found nobody who could run a driver: the job is not what has to be spared."""
    return seen.error is not None and seen.error.code in _AWAY


def _within_budget(
    seen: Observation, memory: Supervision, why: str, now: datetime, *, error: ErrorInfo | None
) -> Verdict:
    assert seen.desired is not None
    given_up = pending_ending(seen, memory, "fail")
    if given_up is not None:
        # A failed job stays down until it is deployed again, even after its restarts leave the window.
        return Verdict(Action.FAIL, given_up.why, error=given_up.error)
    policy = seen.desired.spec.restarts
    if policy.max and found_no_cluster(seen):
        tries = itertools.takewhile(lambda entry: not entry.counts, reversed(memory.restarts))
        return Verdict(Action.RESTART, why, not_before=seen.since + _backoff(policy, len(list(tries)), seen))
    spent = [entry for entry in memory.restarts if entry.counts and now - entry.at < policy.window]
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
    # A living driver has no end to count the back-off from, and has already cost enough time.
    not_before = None if seen.phase.alive else seen.since + _backoff(policy, len(spent), seen)
    return Verdict(Action.RESTART, why, not_before=not_before)


def pending_ending(seen: Observation, memory: Supervision, action: Literal["fail", "suspend"]) -> Ending | None:
    """Return the end of this incarnation that was begun and is not finished; None if there is none."""
    ending = memory.ending
    ours = ending is not None and (ending.incarnation, ending.action) == (seen.incarnation, action)
    return ending if ours else None


def stuck_error(seen: Observation, why: str) -> ErrorInfo:
    """Return ``DRIVER_STUCK`` for an incarnation, with the reason."""
    return ErrorInfo.of(StreamwardenError("DRIVER_STUCK", f"incarnation {seen.incarnation}: {why}"))


def _backoff(policy: RestartSpec, spent: int, seen: Observation) -> timedelta:
    # Doubled as a float: a timedelta overflows long before the budget of a day is spent, a float at 2**1024.
    doubled = policy.backoff.total_seconds() * 2.0 ** min(spent, 64)
    wait = timedelta(seconds=min(doubled, policy.backoff_max.total_seconds()))
    # Seeded by the incarnation: every supervisor computes the same moment, and jobs with a common cause of failure do
    # not all restart at once.
    jitter: float = random.Random(seen.incarnation).uniform(0.8, 1.2)
    return wait * jitter
