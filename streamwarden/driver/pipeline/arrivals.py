"""A thread that lists the landing folder and plans files in time for each batch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from streamwarden.errors import StreamwardenError
from streamwarden.landing.planner import Planner
from streamwarden.model.progress import BatchProgress

__all__ = ["Arrivals"]

_log = logging.getLogger(__name__)

_LEAD_S = 1.5
"""Seconds before a trigger at which a partial batch is planned: a listing usually takes less."""

_LOOK_S = 1.0
_SHARE = 20
"""A folder on disk is listed every second, or less often if listings would take more than a twentieth of the time. On
S3, where each listing is charged, it is listed once per batch."""

_SETTLE_S = 1.0


class Arrivals:
    """Plans landed files ahead of a job's batches, until it is closed.

    Parameters
    ----------
    planner
        The job's planner.
    interval_s
        The trigger's interval, seconds. Spark starts batches at its multiples, by wall-clock time.
    wake
        Makes the query look for input now, instead of at its next trigger.
    """

    def __init__(self, planner: Planner, interval_s: float, wake: Callable[[], None]) -> None:
        self._planner = planner
        self._interval_s = interval_s
        self._wake = wake
        self._hurry = threading.Event()
        self._ended = threading.Event()
        self._took_s = 0.0
        self._trouble = ""

    def start(self) -> None:
        """Plan the current files, then continue in a thread."""
        self._planner.open()
        self._look(rest=True)
        if self._planner.unsettled:
            # These files have usually just landed: the first batch need not wait for the next trigger.
            time.sleep(_SETTLE_S)
            self._look(rest=True)
        threading.Thread(target=self._run, name="arrivals", daemon=True).start()

    def close(self) -> None:
        """Stop the thread after its current listing."""
        self._ended.set()
        self._hurry.set()

    def batch_ended(self, done: BatchProgress) -> None:
        """Plan at once what arrived during a batch that overran the interval: its trigger found nothing."""
        if done.duration_ms >= self._interval_s * 1000:
            self._hurry.set()

    def _run(self) -> None:
        while True:
            hurried = self._hurry.wait(self._pause_s())
            self._hurry.clear()
            if self._ended.is_set():
                return
            until_trigger_s = self._interval_s - time.time() % self._interval_s
            if self._look(rest=hurried or until_trigger_s <= max(_LEAD_S, 2 * self._took_s) + _LOOK_S) and hurried:
                self._wake()

    def _pause_s(self) -> float:
        until_trigger_s = self._interval_s - time.time() % self._interval_s
        if not self._planner.looks_often:
            lead_s = min(_LEAD_S + self._took_s, self._interval_s / 2)
            return until_trigger_s - lead_s if until_trigger_s > lead_s else until_trigger_s + self._interval_s - lead_s
        return max(min(_LOOK_S, self._interval_s / 2), _SHARE * self._took_s)

    def _look(self, *, rest: bool) -> int:
        began = time.monotonic()
        try:
            written = self._planner.look(rest=rest)
        except (OSError, StreamwardenError) as error:
            # The next listing may succeed; logged once, and shown in the heartbeat while it lasts.
            if str(error) != self._trouble:
                _log.warning("landed files can't be planned: %s", error)
            self._trouble = str(error)
            return 0
        except Exception:
            # Any exception: it must not end this thread, or the job would silently read nothing more.
            _log.exception("landed files can't be planned")
            return 0
        finally:
            self._took_s = time.monotonic() - began
        self._trouble = ""
        return written
