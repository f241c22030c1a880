"""Telling a job's changes of health to the notifiers of ``config/alerts.yaml``."""

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
from streamwarden.model.status import HealthChange, HealthRecord
from streamwarden.store.config import load_alerts
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import alert_queue
from streamwarden.supervision.health_rules import Health, Level

__all__ = ["Alert", "tell"]

_NOTIFIER_S = 60
"""How long a notifier may take: nobody looks at the job meanwhile. 60: a slow mail server, tried once."""

_WORDS = {"ok": "well again", "warn": "warning", "critical": "critical"}


@dataclass(frozen=True)
class Alert:
    """What a notifier's templates see as ``alert``.

    Parameters
    ----------
    job
        The job.
    changes
        What changed, oldest first; each has ``rule``, ``before``, ``after``, ``what``, ``at``.
    """

    job: str
    changes: Sequence[HealthChange]

    @property
    def level(self) -> str:
        """The worst level that a rule has after these changes: ok if all are well again."""
        newest = {change.rule: change.after for change in self.changes}
        return max(newest.values(), key=lambda level: Level(level).rank)

    @property
    def title(self) -> str:
        """One line."""
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
    """Write the changes of a job's health down, log them, and give them to the notifiers that want them.

    Each change is told once, however many look, and by one of them at a time. A notifier that fails is given the same
    again at a later call, a minute on, then after twice that each time up to half an hour, together with what has come
    meanwhile. One that fails after it has in fact sent is therefore given it twice; so is one that takes more than a
    minute. Never raises what a notifier raises.

    Parameters
    ----------
    health
        The verdict.
    context
        The task's; notifiers read it, and find ``alert`` in it too.
    log
        The task's log.
    rules
        Only changes of these rules; default all.
    lasted
        By rule: the level that has lasted; see :func:`~streamwarden.supervision.alert_queue.changes`.
    anyway
        Ask a notifier also that has failed lately: nobody asks it later.

    Returns
    -------
    list of HealthChange
        What is new.
    """
    document = JobDocuments(workspace.storage, job).health
    try:
        notifiers: Sequence[NotifierSpec] | None = load_alerts(workspace.config).of(job)
    except StreamwardenError as error:
        # A slip in that file must not end the supervision of a job, nor lose what is to be told once it is mended.
        log.error("nobody is notified: %s", error)
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
            # It is configured no longer.
            alert_queue.sent(workspace, job, gone, found.unsent[gone], ok=True)
    return noted


def _send(
    workspace: Workspace, spec: NotifierSpec, alert: Alert, context: Mapping[str, Any], log: logging.Logger
) -> None:
    try:
        with timeout(_NOTIFIER_S, f"notifier {spec.name} took longer than {_NOTIFIER_S} s"):  # type: ignore[no-untyped-call]
            _notifier(spec)({**context, "alert": alert})
    except (Exception, AirflowTaskTimeout):
        # Whatever it is: the job's supervision goes on, and the notifier is asked again.
        log.exception("notifier %s could not be given: %s", spec.name, alert.title)
        alert_queue.sent(workspace, alert.job, spec.name, alert.changes, ok=False)
        return
    log.info("notifier %s was given: %s", spec.name, alert.title)
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
