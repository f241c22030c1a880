"""What a process that died without a word has left in its log files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamwarden.runtime.failure_signatures import fatal_in_log

__all__ = ["LastWords", "last_words"]

_END = 64 * 1024
"""How much of a file's end is looked at. 64 KiB: a few JVM traces, and a moment's reading."""

# The JVM's own words first: they say what it died of. hs_err: written by a JVM that crashed.
_FILES = ("hs_err_*.log", "console.log", "spark.log", "driver.log")


@dataclass(frozen=True)
class LastWords:
    """What the logs say.

    Parameters
    ----------
    code
        Of the catalogue: OUT_OF_MEMORY or JVM_CRASHED if a log says so, else None.
    evidence
        The line that says it; without a code the last line that speaks of an error; empty if there is none.
    file
        The file's name, empty without evidence.
    """

    code: str | None = None
    evidence: str = ""
    file: str = ""


def last_words(folder: Path) -> LastWords:
    """Look through the ends of an incarnation's logs: driver's, Spark's, console and crash reports of the JVM.

    Does not see what is on another machine, nor the kernel's log: a process that the kernel killed leaves nothing.
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
