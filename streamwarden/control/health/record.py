"""What was told of a job's health, so that a change is told once, whoever looks and however often."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from streamwarden.control.documents import HealthChange, HealthRecord, JobDocuments, RuleState, utc_now
from streamwarden.control.health.rules import Health, Level
from streamwarden.control.workspace import Workspace

__all__ = ["ANYBODY", "changes", "hand_out", "note", "sent", "told", "unsent_due"]

_KEPT = 50

ANYBODY = ""
"""In place of a notifier's name: changes that are kept until it is known again which notifiers there are."""

RETRY = timedelta(minutes=1)
"""How long to wait before a notifier that failed is asked again."""


def changes(record: HealthRecord, health: Health, *, now: datetime | None = None) -> list[HealthChange]:
    """Return how a verdict differs from what was told, rule by rule."""
    now = now or utc_now()
    found = {finding.rule: finding for finding in health.findings}
    differing = []
    for rule in sorted({*record.rules, *found}):
        before = record.rules[rule].level if rule in record.rules else Level.OK.value
        after = found[rule].level.value if rule in found else Level.OK.value
        if before != after:
            what = found[rule].what if rule in found else f"well again; was: {record.rules[rule].what}"
            worst = max(_worst(record, rule), Level(after), key=lambda level: level.rank)
            differing.append(HealthChange(rule=rule, before=before, after=after, worst=worst.value, what=what, at=now))
    return differing


def told(record: HealthRecord, changes: Collection[HealthChange]) -> HealthRecord:
    """Return the record with changes told."""
    rules = dict(record.rules)
    for change in changes:
        if change.after == "ok":
            rules.pop(change.rule, None)
        else:
            worst = change.worst or change.after
            rules[change.rule] = RuleState(level=change.after, worst=worst, since=change.at, what=change.what)
    return record.model_copy(update={"rules": rules, "changes": [*record.changes, *changes][-_KEPT:]})


def _worst(record: HealthRecord, rule: str) -> Level:
    state = record.rules.get(rule)
    return Level(state.worst or state.level) if state is not None else Level.OK


def note(
    workspace: Workspace,
    job: str,
    health: Health,
    *,
    rules: Collection[str] | None = None,
    notifiers: Collection[tuple[str, Level]] = (),
) -> list[HealthChange]:
    """Write down the changes that a verdict brings, and return them.

    Of several that note the same verdict, one gets the changes.

    Parameters
    ----------
    rules
        Only those of these rules; default all.
    notifiers
        For whom changes are kept until :func:`sent`: name, and the level from which on it wants them. The end of an
        alarm is kept for whoever wanted its beginning.
    """
    noted: list[HealthChange] = []

    def apply(found: HealthRecord | None) -> HealthRecord:
        record = found or HealthRecord()
        noted[:] = [change for change in changes(record, health) if rules is None or change.rule in rules]
        if not noted and found is not None:
            return found
        return told(record, noted).model_copy(update={"unsent": _queued(record.unsent, noted, notifiers)})

    JobDocuments(workspace.storage, job).health.update(apply)
    return noted


def hand_out(workspace: Workspace, job: str, notifiers: Collection[tuple[str, Level]]) -> None:
    """Give what was kept for :data:`ANYBODY` to the notifiers that want it, as in :func:`note`."""

    def apply(found: HealthRecord | None) -> HealthRecord:
        record = found or HealthRecord()
        others = {name: queue for name, queue in record.unsent.items() if name != ANYBODY}
        kept = record.unsent.get(ANYBODY, [])
        return record.model_copy(update={"unsent": _queued(others, kept, notifiers)})

    JobDocuments(workspace.storage, job).health.update(apply)


def _queued(
    unsent: Mapping[str, list[HealthChange]], given: Sequence[HealthChange], notifiers: Collection[tuple[str, Level]]
) -> dict[str, list[HealthChange]]:
    queues = dict(unsent)
    for name, level in notifiers:
        wanted = [one for one in given if Level(one.worst or one.after).rank >= level.rank]
        if wanted:
            queues[name] = [*queues.get(name, []), *wanted][-_KEPT:]
    return queues


def unsent_due(record: HealthRecord, *, now: datetime | None = None) -> bool:
    """Tell whether there are changes that a notifier should be given now."""
    return bool(record.unsent) and (record.retry_at is None or record.retry_at <= (now or utc_now()))


def sent(workspace: Workspace, job: str, notifier: str, given: Collection[HealthChange], *, ok: bool) -> None:
    """Write down that a notifier took changes, or refused them and is to be asked again in a minute."""

    def apply(found: HealthRecord | None) -> HealthRecord:
        record = found or HealthRecord()
        if not ok:
            return record.model_copy(update={"retry_at": utc_now() + RETRY})
        left = [change for change in record.unsent.get(notifier, []) if change not in given]
        unsent = {name: queue for name, queue in record.unsent.items() if name != notifier}
        if left:
            unsent[notifier] = left
        return record.model_copy(update={"unsent": unsent, "retry_at": record.retry_at if unsent else None})

    JobDocuments(workspace.storage, job).health.update(apply)
