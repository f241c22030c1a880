"""The drivers' Prometheus endpoints in the format of file-based service discovery, and a file that is kept current."""

from __future__ import annotations

import json
import logging
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

from streamwarden.errors import OUTAGES, StreamwardenError
from streamwarden.operations.status import metrics_targets
from streamwarden.store.workspace import Workspace

__all__ = ["TargetFile", "target_groups"]

_log = logging.getLogger(__name__)


def target_groups(workspace: Workspace) -> list[dict[str, Any]]:
    """Return a group for each endpoint, with the labels ``profile`` and ``job``.

    The metrics have the label ``job`` themselves; ``up`` would have none.
    """
    profile = workspace.profile.name
    found = metrics_targets(workspace)
    return [{"targets": [address], "labels": {"profile": profile, "job": job}} for job, address in found.items()]


class TargetFile:
    """A file of target groups.

    Parameters
    ----------
    workspace
        The place whose drivers are listed.
    path
        The file. Its folder exists.
    """

    def __init__(self, workspace: Workspace, path: Path) -> None:
        self._workspace = workspace
        self._path = path
        self._logged: list[dict[str, Any]] | None = None

    def write(self) -> None:
        """Write the file, by a rename, so that a reader sees the old list or the new one.

        The file is written even if nothing changed: its time shows that the list is current.
        """
        groups = target_groups(self._workspace)
        temporary = self._path.with_name(f".{self._path.name}.tmp{os.getpid()}")
        temporary.write_text(json.dumps(groups, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self._path)
        if groups != self._logged:
            listed = ", ".join(f"{group['labels']['job']} {group['targets'][0]}" for group in groups)
            _log.info("%s: %s", self._path, listed or "no drivers")
            self._logged = groups

    def keep(self, every: timedelta, stop: threading.Event) -> None:
        """Write the file again and again until `stop` is set.

        While the store does not answer, or the file cannot be written, the old list stays.
        """
        while True:
            try:
                self.write()
            except StreamwardenError as error:
                if error.code not in OUTAGES:
                    raise
                _log.warning("%s is not written: %s", self._path, error.what)
            except OSError as error:
                _log.warning("%s is not written: %s", self._path, error)
            if stop.wait(every.total_seconds()):
                return
