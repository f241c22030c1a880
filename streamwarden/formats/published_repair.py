"""Write damaged entries of a table's published log again."""

from __future__ import annotations

from streamwarden.errors import StreamwardenError
from streamwarden.formats.published_entries import (
    AFTER,
    LITERAL,
    NOTHING,
    SHOWN,
    Action,
    PublishedAt,
    PublishedEntries,
    encode,
)

__all__ = ["repair"]


def repair(log: PublishedEntries) -> list[int]:
    """Write damaged and missing entries of a published log again; return their versions.

    An entry that is not the last is rebuilt from the table's log and its neighbours: they say which content it
    shows. A damaged last entry is removed: the gate decides about it again.

    Raises
    ------
    StreamwardenError
        ``GATE_LOG_GONE``: the table's log has lost what is needed.
    """
    done = []
    versions = log.versions()
    while versions and not log.is_sound(versions[-1]):
        log.storage.delete(log.key(versions[-1]))
        done.append(versions.pop())
    # A first entry that is lost has left its checkpoint; older checkpoints are those of a killed removal.
    begins = [number for number in log.checkpoints() if versions and number <= versions[0]]
    first, before = max(begins, default=0), NOTHING
    for number in range(first, versions[-1] + 1 if versions else 0):
        if number not in versions or not log.is_sound(number):
            data = log.first_commit(number) if number == first else encode(_rebuilt(log, number, before))
            log.storage.write(log.key(number), data)
            done.append(number)
        before = PublishedAt(number, log.content(number))
    return sorted(done)


def _rebuilt(log: PublishedEntries, number: int, before: PublishedAt) -> list[Action]:
    """Return a lost entry.

    Parameters
    ----------
    before
        What the entry before it shows.
    """
    if before.content >= number:
        # The range's commits behind the one that shows it.
        return dict(log.between(before, before.content, changes=True))[number]
    shown = _shown(log, number, before)
    if shown == number:
        return dict(log.between(before, number, changes=before != PublishedAt(number - 1, number - 1)))[number]
    if shown > number:
        return dict(log.between(before, shown, changes=True))[number]
    return log.entry(number, shown, before.content, [], table=log.table_id(before.number))


def _shown(log: PublishedEntries, number: int, before: PublishedAt) -> int:
    """Return the version whose content a lost entry has shown, or an older one."""
    try:
        tags = log.tags(number + 1)
    except StreamwardenError:
        return before.content
    following = int(tags[SHOWN])
    if tags[LITERAL] == "true" or int(tags.get(AFTER, -1)) == number:
        return number
    if following <= number:
        return following
    return following if before.content < number and AFTER in tags else before.content
