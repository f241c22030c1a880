"""Spark's settings for a driver that YARN starts, each with its reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from streamwarden.errors import StreamwardenError
from streamwarden.model.profile import Profile
from streamwarden.runtime.launchers.yarn import tag_of

__all__ = ["yarn_settings"]

_START_S = 600
"""How long a driver may take to its SparkContext, beside its wait for a lease. A supervisor restarts one that hangs
before its first heartbeat much sooner. After that, it may wait for a slow store."""


def yarn_settings(profile: Profile, incarnation: str, spark_home: Path) -> dict[str, str]:
    """Return the settings of a driver's submission beside those of its session.

    Parameters
    ----------
    incarnation
        The driver, which is found again by it.
    spark_home
        PySpark's folder.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` if a variable that the profile names is not there.
    """
    yarn = profile.yarn
    assert yarn is not None
    missing = [name for name in yarn.environment if name not in os.environ]
    if missing:
        what = f"profile {profile.name}: yarn.environment: {', '.join(missing)} is not set in the process that submits"
        raise StreamwardenError("CONFIG_INVALID", what)
    python = yarn.python or sys.executable
    # In UTC from its start: `in_utc` comes too late for the JVM.
    variables = {"TZ": "UTC", **{name: os.environ[name] for name in yarn.environment}}
    settings = {
        "spark.yarn.queue": yarn.queue,
        "spark.yarn.tags": f"streamwarden,{tag_of(incarnation)}",
        "spark.yarn.submit.waitAppCompletion": "false",
        # The supervisor restarts, with its budget and a new incarnation. YARN would start the same one again.
        "spark.yarn.maxAppAttempts": "1",
        # The driver waits for a dead driver's lease before it starts Spark; by default Spark gives it 100 s.
        "spark.yarn.am.waitTime": f"{_START_S + round(profile.lease.total_seconds())}s",
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": python,
        "spark.yarn.appMasterEnv.PYSPARK_DRIVER_PYTHON": python,
    }
    for name, value in variables.items():
        settings[f"spark.yarn.appMasterEnv.{name}"] = settings[f"spark.executorEnv.{name}"] = value
    if profile.same_image:
        # Otherwise `spark-submit` sends all of PySpark's jars, 400 MB.
        settings["spark.yarn.jars"] = f"local://{spark_home}/jars/*"
    return settings
