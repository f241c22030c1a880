"""The time zone of a process that reads timestamps from Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["in_utc"]


@contextmanager
def in_utc() -> Iterator[None]:
    """Set this process, and the JVM that it starts, to UTC within the context.

    PySpark converts timestamps to datetimes without a zone, and back, in the process's local time. In the hour that
    repeats when daylight saving ends, such a datetime is ambiguous. Code that compares them is correct only in UTC:
    Great Expectations, and typical jobs.
    """
    before = os.environ.get("TZ")
    _switch("UTC")
    try:
        yield
    finally:
        _switch(before)


def _switch(zone: str | None) -> None:
    if zone is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = zone
    time.tzset()
