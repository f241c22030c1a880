"""The ends of a driver's logs, by incarnation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamwarden.model.status import Exit, Launch
from streamwarden.redaction import redacted
from streamwarden.runtime.launchers.launch import launcher_of
from streamwarden.runtime.log_lines import readable
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["LogEnds", "log_ends"]

_LISTED = 30
_BYTES = 40_000
_LINES = 200
_FILES = ("driver", "spark", "console")


@dataclass(frozen=True)
class LogEnds:
    """The ends of the logs of one incarnation.

    Parameters
    ----------
    incarnations
        The newest ones, newest first, each with its launch and its exit.
    chosen
        The one whose logs are shown; empty without any.
    ends
        Name of a log, and its last lines.
    """

    incarnations: list[tuple[str, Launch | None, Exit | None]]
    chosen: str
    ends: list[tuple[str, str]]


def log_ends(workspace: Workspace, job: str, incarnation: str) -> LogEnds | None:
    """Return the ends of the logs of an incarnation, or of the newest one; None if there is no such incarnation."""
    documents = JobDocuments(workspace.storage, job)
    names = documents.incarnations()[::-1]
    if incarnation and incarnation not in names:
        return None
    found = [(name, documents.launch(name).read(), documents.exit(name).read()) for name in names[:_LISTED]]
    chosen = incarnation or (names[0] if names else "")
    ends = []
    for name in _FILES if chosen else ():
        text = _end(workspace.log_dir(job, chosen) / f"{name}.log", raw=name != "driver")
        if text:
            # The JVM writes spark.log itself.
            ends.append((name, redacted(text)))
    if chosen and not ends and (kept := launcher_of(workspace).logs(job, chosen, _LINES)):
        # The driver's files are on another machine.
        ends.append(("container", redacted("\n".join(map(readable, kept.splitlines())))))
    return LogEnds(found, chosen, ends)


def _end(path: Path, *, raw: bool) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            begin = max(stream.tell() - _BYTES, 0)
            stream.seek(begin)
            lines = stream.read(_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    # The first line may be cut.
    kept = (lines[1:] if begin else lines)[-_LINES:]
    return "\n".join(kept if raw else map(readable, kept))
