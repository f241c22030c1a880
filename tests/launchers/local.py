"""Drivers as processes of this machine: found again by process id, start time and boot."""

from __future__ import annotations

from tests.launchers.place import LauncherPlace

__all__ = ["LocalPlace"]


class LocalPlace(LauncherPlace):
    """Drivers are processes of this machine."""

    NO_ROOM = "a process of this machine always starts"

    def restart_all_else(self) -> None:
        """Nothing else is there: not even the process that has started it is needed any more."""
