"""Notifications of health changes: ``config/alerts.yaml``."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from streamwarden.model.spec_base import Strict

__all__ = ["AlertSpec", "NotifierSpec"]


class NotifierSpec(Strict):
    """One Airflow notifier. Keep secrets in an Airflow connection, and name that in the arguments."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$", description="The name in logs.")
    notifier: str = Field(
        alias="class",
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
        description="Dotted path of an Airflow notifier, as"
        " `airflow.providers.slack.notifications.slack.SlackNotifier`. Its provider must be installed.",
    )
    level: Literal["warn", "critical"] = Field(
        default="critical",
        description="The lowest level that is sent: warn or critical. critical: a notifier usually wakes somebody."
        " The end of an alarm is also sent.",
    )
    jobs: tuple[str, ...] = Field(default=(), description="Only for these jobs; none means all.")
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="Its keyword arguments. Templated arguments can use `alert`: `alert.text`, `alert.title`,"
        " `alert.job`, `alert.level`, `alert.changes`.",
    )


class AlertSpec(Strict):
    """Contents of ``config/alerts.yaml``."""

    notifiers: tuple[NotifierSpec, ...] = ()

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [notifier.name for notifier in self.notifiers]
        if len(set(names)) != len(names):
            raise ValueError("notifiers: a name is given twice")
        return self

    def of(self, job: str) -> list[NotifierSpec]:
        """Return the notifiers for a job."""
        return [notifier for notifier in self.notifiers if not notifier.jobs or job in notifier.jobs]
