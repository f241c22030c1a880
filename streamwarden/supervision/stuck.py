"""Distinguish a stuck driver from a machine that slept."""

from __future__ import annotations

import time
from datetime import timedelta

from streamwarden.supervision.decide import Action, Verdict
from streamwarden.supervision.observe import Observation

__all__ = ["Standstill", "is_to_be_ended"]

_AT_LEAST = timedelta(minutes=1)
"""The minimum, for jobs with quick batches: Spark's own time-outs after a sleep take that long."""


def is_to_be_ended(seen: Observation, verdict: Verdict) -> bool:
    """Return whether the verdict is to kill a living driver because it is stuck."""
    return seen.phase.alive and verdict.action in (Action.RESTART, Action.FAIL)


class Standstill:
    """Debounces "stuck": a driver counts as stuck only after it was observed without a new batch for some time.

    The age of a batch is measured by wall-clock time, which goes on while a machine sleeps, or a virtual machine is
    paused. On wake-up every driver has had no batch for hours, and commits the next batch as soon as it can.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] | None = None
        self._since = 0.0

    def is_doubtful(self, seen: Observation, verdict: Verdict) -> bool:
        """Take an observation; return whether its driver is to be ended but must be observed for longer.

        The time is three times the duration of its batches, and at least a minute. It is at most the time that a try
        may take, or ``health.no_batch.critical``.
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
        # Three: a batch that the sleep interrupted may need another try, because its connections are gone.
        enough = min(
            max(_AT_LEAST, 3 * (spec.trigger.interval + longest)),
            max(spec.trigger.interval, spec.trigger.timeout),
            spec.health.no_batch.critical or timedelta.max,
        )
        return now - self._since < enough.total_seconds()
