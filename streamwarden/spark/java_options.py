"""Options of Java: those for JVMs that don't live long, and how one is written that holds a path."""

from __future__ import annotations

__all__ = ["SHORT_LIVED", "quoted"]

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For a JVM that lives for seconds or minutes: its second compiler would take more time than its code gives back.

Without that compiler Java keeps 48 MB of code only. A streaming job has more than that after some minutes; then Java
throws out what it needs again at once, and every batch takes several times as long. 240 MB is what it keeps with both.
"""


def quoted(option: str) -> str:
    """Return an option as Spark reads it among others: it splits them at blanks, and knows quotes and backslashes."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
