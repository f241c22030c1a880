"""Spark's cluster deploy mode, seen from a driver: the JVM is there first, and starts Python as its child.

YARN and Kubernetes start drivers so. What a JVM takes only at its start comes from the submission then: memory, class
path, Java options, jars; see :func:`~streamwarden.spark.session.start_settings`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import psutil

__all__ = ["container_logs", "is_cluster_mode", "parent_jvm"]


def is_cluster_mode() -> bool:
    """Return whether a JVM has started this process, and waits for its calls."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@cache
def parent_jvm() -> psutil.Process | None:
    """Return the JVM that has started this process; None if PySpark starts the JVM, or if it has already ended.

    To be called at the start first: later, another process may have become the parent.
    """
    if not is_cluster_mode():
        return None
    parent = psutil.Process(os.getpid()).parent()
    return parent if parent is not None and parent.name() == "java" else None


def container_logs() -> Path | None:
    """Return the folder with the output of this container's processes, where YARN has started them; else None."""
    given = os.environ.get("LOG_DIRS") if is_cluster_mode() else None
    return Path(given.split(",")[0]) if given else None
