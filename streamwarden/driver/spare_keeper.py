"""Keeps spares of a driver's own size on its machine."""

from __future__ import annotations

import logging
import subprocess
import threading
import time

import psutil

from streamwarden.model.spec import JobSpec
from streamwarden.runtime import spares, work_dirs
from streamwarden.runtime.launchers.local import order_spare
from streamwarden.store.layout import SPARES
from streamwarden.store.workspace import Workspace

__all__ = ["SpareKeeper"]

_log = logging.getLogger(__name__)

_LOOK_S = 5.0
_MAX_WAIT_S = 600.0
"""Seconds between two orders, at most: an order that comes to nothing doubles them."""


_SETTLE_S = 15.0
"""Seconds after the start of any driver in which none is ordered: another JVM would slow down its first batches."""


class SpareKeeper(threading.Thread):
    """Orders spares while a driver runs. The driver ends without waiting for it.

    Parameters
    ----------
    workspace, spec
        The place, and the job whose size spares have.
    stop
        Set when the driver stops.
    """

    def __init__(self, workspace: Workspace, spec: JobSpec, stop: threading.Event) -> None:
        super().__init__(name="spares", daemon=True)
        self._workspace = workspace
        self._spec = spec
        self._stopped = stop

    def run(self) -> None:
        """Look every few seconds; after an order that came to nothing, wait longer."""
        wait, ordered = _LOOK_S, False
        while not self._stopped.wait(wait):
            try:
                missing, starting = self._missing()
                if not missing:
                    # One that has become ready was worth its order.
                    wait, ordered = (wait, ordered) if starting else (_LOOK_S, False)
                    continue
                if ordered:
                    wait = min(wait * 2, _MAX_WAIT_S)
                    _log.warning(
                        "a spare has ended before it was ready; see %s", self._workspace.log_dir(SPARES, "last")
                    )
                ordered = True
            except (OSError, subprocess.SubprocessError) as error:
                _log.warning("no spare was ordered: %s", error)
                wait = min(wait * 2, _MAX_WAIT_S)

    def _missing(self) -> tuple[bool, bool]:
        """Order a spare if one is missing; return whether it was, and whether one is starting."""
        workspace, spec = self._workspace, self._spec
        with spares.lock(workspace):
            # What this process was started with, not what it has changed since.
            environment = psutil.Process().environ()
            fit = spares.fit_of(workspace, spec, environment)
            fitting = {spare: ready for spare, ready in spares.living(workspace).items() if spare.fit == fit}
            if len(fitting) >= spares.wanted(workspace, spec):
                return False, not all(fitting.values())
            if time.time() - work_dirs.newest_start(workspace) < _SETTLE_S:
                return False, False
            spares.sweep(workspace)
            _log.info("ordered the warm spare %s", order_spare(workspace, spec, fit, environment))
            return True, True
