"""Java options: those for short-lived JVMs, and quoting for options with a path."""

from __future__ import annotations

__all__ = ["SHORT_LIVED", "quoted"]

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For JVMs that live for seconds or minutes: the second compiler would cost more time than its code saves.

Without that compiler Java keeps only 48 MB of code. A streaming job has more after some minutes. Then Java evicts code
that it needs again at once, and every batch takes several times as long. 240 MB is the default with both compilers.
"""


def quoted(option: str) -> str:
    """Return an option quoted for Spark's option list, which Spark splits at blanks, with quotes and backslashes."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
