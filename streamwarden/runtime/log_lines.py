"""Format lines of ``driver.log`` for people: the log is text or JSON, by ``logs.format`` of the profile."""

from __future__ import annotations

from streamwarden.foreign_json import parse

__all__ = ["readable"]


def readable(line: str) -> str:
    """Return a line of ``driver.log`` as text; a line that is no JSON record is returned unchanged.

    Parameters
    ----------
    line
        With or without a line end; the result keeps the line end.
    """
    if not line.startswith("{"):
        return line
    try:
        record = parse(line)
        head = f"{record['time']} {record['level'].upper()} {record['job']} {record['incarnation']}"
        message = str(record["message"])
    except (ValueError, TypeError, KeyError, AttributeError):
        # The line comes from another program, or was cut off by a kill.
        return line
    if record.get("exception"):
        message += "\n" + str(record["exception"]).rstrip("\n")
    return f"{head} {message}" + ("\n" if line.endswith("\n") else "")
