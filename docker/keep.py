#!/usr/bin/env python3
"""Keeps one of Airflow's components running in its container: starts it again when it ends or hangs.

``keep.py URL [PATH=VALUE] -- COMMAND...``, with the standard library only.

Docker restarts a container whose process ended, but never one whose process hangs, whatever its health check reports.
And the restart of a container kills all its processes: in the scheduler's, every driver. So the component is started
again inside the container. Drivers have their own sessions and keep running.

With PATH=VALUE, the component hangs if for HUNG seconds the URL's answer has a healthy database and another value at
PATH. While the URL does not answer, or the database is unavailable, nothing is known. Without PATH=VALUE, for the API
server, the component hangs if the URL does not answer for HUNG seconds.

SIGTERM and SIGINT are passed to the component, and then its end is awaited.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from healthcheck import fetch, value_at

HUNG = float(os.environ.get("STREAMWARDEN_KEEP_HUNG", "300"))
"""Seconds. As Airflow's Helm chart has it: five liveness probes, one a minute."""

LOOK = min(15.0, HUNG / 5)
"""Seconds from one look at the health to the next."""

WAITS = (1, 2, 5, 10, 30, 60)
"""Seconds before a start, by how many ends came before it in a row. An end after HUNG seconds is not in the row."""


class Ended(BaseException):
    """The container is to stop."""


def say(text: str) -> None:
    """Write a line to the container's log."""
    sys.stdout.write(f"keep: {text}\n")
    sys.stdout.flush()


def is_well(url: str, condition: str | None) -> bool | None:
    """Tell how the component is; None if nothing is known of it."""
    try:
        body = fetch(url)
        if condition is None:
            return True
        path, _, wanted = condition.partition("=")
        if value_at("metadatabase.status", body) != "healthy":
            return None
        return value_at(path, body) == wanted
    except (OSError, ValueError, http.client.HTTPException):
        return False if condition is None else None


def members(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        # Gone meanwhile, or not a process.
        with contextlib.suppress(ValueError, OSError):
            if os.getsid(pid := int(entry.name)) == session:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found.append(pid)
    return found


def kill(session: int) -> None:
    """Kill a session to its last process: a worker left behind would go on with its tasks beside the new ones."""
    while pids := members(session):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def watch(process: subprocess.Popen[bytes], url: str, condition: str | None) -> str:
    """Wait until the component ends or hangs; return which, in words."""
    unwell_since: float | None = None
    while True:
        try:
            return f"ended with {process.wait(timeout=LOOK)}"
        except subprocess.TimeoutExpired:
            pass
        if is_well(url, condition) is not False:
            unwell_since = None
            continue
        now = time.monotonic()
        unwell_since = unwell_since or now
        if now - unwell_since >= HUNG:
            return f"is alive, but unhealthy for {now - unwell_since:.0f} s"


def keep(command: list[str], url: str, condition: str | None) -> None:
    """Start the component, and start it again, for ever."""
    ends = 0
    while True:
        started = time.monotonic()
        process = subprocess.Popen(command, start_new_session=True)
        try:
            what = watch(process, url, condition)
        except Ended:
            process.terminate()
            process.wait()
            raise
        finally:
            kill(process.pid)
            process.wait()
        ends = 0 if time.monotonic() - started >= HUNG else ends
        wait = WAITS[min(ends, len(WAITS) - 1)]
        ends += 1
        say(f"{' '.join(command)} {what}; started again in {wait} s")
        time.sleep(wait)


def stop(_number: int, _frame: FrameType | None) -> None:
    """End by a signal, once: a second one must not cut the component's own end short."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Ended


def main(arguments: list[str]) -> int:
    """Keep a component running until a signal ends it."""
    at = arguments.index("--")
    url, *conditions = arguments[:at]
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        keep(arguments[at + 1 :], url, conditions[0] if conditions else None)
    except Ended:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
