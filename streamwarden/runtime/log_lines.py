"""A line of ``driver.log``, for a person: the log may be text or JSON, by ``logs.format`` of the profile."""

from __future__ import annotations

import json

__all__ = ["readable"]


def readable(line: str) -> str:
    """Return a line of ``driver.log`` as text; one that is no record in JSON, as it is.

    Parameters
    ----------
    line
        With or without its end; what is returned ends as it did.
    """
    if not line.startswith("{"):
        return line
    try:
        record = json.loads(line)
        head = f"{record['time']} {record['level'].upper()} {record['job']} {record['incarnation']}"
        message = str(record["message"])
    except (ValueError, TypeError, KeyError, AttributeError):
        # Of a program's own making, or cut off by a kill.
        return line
    if record.get("exception"):
        message += "\n" + str(record["exception"]).rstrip("\n")
    return f"{head} {message}" + ("\n" if line.endswith("\n") else "")
