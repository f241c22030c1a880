"""Spark's description of a checkpoint's stateful operators."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession

__all__ = ["state_metadata", "state_variables"]


def state_metadata(session: SparkSession, checkpoint: str, batch: int) -> DataFrame:
    """Return Spark's state metadata as of a batch: a later one may have state variables that were not there yet."""
    return session.read.format("state-metadata").option("batchId", batch).load(checkpoint)


def state_variables(described: Any) -> list[dict[str, str]] | None:
    """Return the state variables of a row of Spark's state metadata; None for an operator without such variables."""
    found: list[dict[str, str]] | None = json.loads(described.operatorProperties or "{}").get("stateVariables")
    return found
