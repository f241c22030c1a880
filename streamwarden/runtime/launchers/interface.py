"""What a launcher does, and what it says of a driver."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from streamwarden.errors import StreamwardenError
from streamwarden.model.status import Launch

__all__ = ["KILL_S", "FoundDriver", "Launcher", "StartState"]

KILL_S = 10.0
"""Seconds that a place may take to end a driver that it is to kill."""


class StartState(StrEnum):
    """What has become of the start of a driver."""

    UNKNOWN = "unknown"
    """The launcher does not know: the job's documents decide."""
    WAITING = "waiting"
    """It was asked for, and waits for a place to run: this spends no restart, however long it takes."""
    STARTED = "started"
    """It was started, and no end is known."""
    ENDED = "ended"
    """It runs no more, and will not start again."""


@dataclass(frozen=True)
class FoundDriver:
    """A driver as its launcher sees it.

    Parameters
    ----------
    since
        When it came into this state, if known.
    reason
        Why it waits or has ended, in words of the place where it runs.
    error
        How it ended, if it did not end well.
    """

    state: StartState
    since: datetime | None = None
    reason: str = ""
    error: StreamwardenError | None = None


class Launcher(Protocol):
    """Starts drivers in one kind of place. A profile's `launcher` chooses it.

    A driver's identity is its incarnation, which is written before it is started: whoever comes later finds it by
    that alone, also if the process that has started it is gone.
    """

    def start(self, job: str, launch: Launch) -> None:
        """Start a launched driver, or ask for it; don't wait until it runs.

        Does not check for another driver: the lease decides, and the loser exits with ``LEASE_HELD``.

        Raises
        ------
        StreamwardenError
            If the place refuses it. The driver must not run then.
        OSError
            If the place can't be reached.
        """

    def find(self, job: str, incarnation: str) -> FoundDriver:
        """Return what has become of a driver. Not knowing is an answer, also when the place can't be reached."""

    def kill(self, job: str, incarnation: str) -> bool:
        """Kill a driver at once, without a chance to finish its batch; return whether it was killed.

        False also for a driver that is gone, or out of reach: the lease keeps that one from writing.
        """

    def logs(self, job: str, incarnation: str, lines: int) -> str | None:
        """Return the end of what the driver printed, where the place keeps it; None where only its machine does."""
