"""Options of Java for JVMs that don't live long."""

from __future__ import annotations

__all__ = ["SHORT_LIVED"]

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For a JVM that lives for seconds or minutes: its second compiler would take more time than its code gives back.

Without that compiler Java keeps 48 MB of code only. A streaming job has more than that after some minutes; then Java
throws out what it needs again at once, and every batch takes several times as long. 240 MB is what it keeps with both.
"""
