"""Tell a driver that says nothing from one that could not be heard."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Observation, Phase, observe

__all__ = ["Silence", "observe_for_sure"]

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
