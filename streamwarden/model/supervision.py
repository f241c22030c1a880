"""Models of health and supervision: the rules' states, restarts and decisions."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from streamwarden.model.record import ErrorInfo, Record

__all__ = ["Decision", "Ending", "HealthChange", "HealthRecord", "Refused", "Restart", "RuleState", "Supervision"]


class RuleState(Record):
    """A health rule whose limit is reached, as last reported."""

    level: Literal["warn", "critical"]
    worst: Literal["", "warn", "critical"] = Field(
        default="",
        description="The worst level since the rule was last ok: notifiers that were sent it are sent the end, too.",
    )
    since: datetime
    what: str


class HealthChange(Record):
    """A change of a rule's level."""

    rule: str
    before: Literal["ok", "warn", "critical"]
    after: Literal["ok", "warn", "critical"]
    worst: Literal["", "ok", "warn", "critical"] = Field(
        default="", description="The worst level since the rule was last ok, including this change."
    )
    what: str
    at: datetime


class Refused(Record):
    """A failed notification, to be retried."""

    times: int = Field(description="In a row.")
    retry_at: datetime


class HealthRecord(Record):
    """The last reported health of a job; rules not in it are healthy. The next report compares with this."""

    rules: dict[str, RuleState] = Field(default_factory=dict)
    changes: list[HealthChange] = Field(default_factory=list, description="The newest ones, oldest first.")
    unsent: dict[str, list[HealthChange]] = Field(
        default_factory=dict, description="By notifier: changes that were not sent to it yet."
    )
    refused: dict[str, Refused] = Field(
        default_factory=dict, description="By notifier whose last call failed: when to call it again."
    )
    sending: dict[str, datetime] = Field(
        default_factory=dict,
        description="By notifier that is being called: until when no other process calls it. The caller may have died.",
    )


class Restart(Record):
    """A restart of a job by a supervisor."""

    at: datetime
    after: str = Field(description="The incarnation that ended.")
    reason: str
    counts: bool = Field(
        default=True, description="False if the start before it found no cluster: it spends nothing of the budget."
    )


class Decision(Record):
    """A supervisor's decision, and its reason."""

    at: datetime
    what: str
    why: str


class Ending(Record):
    """The end of a job's run by a supervisor.

    A failed job stays down until it is deployed again, even after its restarts leave the window. A suspension at a
    limit is complete once the driver has ended and the savepoint exists or can't be taken. The next supervisor to
    observe that removes this record.
    """

    incarnation: str = Field(description="The last incarnation. Says nothing about later ones.")
    at: datetime = Field(
        description="The time of the last decision; a suspension is decided again at each check until it is done."
    )
    action: Literal["fail", "suspend"] = "fail"
    why: str
    error: ErrorInfo = Field(description="The error of the job's task.")
    savepoint: bool = Field(default=False, description="Whether the suspension takes a savepoint.")


class Supervision(Record):
    """A supervisor's memory. It is stored here, so that another supervisor can continue after a crash."""

    restarts: list[Restart] = Field(default_factory=list)
    decisions: list[Decision] = Field(default_factory=list)
    ending: Ending | None = None
