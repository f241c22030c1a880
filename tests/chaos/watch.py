"""What must not be at any moment of the run, looked for all the while."""

from __future__ import annotations

import contextlib
import threading
import time

import psutil

from streamwarden.errors import StreamwardenError
from streamwarden.runtime.spares import RUN, Assignment
from streamwarden.store.layout import SPARES
from streamwarden.supervision.observe import Phase
from tests.chaos.plan import JOBS
from tests.chaos.world import World

_FRESH_S = 2.5
"""How old the heartbeat of a driver that works may be: it is written every second."""


class Watcher(threading.Thread):
    """Looks at drivers and supervise tasks twice a second, and keeps what it finds wrong, each thing once.

    A driver that ends must be one that a fault was meant to end. Two drivers of a job never work at once, and no driver
    is started beside a living one. No job is watched by two tasks.
    """

    def __init__(self, world: World) -> None:
        super().__init__(name="watcher", daemon=True)
        self.world = world
        self.looks = 0
        self.second_writers: dict[str, str] = {}
        self.killed_healthy: dict[str, str] = {}
        self.doubly_watched: dict[str, str] = {}
        self._looked_at = time.monotonic()
        self._longest = 0.0

    @property
    def blind_s(self) -> float:
        """The longest time without a whole look, until now: a watcher that has died looks at nothing."""
        return max(self._longest, time.monotonic() - self._looked_at)

    def run(self) -> None:
        """Look until the run is over."""
        while not self.world.over.wait(0.5):
            with contextlib.suppress(StreamwardenError, OSError):
                working = self._working_drivers()
                for job in JOBS:
                    self._look(job, working.get(job, set()))
                self.looks += 1
                now = time.monotonic()
                self._longest, self._looked_at = max(self._longest, now - self._looked_at), now

    def _look(self, job: str, working: set[str]) -> None:
        documents = self.world.documents(job)
        if len(working) > 1:
            self.second_writers.setdefault(f"{job} {sorted(working)}", f"{job}: drivers {sorted(working)} work at once")
        incarnations = documents.incarnations()
        for incarnation in incarnations[:-1]:
            if not self.world.is_meant(job, incarnation):
                ended = documents.exit(incarnation).read()
                how = f"ended as {ended.outcome}: {ended.error.code if ended.error else ''}" if ended else "no exit"
                self.killed_healthy.setdefault(
                    incarnation, f"{job}: {incarnation} was followed by another, and no fault was meant for it ({how})"
                )
        for incarnation in incarnations[-3:]:
            left = documents.exit(incarnation).read()
            if left is not None and left.error is not None and left.error.code == "LEASE_HELD":
                self.second_writers.setdefault(incarnation, f"{job}: {incarnation} was started beside a living driver")
        seen = self.world.seen(job)
        # A silent one is frozen, as some faults have it: that nobody replaces it is seen by its successor above.
        ended = not seen.phase.alive and seen.phase is not Phase.SILENT
        if seen.incarnation is not None and ended and not self.world.is_meant(job, seen.incarnation):
            self.killed_healthy.setdefault(
                seen.incarnation,
                f"{job}: {seen.incarnation} is {seen.phase} ({seen.reason}), and no fault was meant for it",
            )
        found = self.world.supervisions(job)
        if len({one.run for one in found}) > 1:
            runs = sorted(one.run for one in found)
            self.doubly_watched.setdefault(f"{job} {runs}", f"{job} is watched by two runs: {found}")

    def _working_drivers(self) -> dict[str, set[str]]:
        """Return by job the incarnations whose process lives and whose heartbeat is fresh."""
        found: dict[str, set[str]] = {}
        root = str(self.world.workspace.root)
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            if "streamwarden.driver" not in words or root not in words:
                continue
            if process.info["status"] in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                continue
            with contextlib.suppress(ValueError, IndexError, StreamwardenError):
                job, incarnation = words[words.index("--job") + 1], words[words.index("--incarnation") + 1]
                if job == SPARES:
                    # A spare that was taken has its job from a file.
                    given = self.world.workspace.scratch_dir(job, incarnation) / RUN
                    assignment = Assignment.model_validate_json(given.read_text()) if given.exists() else None
                    if assignment is None:
                        continue
                    job, incarnation = assignment.job, assignment.incarnation
                heartbeat = self.world.documents(job).heartbeat(incarnation).read()
                if heartbeat is not None and time.time() - heartbeat.at.timestamp() < _FRESH_S:
                    found.setdefault(job, set()).add(incarnation)
        return found
