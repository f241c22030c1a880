"""Distinguish a silent driver from a store outage."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from streamwarden.runtime.polling import Deadline
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import POLL_S, Observation, Phase, observe

__all__ = ["Silence", "observe_for_sure"]

_SECOND_LOOK = timedelta(seconds=3)
"""How much longer than the heartbeat's interval a driver must be observed as silent. 3 s: a write to a store that is
slow after an outage."""


class Silence:
    """Debounces SILENT: a stale heartbeat counts only after heartbeat + 3 s of continuous observation.

    After a store outage or a machine's sleep, the first observation finds the old heartbeat. A healthy driver writes
    the next heartbeat a moment later.
    """

    def __init__(self) -> None:
        self._seen: tuple[str | None, datetime | None] | None = None
        self._since = 0.0

    def is_doubtful(self, workspace: Workspace, seen: Observation) -> bool:
        """Take an observation; return whether its driver is silent and must be observed for longer."""
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
        """Return how many seconds the observation must have lasted."""
        return (workspace.profile.heartbeat + _SECOND_LOOK).total_seconds()


def observe_for_sure(workspace: Workspace, job: str) -> Observation:
    """Observe a job before its driver may be ended: for some seconds, if it is silent.

    See :class:`Silence`. SILENT means that no heartbeat came in that time, or that new heartbeats had old times, as
    when clocks disagree.
    """
    silence = Silence()
    deadline = Deadline(3 * silence.lasts(workspace))
    while silence.is_doubtful(workspace, seen := observe(workspace, job)) and deadline.pause(POLL_S):
        pass
    return seen
