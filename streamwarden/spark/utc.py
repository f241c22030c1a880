"""The time zone of a process that takes timestamps from Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["in_utc"]


@contextmanager
def in_utc() -> Iterator[None]:
    """Let this process be in UTC meanwhile, and the JVM that it starts.

    PySpark collects a timestamp as a datetime without a zone, by the process's clock, and takes it back by the same
    clock, which in the hour that daylight saving gives twice names two moments. What compares such datetimes with
    others is right in UTC only: Great Expectations, and jobs as people write them.
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
