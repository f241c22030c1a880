"""A cluster's executors: how many a job asks for, and whether it has got any."""

from __future__ import annotations

import time
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamwarden.model.spec import ResourceSpec

__all__ = ["Executors", "executor_settings"]


def executor_settings(master: str, resources: ResourceSpec) -> dict[str, str]:
    """Return the Spark settings that give a job its cores and executors; empty without a cluster."""
    if master.startswith("local"):
        return {}
    if master.startswith("spark://"):
        # The total. Without the size of an executor, the master gives each worker's share to one.
        settings = {"spark.cores.max": str(resources.cores)}
        if resources.executors is not None:
            settings["spark.executor.cores"] = str(resources.cores // resources.executors)
        return settings
    executors = resources.executors or 1
    return {
        "spark.executor.instances": str(executors),
        "spark.executor.cores": str(resources.cores // executors),
    }


class Executors:
    """Tells whether a cluster has given a session executors."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext
        self._asked: float | None = None
        self._missing: str | None = None
        # Dynamic allocation asks for executors only once there is work.
        dynamic = self._context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
        self._given = str(self._context.master).startswith("local") or dynamic

    def missing(self, *, every: float = 0.0) -> str | None:
        """Return why the session may have no executor; None if it has one, needs none, or can't be asked.

        Parameters
        ----------
        every
            Seconds between two calls to the JVM. In between, the last answer counts.
        """
        now = time.monotonic()
        if self._given or (self._asked is not None and now - self._asked < every):
            return self._missing
        self._asked = now
        try:
            spark: Any = self._context._jsc.sc()
            # The driver always counts as one.
            lacks = spark.getExecutorMemoryStatus().size() <= 1
        except (OSError, Py4JError, AttributeError):
            # The JVM does not answer, or its SparkContext has ended: the query reports it.
            lacks = False
        master = self._context.master
        self._missing = (
            f"no executor yet: it starts, or {master} has no free slots, or no worker with enough memory"
            if lacks
            else None
        )
        return self._missing
