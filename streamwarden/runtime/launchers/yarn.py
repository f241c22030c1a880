"""Drivers in containers of a YARN cluster: Spark's cluster deploy mode."""

from __future__ import annotations

import re

from typing_extensions import override

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.model.status import Launch
from streamwarden.runtime.failure_signatures import OUT_OF_HEAP_EXITS, fatal_in_log
from streamwarden.runtime.launchers.interface import KILL_S, FoundDriver, Launcher, StartState
from streamwarden.runtime.launchers.submission import start_submission
from streamwarden.runtime.launchers.yarn_rest import Application, ResourceManagers, Unanswered, container_output
from streamwarden.runtime.polling import Deadline
from streamwarden.store.workspace import Workspace

__all__ = ["YarnLauncher", "tag_of"]

_BYTES_PER_LINE = 400

_EXIT_CODE = re.compile(r"exitCode: (-?\d+)")
# YARN ends a container that takes more memory than it has asked for.
_TOO_LARGE = re.compile(r"beyond the '?(?:PHYSICAL|VIRTUAL)'? memory limit", re.IGNORECASE)
_TOO_LARGE_EXITS = (-103, -104)
"""YARN's exit codes for such a container: of its virtual memory, and of its physical memory."""


def tag_of(incarnation: str) -> str:
    """Return the tag of a driver's application. YARN keeps tags in lower case."""
    return incarnation.lower()


class YarnLauncher(Launcher):
    """Submits drivers to YARN.

    A driver is found again by its application's tag, which is its incarnation: YARN is asked, and nothing is
    remembered. YARN itself starts no driver a second time: that is the supervisor's.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        assert workspace.profile.yarn is not None
        self._yarn = ResourceManagers(workspace.profile.yarn.resource_managers)

    @override
    def start(self, job: str, launch: Launch) -> None:
        """Start the submission, detached. A refusal is written as the driver's exit; see :func:`start_submission`."""
        try:
            # Asked first: `spark-submit` tries for a quarter of an hour.
            self._yarn.check()
        except Unanswered as error:
            raise StreamwardenError("YARN_UNREACHABLE", str(error)) from None
        start_submission(self._workspace, job, launch.incarnation)

    @override
    def find(self, job: str, incarnation: str) -> FoundDriver:
        """Ask YARN. It is unknown while it is being submitted, and when YARN has forgotten it."""
        try:
            found = self._yarn.tagged(tag_of(incarnation))
        except Unanswered as error:
            return FoundDriver(StartState.UNKNOWN, reason=f"YARN does not answer: {error}")
        if found is None:
            return FoundDriver(StartState.UNKNOWN, reason="YARN knows no application of it")
        if found.has_ended:
            return FoundDriver(StartState.ENDED, found.ended, _words(found), _cause(found, incarnation))
        if found.launched is None:
            reason = _words(found, "it has no container yet")
            return FoundDriver(StartState.WAITING, found.submitted, reason)
        return FoundDriver(StartState.STARTED, found.launched)

    @override
    def kill(self, job: str, incarnation: str) -> bool:
        """Have YARN kill the application; waits up to 10 s for its end."""
        try:
            found = self._yarn.tagged(tag_of(incarnation))
            if found is None or found.has_ended:
                return False
            self._yarn.kill(found.id)
            deadline = Deadline(KILL_S)
            while deadline.pause(0.25):
                found = self._yarn.tagged(tag_of(incarnation))
                if found is None or found.has_ended:
                    return found is None or found.state == "KILLED"
        except Unanswered:
            return False
        return False

    @override
    def logs(self, job: str, incarnation: str, lines: int) -> str | None:
        """Return the ends of the container's standard output (the driver's records) and standard error (Spark's).

        None once its machine has removed them. Collected logs are not looked for.
        """
        try:
            found = self._yarn.tagged(tag_of(incarnation))
        except Unanswered:
            return None
        if found is None:
            return None
        parts = []
        for name in ("stderr", "stdout"):
            text = container_output(found, name, lines * _BYTES_PER_LINE)
            if text:
                parts.append(f"--- {name}\n" + "\n".join(text.splitlines()[-lines:]))
        return "\n".join(parts) + "\n" if parts else None


def _words(application: Application, default: str = "") -> str:
    """Return what YARN says of an application, in a line."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", application.diagnostics.strip())
    said = next((line.strip() for line in text.splitlines() if line.strip()), "")
    said = said or default or f"it has ended: {'succeeded' if application.succeeded else 'failed'}"
    return f"YARN, {application.id}, {application.state}: {said[:400]}"


def _cause(application: Application, incarnation: str) -> StreamwardenError | None:
    """Return how an application has ended, if YARN's words show it."""
    text = application.diagnostics
    code: ErrorCode | None = None
    codes = {int(found) for found in _EXIT_CODE.findall(text)}
    if _TOO_LARGE.search(text) or codes & {*_TOO_LARGE_EXITS, *OUT_OF_HEAP_EXITS}:
        code = "OUT_OF_MEMORY"
    elif (fatal := fatal_in_log(text)) is not None:
        code = fatal.code
    return StreamwardenError(code, f"incarnation {incarnation}: {_words(application)}") if code else None
