"""What the change of a field of a job requires: nothing, a restart, a savepoint before it, or another job."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

__all__ = ["FIELD_EFFECTS", "SOURCES", "WHOLE", "Effect", "effect_of", "strongest"]


class Effect(StrEnum):
    """What a change requires, from the weakest to the strongest."""

    NONE = "none"
    LIVE = "live"
    RESTART = "restart"
    SAVEPOINT = "savepoint + restart"
    REFUSED = "refused"

    @property
    def rank(self) -> int:
        """The effect's position in that order."""
        return list(Effect).index(self)


def strongest(effects: Iterable[Effect]) -> Effect:
    """Return the strongest effect; NONE without effects."""
    return max(effects, key=lambda effect: effect.rank, default=Effect.NONE)


_PACE = "changes the size and frequency of batches, not their rows"
_SUPERVISOR = "read by supervisors at each check"
_TABLE = "changes which rows the table gets, or how"
_CORRECTIONS = "read by corrections"
_BEGINS = "a job begins with it; a job that has a checkpoint does not read it"
_UNREAD = "the job has no checkpoint yet, so it can still change"
_TOPICS = "a topic that is added is read from its beginning; one that was read stays"

FIELD_EFFECTS: dict[str, tuple[Effect, str]] = {
    "name": (Effect.REFUSED, "a job of another name is another job"),
    "description": (Effect.LIVE, "read by people only"),
    "module": (Effect.SAVEPOINT, "another module may compute other rows or keep other state"),
    "source": (Effect.RESTART, _UNREAD),
    "sources": (Effect.RESTART, _UNREAD),
    "lookups": (Effect.SAVEPOINT, "changes what the query joins"),
    "watermark_policy": (Effect.RESTART, _UNREAD),
    "source.kind": (Effect.RESTART, _UNREAD),
    "source.path": (Effect.RESTART, _UNREAD),
    "source.table": (Effect.RESTART, _UNREAD),
    "source.published": (Effect.RESTART, _UNREAD),
    "source.max_files_per_batch": (Effect.RESTART, _PACE),
    "source.max_batch_size": (Effect.RESTART, _PACE),
    "source.max_file_size": (Effect.RESTART, "applies to files that are not planned yet"),
    "source.on_change": (Effect.RESTART, "applies to future commits; earlier ones were read or skipped"),
    "source.topic": (Effect.RESTART, _TOPICS),
    "source.topics": (Effect.RESTART, _TOPICS),
    "source.topic_pattern": (Effect.RESTART, _TOPICS),
    "source.value": (Effect.SAVEPOINT, "changes the columns that the query gets"),
    "source.bootstrap_servers": (
        Effect.RESTART,
        "must be the same cluster: in another one, the topic is another source",
    ),
    "source.starting_offsets": (Effect.RESTART, "applies only to a job without a checkpoint"),
    "source.max_offsets_per_batch": (Effect.RESTART, _PACE),
    "source.history": (Effect.RESTART, _BEGINS),
    "source.history.table": (Effect.RESTART, _BEGINS),
    "source.history.where": (Effect.RESTART, _BEGINS),
    "source.history.live_from": (Effect.RESTART, _BEGINS),
    "source.history.max_files_per_batch": (Effect.RESTART, _PACE),
    "sinks": (Effect.RESTART, "the first sink is the main one: its rows are counted"),
    "sinks.kind": (Effect.SAVEPOINT, _TABLE),
    "sinks.table": (Effect.SAVEPOINT, _TABLE),
    "sinks.topic": (Effect.SAVEPOINT, "rows are sent there from then on; the topic gets no earlier ones"),
    "sinks.bootstrap_servers": (Effect.RESTART, "rows are sent there from then on"),
    "sinks.output": (Effect.SAVEPOINT, _TABLE),
    "sinks.mode": (Effect.SAVEPOINT, _TABLE),
    "sinks.keys": (Effect.SAVEPOINT, _TABLE),
    "sinks.first_by": (Effect.SAVEPOINT, _TABLE),
    "sinks.final_when_passed": (Effect.SAVEPOINT, _TABLE),
    "sinks.serve": (Effect.RESTART, "the next driver fills the store from the table"),
    "sinks.serve.kind": (Effect.RESTART, "the next driver fills the new store from the table"),
    "sinks.serve.url": (Effect.RESTART, "the next driver fills the new store from the table"),
    "sinks.serve.expire_after": (Effect.RESTART, "applies to values that are written from then on"),
    "sinks.partition_by": (
        Effect.RESTART,
        "applies when the table is created; an existing table keeps its partitioning",
    ),
    "sinks.row_rules": (Effect.SAVEPOINT, "changes which rows are quarantined"),
    "sinks.reconcile": (Effect.LIVE, _CORRECTIONS),
    "sinks.reconcile.query": (Effect.LIVE, _CORRECTIONS),
    "sinks.reconcile.count": (Effect.LIVE, _CORRECTIONS),
    "sinks.on_restore": (Effect.LIVE, "read by restores"),
    "trigger.interval": (Effect.RESTART, _PACE),
    "trigger.min_pause": (Effect.RESTART, _PACE),
    "trigger.timeout": (Effect.LIVE, _SUPERVISOR),
    "failures.tolerable_consecutive": (Effect.RESTART, "the driver reads it when it starts"),
    "failures.backoff": (Effect.RESTART, "the driver reads it when it starts"),
    "failures.backoff_max": (Effect.RESTART, "the driver reads it when it starts"),
    "restarts": (Effect.LIVE, _SUPERVISOR),
    "state.backend": (Effect.RESTART, "there is no state yet that would fix it"),
    "state.partitions": (Effect.RESTART, "there is no state yet that would fix it"),
    "state.buckets": (Effect.RESTART, "there is no state yet that would fix it"),
    "state.changelog": (Effect.RESTART, "changes how state is written; both formats are read"),
    "state.ttl": (Effect.SAVEPOINT, "changes how long state is kept, and so the results"),
    "state.min_batches_to_retain": (Effect.RESTART, "Spark reads it when it starts"),
    "resources.cores": (Effect.RESTART, "the JVM takes it when it starts"),
    "resources.executors": (Effect.RESTART, "the cluster provides them when the driver starts"),
    "resources.memory": (Effect.RESTART, "the JVM takes it when it starts"),
    "savepoints": (Effect.LIVE, "read when a savepoint is due, and by housekeeping"),
    "health": (Effect.LIVE, _SUPERVISOR),
    "advisor": (Effect.LIVE, "read by the advisor"),
    "watermark": (Effect.SAVEPOINT, "changes which rows are late, and when state is removed"),
    "spark": (Effect.RESTART, "Spark takes it when it starts"),
    "options": (Effect.SAVEPOINT, "only the module knows what its options change"),
}
"""The effect of each dotted field, and why; sinks without the table's name.

A test checks that each leaf of the spec is here or below ``WHOLE``.
"""

_ROW_RULES = "sinks.row_rules"

WHOLE = frozenset({"lookups", "restarts", "savepoints", "health", "advisor", "spark", "options"})
"""Fields whose parts, including future parts, all have the same effect."""

SOURCES = ("source", "sources")
"""The fields that hold sources: one, or several by name."""

_SQL = (Effect.SAVEPOINT, "Spark SQL settings may change rows or the format of state")


def effect_of(rule: str, name: str = "") -> tuple[Effect, str]:
    """Return the effect of a changed field, if it does not contradict the checkpoint, and the reason.

    Parameters
    ----------
    rule
        The dotted field; a sink's field without its table.
    name
        For ``spark``: the setting.

    Raises
    ------
    KeyError
        If the field has no effect: a program error, which a test finds.
    """
    if rule == "spark" and name.startswith("spark.sql."):
        return _SQL
    top = rule.split(".", 1)[0]
    if top in SOURCES and ".value." in rule:
        rule = "source.value"
    elif rule.startswith(_ROW_RULES):
        rule = _ROW_RULES
    elif top == "sources" and "." in rule:
        # A source has the same fields under any name.
        parts = rule.split(".")
        rule = ".".join(["source", *(["history"] if "history" in parts[:-1] else []), parts[-1]])
    return FIELD_EFFECTS[top if top in WHOLE else rule]
