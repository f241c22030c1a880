"""Whether a driver that commits nothing is stuck, or its machine was."""

from __future__ import annotations

import time
from datetime import timedelta

from streamwarden.supervision.decide import Action, Verdict
from streamwarden.supervision.observe import Observation

__all__ = ["Standstill", "is_to_be_ended"]

_AT_LEAST = timedelta(minutes=1)
"""Of jobs with quick batches: Spark's own time-outs after a sleep take that long."""


def is_to_be_ended(seen: Observation, verdict: Verdict) -> bool:
    """Tell whether a verdict is that a driver that lives is stuck, and shall be killed."""
    return seen.phase.alive and verdict.action in (Action.RESTART, Action.FAIL)


class Standstill:
    """Tells a driver that is stuck from one whose machine slept: who looks must have seen it stand still for a while.

    How old a batch is goes by the time of day, which does not stop while a machine sleeps, or a virtual one is paused.
    At its wake every driver has had no batch for hours, and commits the next one as soon as it can.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] | None = None
        self._since = 0.0

    def is_doubtful(self, seen: Observation, verdict: Verdict) -> bool:
        """Take an observation; tell whether it is of a driver to be ended that had better be looked at for longer.

        That is: for three times as long as its batches take, a minute at least, and no longer than one try may take, or
        ``health.no_batch.critical``.
        """
        recent = seen.progress.recent if seen.progress else []
        last = recent[-1] if recent else None
        idle_at = seen.heartbeat.idle_at if seen.heartbeat else None
        # By the process's own clock, which does not count a sleep.
        now, this = time.monotonic(), (seen.incarnation, last.batch if last else None, idle_at)
        if this != self._seen:
            self._seen, self._since = this, now
        if not is_to_be_ended(seen, verdict) or seen.desired is None:
            return False
        spec = seen.desired.spec
        longest = timedelta(milliseconds=max((batch.duration_ms for batch in recent), default=0))
        # Three: one that the sleep cut off may have to be tried again, by connections that have gone.
        enough = min(
            max(_AT_LEAST, 3 * (spec.trigger.interval + longest)),
            max(spec.trigger.interval, spec.trigger.timeout),
            spec.health.no_batch.critical or timedelta.max,
        )
        return now - self._since < enough.total_seconds()
