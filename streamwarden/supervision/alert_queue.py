"""The record of reported health changes, so that each change is reported once, by whichever observer, however often."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from streamwarden.model.record import utc_now
from streamwarden.model.supervision import HealthChange, HealthRecord, Refused, RuleState
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.health_rules import Health, Level

__all__ = [
    "ANYBODY",
    "UNWATCHED",
    "apart",
    "begin_sending",
    "changes",
    "due",
    "hand_out",
    "note",
    "put_off",
    "sent",
    "told",
    "unsent_due",
]

_KEPT = 50

UNWATCHED = "unwatched"
"""The alarm for a job without a supervisor. It is no health rule: a supervisor cannot see it, and must neither raise
nor clear it. A trigger that fires for it ends, and the task of a paused DAG does not start."""

ANYBODY = ""
"""In place of a notifier's name: changes that are kept until the list of notifiers is known again."""

SENDING = timedelta(minutes=2)
"""How long a sender keeps a notifier to itself. 2 minutes: twice as long as a send may take; then the sender died."""

RETRY = timedelta(minutes=1)
"""How long to wait before a failed notifier is tried again. Doubled at each consecutive failure."""

RETRY_MAX = timedelta(minutes=30)
"""Upper limit of the wait. 30 minutes: each try may hold a worker slot for a minute. A mail server that was down for a
night must get its mail soon after its return."""


def changes(
    record: HealthRecord, health: Health, *, lasted: Mapping[str, str] | None = None, now: datetime | None = None
) -> list[HealthChange]:
    """Return the differences between a verdict and the reported levels, rule by rule.

    Parameters
    ----------
    lasted
        Per rule, the level held for at least ``health.hold``. A short excursion beyond it is reported as that level.
    """
    now = now or utc_now()
    found = {finding.rule: finding for finding in health.findings}
    differing = []
    for rule in sorted({*record.rules, *found}):
        before, is_now = _told_level(record, rule), found[rule].level if rule in found else Level.OK
        after = _nearer(before, is_now, Level((lasted or {}).get(rule, is_now)))
        if before is after:
            continue
        if after is is_now:
            what = found[rule].what if rule in found else f"ok again; was: {record.rules[rule].what}"
        elif rule in found:
            what = f"{found[rule].what}; the level changes, and is {after} at least"
        else:
            what = f"the level changes, and is {after} at most; was: {record.rules[rule].what}"
        worst = max(_worst(record, rule), after, key=lambda level: level.rank)
        differing.append(
            HealthChange(rule=rule, before=before.value, after=after.value, worst=worst.value, what=what, at=now)
        )
    return differing


def apart(record: HealthRecord, health: Health) -> list[tuple[str, Level]]:
    """Return, rule by rule, the levels between the reported level (excluded) and the current level (included).

    A rule that swings between two levels has differed by the nearer level for all that time.
    """
    found = {finding.rule: finding.level for finding in health.findings}
    levels = list(Level)
    differing: list[tuple[str, Level]] = []
    for rule in sorted({*record.rules, *found} - {UNWATCHED}):
        before, now = _told_level(record, rule).rank, found.get(rule, Level.OK).rank
        way = levels[before + 1 : now + 1] if now > before else reversed(levels[now:before])
        differing += [(rule, level) for level in way]
    return differing


def _nearer(before: Level, *others: Level) -> Level:
    """Return which of the other levels is nearest to a level, or that level if it lies between them."""
    low, high = min(others, key=lambda level: level.rank), max(others, key=lambda level: level.rank)
    return low if low.rank > before.rank else high if high.rank < before.rank else before


def _told_level(record: HealthRecord, rule: str) -> Level:
    return Level(record.rules[rule].level) if rule in record.rules else Level.OK


def told(record: HealthRecord, changes: Collection[HealthChange]) -> HealthRecord:
    """Return the record with the changes marked as reported."""
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
    lasted: Mapping[str, str] | None = None,
    notifiers: Collection[tuple[str, Level]] = (),
) -> list[HealthChange]:
    """Record the changes of a verdict, and return them.

    If several callers record the same verdict, one of them gets the changes.

    Parameters
    ----------
    rules
        Record only changes of these rules; default all but :data:`UNWATCHED`.
    lasted
        As for :func:`changes`.
    notifiers
        Recipients for which changes are kept until :func:`sent`: name, and the lowest level that the notifier wants.
        A notifier that wanted the start of an alarm gets its end as well.
    """
    noted: list[HealthChange] = []

    def apply(found: HealthRecord | None) -> HealthRecord:
        record = found or HealthRecord()
        found_changes = changes(record, health, lasted=lasted)
        noted[:] = [one for one in found_changes if (one.rule != UNWATCHED if rules is None else one.rule in rules)]
        if not noted and found is not None:
            return found
        return told(record, noted).model_copy(update={"unsent": _queued(record.unsent, noted, notifiers)})

    JobDocuments(workspace.storage, job).health.update(apply)
    return noted


def hand_out(workspace: Workspace, job: str, notifiers: Collection[tuple[str, Level]]) -> None:
    """Move the changes kept for :data:`ANYBODY` to the queues of the notifiers that want them, as in :func:`note`."""

    def apply(found: HealthRecord | None) -> HealthRecord:
        record = found or HealthRecord()
        others = {name: queue for name, queue in record.unsent.items() if name != ANYBODY}
        kept = record.unsent.get(ANYBODY, [])
        refused = {name: refusal for name, refusal in record.refused.items() if name != ANYBODY}
        return record.model_copy(update={"unsent": _queued(others, kept, notifiers), "refused": refused})

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


def due(record: HealthRecord, notifier: str, *, now: datetime | None = None, anyway: bool = False) -> bool:
    """Return whether a notifier's queue should be sent now: not during another send, nor soon after a failed send.

    Parameters
    ----------
    anyway
        Whether to send in spite of a recent failure.
    """
    now = now or utc_now()
    refusal, asked = record.refused.get(notifier), record.sending.get(notifier)
    if not record.unsent.get(notifier) or (asked is not None and asked > now):
        return False
    return anyway or refusal is None or refusal.retry_at <= now


def unsent_due(record: HealthRecord, *, but: Collection[str] = (), now: datetime | None = None) -> bool:
    """Return whether any notifier has changes to send now.

    Parameters
    ----------
    but
        Rules whose changes alone are no reason to send.
    """
    return any(
        due(record, name, now=now) and any(change.rule not in but for change in queue)
        for name, queue in record.unsent.items()
    )


def begin_sending(workspace: Workspace, job: str, notifier: str, *, anyway: bool = False) -> list[HealthChange]:
    """Return the changes to send to a notifier now. The caller owns the send until :func:`sent`, or :data:`SENDING`.

    If several callers ask, one gets the changes; the others get an empty list.

    Parameters
    ----------
    anyway
        As for :func:`due`.
    """
    given: list[HealthChange] = []

    def apply(found: HealthRecord | None) -> HealthRecord:
        record, now = found or HealthRecord(), utc_now()
        given[:] = record.unsent[notifier] if due(record, notifier, now=now, anyway=anyway) else []
        if not given:
            return record
        return record.model_copy(update={"sending": {**record.sending, notifier: now + SENDING}})

    JobDocuments(workspace.storage, job).health.update(apply)
    return given


def sent(workspace: Workspace, job: str, notifier: str, given: Collection[HealthChange], *, ok: bool) -> None:
    """Record whether a notifier accepted changes. After a failure it is tried again, each time after twice the wait.

    Changes that arrive in between wait in the same queue.
    """

    def apply(found: HealthRecord | None) -> HealthRecord:
        record = found or HealthRecord()
        refused = {name: refusal for name, refusal in record.refused.items() if name != notifier}
        sending = {name: until for name, until in record.sending.items() if name != notifier}
        if not ok:
            times = record.refused[notifier].times + 1 if notifier in record.refused else 1
            # The exponent is bounded before doubling: it grows for as long as a notifier fails.
            wait = min(RETRY * 2 ** min(times - 1, 16), RETRY_MAX)
            refused[notifier] = Refused(times=times, retry_at=utc_now() + wait)
            return record.model_copy(update={"refused": refused, "sending": sending})
        left = [change for change in record.unsent.get(notifier, []) if change not in given]
        unsent = {name: queue for name, queue in record.unsent.items() if name != notifier}
        if left:
            unsent[notifier] = left
        return record.model_copy(update={"unsent": unsent, "refused": refused, "sending": sending})

    JobDocuments(workspace.storage, job).health.update(apply)


def put_off(workspace: Workspace, job: str) -> None:
    """Delay everything that is due by a minute, as when the list of notifiers is unknown.

    Does not count as a failure of the notifiers.
    """

    def apply(found: HealthRecord | None) -> HealthRecord:
        record, now = found or HealthRecord(), utc_now()
        refused = dict(record.refused)
        for name in record.unsent:
            if due(record, name, now=now):
                times = refused[name].times if name in refused else 0
                refused[name] = Refused(times=times, retry_at=now + RETRY)
        return record.model_copy(update={"refused": refused})

    JobDocuments(workspace.storage, job).health.update(apply)
