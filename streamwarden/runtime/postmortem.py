"""Find the cause of death of a process without an exit document in its log files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamwarden.errors import ErrorCode
from streamwarden.runtime.failure_signatures import fatal_in_log

__all__ = ["LastWords", "last_words"]

_END = 64 * 1024
"""How much of a file's end is read. 64 KiB: a few JVM traces, and quick to read."""

# The JVM's own messages first: they name the cause of death. hs_err: written by a JVM that crashed. stdout, stderr: of
# a container of YARN.
_FILES = ("hs_err_*.log", "console.log", "stdout", "spark.log", "stderr", "driver.log")


@dataclass(frozen=True)
class LastWords:
    """The evidence in the logs.

    Parameters
    ----------
    code
        A code of the catalogue, such as OUT_OF_MEMORY or JVM_CRASHED, if a log shows it; else None.
    evidence
        The line with the cause. Without a code, the last line with an error; empty without such a line.
    file
        The file's name, empty without evidence.
    """

    code: ErrorCode | None = None
    evidence: str = ""
    file: str = ""


def last_words(folder: Path) -> LastWords:
    """Return the cause of death from the ends of an incarnation's logs: driver, Spark, console, JVM crash reports.

    Does not read logs on another machine, nor the kernel's log: a process that the kernel killed leaves no evidence.
    """
    ends = [(path.name, _end_of(path)) for name in _FILES for path in sorted(folder.glob(name))]
    for name, text in ends:
        found = fatal_in_log(text)
        if found is not None:
            return LastWords(found.code, found.evidence.lstrip("# "), name)
    for name, text in reversed(ends):
        for line in reversed(text.splitlines()):
            if " ERROR " in line or "Error: " in line or "Exception: " in line:
                return LastWords(None, line.strip()[:600], name)
    return LastWords()


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(stream.tell() - _END, 0))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
