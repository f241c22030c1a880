"""Poll until something holds, or until the time is over."""

from __future__ import annotations

import time

__all__ = ["Deadline"]


class Deadline:
    """The end of a wait. A loop pauses by it, and gives up when the pause is refused.

    Parameters
    ----------
    timeout
        Seconds from now, by the process's own clock.

    Examples
    --------
    >>> deadline = Deadline(30)
    >>> while not ready():
    ...     if not deadline.pause(0.5):
    ...         raise TimeoutError
    """

    def __init__(self, timeout: float) -> None:
        self._at = time.monotonic() + timeout

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._at

    def pause(self, seconds: float) -> bool:
        """Sleep, and return True; return False at once if the time is over."""
        if self.passed:
            return False
        time.sleep(seconds)
        return True
