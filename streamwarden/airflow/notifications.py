"""Send changes of a job's health to the notifiers of ``config/alerts.yaml``."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout

from streamwarden.errors import StreamwardenError
from streamwarden.model.alerts import NotifierSpec
from streamwarden.model.supervision import HealthChange, HealthRecord
from streamwarden.store.config import load_alerts
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import alert_queue
from streamwarden.supervision.health_rules import Health, Level

__all__ = ["Alert", "tell"]

_NOTIFIER_S = 60
"""Seconds that a notifier may take; meanwhile the job is not observed. 60: a slow mail server, tried once."""

_WORDS = {"ok": "ok again", "warn": "warning", "critical": "critical"}


@dataclass(frozen=True)
class Alert:
    """The object that a notifier's templates see as ``alert``.

    Parameters
    ----------
    job
        The job.
    changes
        The changes, oldest first; each has ``rule``, ``before``, ``after``, ``what``, ``at``.
    """

    job: str
    changes: Sequence[HealthChange]

    @property
    def level(self) -> str:
        """The worst level of a rule after these changes: ok if all rules are ok again."""
        newest = {change.rule: change.after for change in self.changes}
        return max(newest.values(), key=lambda level: Level(level).rank)

    @property
    def title(self) -> str:
        """The alert in one line."""
        rules = ", ".join(dict.fromkeys(change.rule for change in self.changes))
        return f"Streamwarden: {self.job}: {_WORDS[self.level]} ({rules})"

    @property
    def text(self) -> str:
        """The title and a line for each change."""
        lines = [f"{change.at:%Y-%m-%d %H:%M:%S} UTC {_WORDS[change.after]}: {change.what}" for change in self.changes]
        return "\n".join([self.title, *lines])


def tell(
    workspace: Workspace,
    job: str,
    health: Health,
    *,
    context: Mapping[str, Any],
    log: logging.Logger,
    rules: Collection[str] | None = None,
    lasted: Mapping[str, str] | None = None,
    anyway: bool = False,
) -> list[HealthChange]:
    """Record the changes of a job's health, log them, and send them to the notifiers that subscribe to them.

    Each change is sent once, by one observer at a time. If a notifier fails, later calls send the same changes again,
    together with newer ones: after a minute, then after twice the interval each time, up to half an hour. If a
    notifier sends and then fails, or takes longer than a minute, it receives the changes twice. Never raises what a
    notifier raises.

    Parameters
    ----------
    health
        The job's health.
    context
        The task's context, passed to the notifiers with ``alert`` added.
    log
        The task's log.
    rules
        Send only changes of these rules; default all.
    lasted
        By rule, the level that has lasted; see :func:`~streamwarden.supervision.alert_queue.changes`.
    anyway
        Also call a notifier that has failed recently, because no later call will do so.

    Returns
    -------
    list of HealthChange
        The new changes.
    """
    document = JobDocuments(workspace.storage, job).health
    try:
        notifiers: Sequence[NotifierSpec] | None = load_alerts(workspace.config).of(job)
    except StreamwardenError as error:
        # An error in that file must not end the supervision of a job. The changes stay queued until it is fixed.
        log.error("no notification is sent: %s", error)
        notifiers = None
    if notifiers is None:
        wanted = [(alert_queue.ANYBODY, Level.WARN)]
    else:
        wanted = [(notifier.name, Level(notifier.level)) for notifier in notifiers]
        if alert_queue.ANYBODY in (document.read() or HealthRecord()).unsent:
            alert_queue.hand_out(workspace, job, wanted)
    noted = alert_queue.note(workspace, job, health, rules=rules, lasted=lasted, notifiers=wanted)
    for change in noted:
        level = logging.INFO if change.after == "ok" else logging.WARNING
        log.log(level, "health: %s %s -> %s: %s", change.rule, change.before, change.after, change.what)
    found = document.read() or HealthRecord()
    if notifiers is None:
        if alert_queue.unsent_due(found):
            alert_queue.put_off(workspace, job)
    else:
        for notifier in notifiers:
            if alert_queue.due(found, notifier.name, anyway=anyway) and (
                given := alert_queue.begin_sending(workspace, job, notifier.name, anyway=anyway)
            ):
                _send(workspace, notifier, Alert(job, given), context, log)
        for gone in set(found.unsent) - {notifier.name for notifier in notifiers}:
            # This notifier is no longer configured.
            alert_queue.sent(workspace, job, gone, found.unsent[gone], ok=True)
    return noted


def _send(
    workspace: Workspace, spec: NotifierSpec, alert: Alert, context: Mapping[str, Any], log: logging.Logger
) -> None:
    try:
        with timeout(_NOTIFIER_S, f"notifier {spec.name} took longer than {_NOTIFIER_S} s"):  # type: ignore[no-untyped-call]
            _notifier(spec)({**context, "alert": alert})
    except (Exception, AirflowTaskTimeout):
        # Any exception: the job's supervision continues, and the notifier is called again.
        log.exception("notifier %s failed: %s", spec.name, alert.title)
        alert_queue.sent(workspace, alert.job, spec.name, alert.changes, ok=False)
        return
    log.info("notifier %s sent: %s", spec.name, alert.title)
    alert_queue.sent(workspace, alert.job, spec.name, alert.changes, ok=True)


def _notifier(spec: NotifierSpec) -> BaseNotifier:
    module, _, name = spec.notifier.rpartition(".")
    try:
        found = getattr(import_module(module), name)
        if not (isinstance(found, type) and issubclass(found, BaseNotifier)):
            raise TypeError(f"{spec.notifier} is not an Airflow notifier")
        made = found(**spec.arguments)
    except (ImportError, AttributeError, TypeError) as error:
        raise StreamwardenError("ALERTS_INVALID", f"{spec.name}: {error}") from error
    return made
