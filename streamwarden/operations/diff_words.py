"""A rollout's plan in words, for the command line and the pages."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from streamwarden.operations.field_effects import Effect
from streamwarden.operations.spec_diff import RolloutPlan

__all__ = ["described", "value_text", "what_a_deploy_does"]

_DOES = {
    Effect.NONE: "a deploy changes nothing",
    Effect.LIVE: "a deploy records it, and the driver keeps running",
    Effect.RESTART: "a deploy stops the driver between batches, starts another, and rolls back if it is unhealthy",
    Effect.SAVEPOINT: "a deploy stops the driver between batches, takes a savepoint, starts another driver, and rolls"
    " back if it is unhealthy",
    Effect.REFUSED: "a deploy is refused, and the job keeps running as it is",
}


def described(planned: RolloutPlan) -> dict[str, Any]:
    """Return a plan as plain JSON values."""
    return {
        "job": planned.job,
        "deployed": planned.deployed is not None,
        "running": planned.running,
        "effect": planned.effect,
        "does": what_a_deploy_does(planned),
        "changes": [asdict(change) for change in planned.changes],
    }


def what_a_deploy_does(planned: RolloutPlan) -> str:
    """Return what a deploy of the plan does, as a sentence."""
    if planned.deployed is None:
        return "it was never deployed; a deploy starts it"
    if not planned.running and planned.effect is not Effect.REFUSED:
        return "it is down; a deploy starts it with its YAML, without a savepoint or a rollback"
    return _DOES[planned.effect]


def value_text(value: Any) -> str:
    """Return a field's value as text; a dash for no value."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
