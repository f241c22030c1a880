"""The health verdict on a job: each rule measures one value in the job's documents, and compares it with its limits.

Pure functions: the Airflow trigger, the command line and a test conclude the same from the same documents.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from streamwarden.model.durations import format_duration
from streamwarden.model.health_spec import DurationLimit
from streamwarden.model.progress import BatchProgress, Progress
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Desired, Heartbeat
from streamwarden.model.supervision import Restart
from streamwarden.supervision.held_tables import HeldTable

__all__ = ["LATE_ROWS_FROM", "PASSED_OVER", "RULES", "Facts", "Finding", "Health", "Level", "judge", "stuck_for"]

PASSED_OVER = "passed_over"
"""The rule for source commits that the job skips by configuration. It has no limits."""

_ENOUGH = 3
"""Batches that an average needs. 3: the first batch of a JVM is slow, and a single batch proves nothing."""

_FILLED = timedelta(hours=1)
"""How long a first start or a replay may fill the state. 1 h: then even growth at most doubles it in an hour."""

_GROWTH = 10.0
"""Growth of the state per hour. A tenfold state within an hour means keys that never repeat, not a growing load."""

_NAMED = 3
"""How many landed files an alarm names."""

LATE_ROWS_FROM = 100
"""Input rows below which a share of late rows says nothing."""

_KEYS = 10_000
_READS = 1_000


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0, 1 or 2, for comparisons."""
        return list(Level).index(self)


@dataclass(frozen=True)
class Finding:
    """A rule whose limit is reached.

    Parameters
    ----------
    rule
        The rule's name, also the name of its limits in the spec's ``health``.
    level
        Which of the two limits is reached.
    what
        Value and limit in words.
    value, limit
        The same as numbers: seconds, rows, bytes or a ratio.
    """

    rule: str
    level: Level
    what: str
    value: float
    limit: float


@dataclass(frozen=True)
class Health:
    """The verdict.

    Parameters
    ----------
    level
        The worst finding's level.
    findings
        The worst first; empty for a healthy job.
    """

    findings: tuple[Finding, ...] = ()

    @property
    def level(self) -> Level:
        """The worst finding's level."""
        return max((finding.level for finding in self.findings), key=lambda level: level.rank, default=Level.OK)


@dataclass(frozen=True)
class Facts:
    """The input of the rules.

    Parameters
    ----------
    now
        The moment of the verdict.
    desired
        The desired state; its spec has the limits.
    alive
        Whether a driver runs the job.
    heartbeat, progress
        Documents of the current incarnation.
    launched_at
        When the current incarnation was launched.
    restarts
        The restarts that the supervisor recorded.
    down
        For a job that is down but must run: the reason, in words.
    final
        Whether the job stays down.
    stopping_since
        For a suspended job whose driver still lives: when the driver was asked to stop.
    held
        The job's tables that the gate holds.
    """

    now: datetime
    desired: Desired
    alive: bool
    heartbeat: Heartbeat | None = None
    progress: Progress | None = None
    launched_at: datetime | None = None
    restarts: Sequence[Restart] = ()
    down: str = ""
    final: bool = False
    stopping_since: datetime | None = None
    held: Sequence[HeldTable] = ()
    batches: Sequence[BatchProgress] = field(init=False)

    def __post_init__(self) -> None:
        recent = self.progress.recent if self.progress else []
        object.__setattr__(self, "batches", recent[-self.spec.health.window :])

    @property
    def spec(self) -> JobSpec:
        """The deployed spec."""
        return self.desired.spec


@dataclass(frozen=True)
class _Measure:
    """A value with its limits.

    Parameters
    ----------
    text
        Formats a value or a limit for people.
    floor
        Whether lower values are worse.
    """

    value: float
    what: str
    warn: float | None
    critical: float | None
    text: Callable[[float], str]
    floor: bool = False

    def reaches(self, limit: float | None) -> bool:
        return limit is not None and (self.value <= limit if self.floor else self.value >= limit)


Rule = Callable[[Facts], "_Measure | None"]


def judge(facts: Facts) -> Health:
    """Apply every rule. A suspended job is healthy regardless of its last batches, unless its driver does not stop."""
    if facts.desired.state == "suspended":
        return _of_a_stop(facts)
    findings = []
    if facts.down:
        level = Level.CRITICAL if facts.final else Level.WARN
        findings.append(Finding("driver", level, facts.down, 1, 1))
    findings += _passed_over(facts)
    for name, rule in RULES.items():
        measure = rule(facts)
        if measure is None:
            continue
        level = (
            Level.CRITICAL
            if measure.reaches(measure.critical)
            else Level.WARN
            if measure.reaches(measure.warn)
            else Level.OK
        )
        if level is Level.OK:
            continue
        limit = measure.critical if level is Level.CRITICAL else measure.warn
        assert limit is not None
        what = f"{measure.what}: {measure.text(measure.value)} ({level} at {measure.text(limit)})"
        findings.append(Finding(name, level, what, measure.value, limit))
    return Health(tuple(sorted(findings, key=lambda finding: -finding.level.rank)))


def _of_a_stop(facts: Facts) -> Health:
    if facts.stopping_since is None:
        return Health()
    # A stop takes as long as the batch in flight. If it takes longer than a batch may take, the stop has a problem.
    lasts, limit = (facts.now - facts.stopping_since).total_seconds(), facts.spec.trigger.timeout.total_seconds()
    if lasts < limit:
        return Health()
    what = f"the driver was asked to stop and is still alive: {_duration(lasts)} ({Level.WARN} at {_duration(limit)})"
    return Health((Finding("driver", Level.WARN, what, lasts, limit),))


def _passed_over(facts: Facts) -> list[Finding]:
    """Warn of commits that the job skipped by configuration, while their batches are among the newest 50."""
    recent = facts.progress.recent if facts.progress else []
    sources = [done.source for done in recent if done.source is not None and done.source.skipped]
    if not sources:
        return []
    number, last = sum(source.skipped for source in sources), sources[-1].skipped_last
    what = last if number == 1 else f"{number} commits of its source, the last: {last}"
    return [Finding(PASSED_OVER, Level.WARN, what, number, 1)]


def stuck_for(facts: Facts) -> timedelta | None:
    """Return how long a living driver has had no batch, if that time is critical; otherwise None."""
    measure = _no_batch(facts)
    if not facts.alive or measure is None or not measure.reaches(measure.critical):
        return None
    return timedelta(seconds=measure.value)


def _no_batch(facts: Facts) -> _Measure | None:
    if not facts.alive and not facts.down:
        # An operation stopped the driver, and reports by itself how long that takes.
        return None
    moments = [
        facts.launched_at,
        facts.heartbeat.started_at if facts.heartbeat else None,
        facts.heartbeat.idle_at if facts.heartbeat else None,
        facts.progress.last.at if facts.progress and facts.progress.last else None,
    ]
    known = [moment for moment in moments if moment is not None]
    if not known:
        return None
    spec = facts.spec
    own = max(spec.trigger.interval, spec.trigger.timeout) * (spec.failures.tolerable_consecutive + 2)
    # A pause before a batch is no part of a try, and neither is a wait before the next try.
    own += spec.trigger.min_pause + spec.failures.waits
    limit = spec.health.no_batch
    critical = limit.critical if limit.critical is not None else own if limit.warn is None else max(own, limit.warn)
    warn = limit.warn if limit.warn is not None else critical / 2
    last = facts.progress.last.batch if facts.progress and facts.progress.last else None
    since = "no batch committed" if last is None else f"no batch after {last}"
    return _seconds((facts.now - max(known)).total_seconds(), since, warn, critical)


def _failed_tries(facts: Facts) -> _Measure:
    limit = facts.spec.health.failed_tries
    now = facts.heartbeat.failures if facts.heartbeat and facts.alive else 0
    failed = sum(done.tries - 1 for done in facts.batches) + now
    what = f"failed tries in the last {len(facts.batches)} batches and the current one"
    return _Measure(failed, what, limit.warn, limit.critical, _count)


def _restarts(facts: Facts) -> _Measure:
    policy, limit = facts.spec.restarts, facts.spec.health.restarts
    spent = sum(entry.counts and facts.now - entry.at < policy.window for entry in facts.restarts)
    # Restarts never exceed the budget: a limit above the budget would never be reached.
    critical = limit.critical if limit.critical is not None else max(policy.max, 1)
    warn = None if limit.warn is None else min(limit.warn, critical)
    return _Measure(spent, f"restarts within {format_duration(policy.window)}", warn, critical, _count)


def _watermark_lag(facts: Facts) -> _Measure | None:
    lags = [done.watermark_lag_s for done in facts.batches if done.watermark_lag_s is not None]
    delay, limit = facts.spec.watermark, facts.spec.health.watermark_lag
    if len(lags) < _ENOUGH:
        return None
    warn, critical = limit.warn, limit.critical
    # A job's module may set a watermark that is not in its spec: explicit limits apply in that case too.
    if delay:
        warn = warn if warn is not None else delay * 4
        critical = critical if critical is not None else max(delay * 12, warn)
    return _seconds(min(lags), "the watermark is behind the newest event by", warn, critical)


def _backlog(facts: Facts) -> _Measure | None:
    measured = [(done.source, done.duration_ms / 1000) for done in facts.batches if done.source is not None]
    taken = sum(source.taken for source, _ in measured)
    if len(measured) < _ENOUGH or not taken or measured[-1][0].pending is None:
        return None
    pending, unit = measured[-1][0].pending, measured[-1][0].unit
    # Counts the duration of the batches only: batches of a backlog follow each other without a pause.
    # Those without input, for timers or a watermark, would not run between them.
    seconds = pending * sum(took for source, took in measured if source.taken) / taken
    limit = facts.spec.health.backlog
    return _seconds(seconds, f"{pending} {unit} are waiting, worth", limit.warn, limit.critical)


def _falling_behind(facts: Facts) -> _Measure | None:
    sources = [done.source for done in facts.batches if done.source is not None and done.source.pending is not None]
    if len(sources) < _ENOUGH:
        return None
    first, last = sources[0].pending, sources[-1].pending
    assert first is not None and last is not None
    with_input = [source.taken for source in sources[1:] if source.taken]
    taken = sum(with_input)
    # A short backlog, or growth by a single late file, is not falling behind.
    if not taken or last <= 3 * taken / len(with_input):
        return None
    if statistics.linear_regression(range(len(sources)), [float(s.pending or 0) for s in sources]).slope <= 0:
        return None
    limit = facts.spec.health.falling_behind
    what = f"{last} {sources[-1].unit} are waiting, and their number grows; arriving over processed"
    return _Measure((taken + last - first) / taken, what, limit.warn, limit.critical, _ratio)


def _idle_source(facts: Facts) -> _Measure | None:
    """Measure for how long a source without input holds the watermark back, while others have input."""
    last = facts.progress.last if facts.progress else None
    if facts.spec.watermark_policy != "min" or facts.spec.watermark is None or last is None:
        return None
    since = last.watermark_since
    if since is None or not last.sources:
        return None
    idle = [name for name, one in last.sources.items() if one.input_at is None or one.input_at <= since]
    if not idle or len(idle) == len(last.sources):
        return None
    limit, held = facts.spec.health.idle_source, last.watermark
    where = f"at {held:%Y-%m-%d %H:%M:%S}" if held is not None else "at its beginning"
    what = f"no input from {' and '.join(idle)}, which holds the watermark {where}"
    return _seconds((last.at - since).total_seconds(), what, limit.warn, limit.critical)


def _late_rows(facts: Facts) -> _Measure | None:
    rows = sum(done.rows_in for done in facts.batches)
    late = sum(done.late_rows for done in facts.batches)
    if rows < LATE_ROWS_FROM:
        return None
    limit = facts.spec.health.late_rows
    return _Measure(late / rows, "share of late rows", limit.warn, limit.critical, _ratio)


def _gate_held(facts: Facts) -> _Measure | None:
    """Measure for how long the gate has held a table; the longest, if it holds several."""
    if not facts.held:
        return None
    first = min(facts.held, key=lambda one: one.since)
    limit = facts.spec.health.gate_held
    others = f", and {len(facts.held) - 1} more" if len(facts.held) > 1 else ""
    return _seconds((facts.now - first.since).total_seconds(), first.what + others, limit.warn, limit.critical)


def _commit_time(facts: Facts) -> _Measure | None:
    limit = facts.spec.health.commit_time
    return _median((done.commit_ms for done in facts.batches), "a batch's commits take", limit)


def _checkpoint_time(facts: Facts) -> _Measure | None:
    limit = facts.spec.health.checkpoint_time
    return _median((done.checkpoint_ms for done in facts.batches), "Spark's offset and commit logs take", limit)


def _landing(facts: Facts) -> _Measure | None:
    state = facts.heartbeat.landing if facts.heartbeat else None
    if state is None or not state.told:
        return None
    limit, more = facts.spec.health.landing, state.told - _NAMED
    names = "; ".join(state.first[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return _Measure(state.told, f"landed files that need attention ({names})", limit.warn, limit.critical, _count)


# The alarm names the action as well, since a suspended job raises no further alarm.
_AT_STATE_LIMIT = {
    "warn": "",
    "savepoint_and_stop": " (at critical the job is suspended, with a savepoint)",
    "fail": " (at critical the job is stopped)",
}


def _state_rows(facts: Facts) -> _Measure | None:
    if not facts.batches:
        return None
    health = facts.spec.health
    what, limit = f"keys in the state{_AT_STATE_LIMIT[health.on_state_limit]}", health.state_rows
    return _Measure(facts.batches[-1].state_rows, what, limit.warn, limit.critical, _count)


def _state_bytes(facts: Facts) -> _Measure | None:
    if not facts.batches:
        return None
    limit, memory = facts.spec.health.state_bytes, facts.spec.resources.memory_bytes
    warn = limit.warn if limit.warn is not None else memory if limit.critical is None else min(memory, limit.critical)
    critical = limit.critical if limit.critical is not None else max(2 * memory, warn)
    return _Measure(facts.batches[-1].state_bytes, "memory of the state stores", warn, critical, _bytes)


def _state_growth(facts: Facts) -> _Measure | None:
    if len(facts.batches) < _ENOUGH or facts.batches[0].state_rows < _KEYS:
        return None
    first, last = facts.batches[0], facts.batches[-1]
    hours = (last.at - first.at).total_seconds() / 3600
    if hours <= 0:
        return None
    limit = facts.spec.health.state_growth
    growth = (last.state_rows - first.state_rows) / first.state_rows / hours
    critical = limit.critical
    began = facts.heartbeat.started_at if facts.heartbeat else None
    if critical is None and began is not None and facts.now - began >= _FILLED:
        critical = max(_GROWTH, limit.warn or 0.0)
    return _Measure(growth, "the state grows, a share an hour, by", limit.warn, critical, _ratio)


def _compaction(facts: Facts) -> _Measure | None:
    limit = facts.spec.health.compaction
    share = _share_of_time(facts, "rocksdbTotalCompactionLatencyMs")
    if share is None:
        return None
    share /= facts.spec.resources.cores
    return _Measure(share, "RocksDB compacts for this share of the time", limit.warn, limit.critical, _ratio)


def _write_stall(facts: Facts) -> _Measure | None:
    limit = facts.spec.health.write_stall
    share = _share_of_time(facts, "rocksdbWriterStallLatencyMs")
    if share is None:
        return None
    return _Measure(share, "RocksDB holds writers back for this share", limit.warn, limit.critical, _ratio)


def _cache_hits(facts: Facts) -> _Measure | None:
    hits = _sum(facts, "rocksdbReadBlockCacheHitCount")
    reads = hits + _sum(facts, "rocksdbReadBlockCacheMissCount")
    if reads < _READS:
        return None
    limit = facts.spec.health.cache_hits
    what = "share of RocksDB's reads that its cache answers"
    return _Measure(hits / reads, what, limit.warn, limit.critical, _ratio, floor=True)


RULES: dict[str, Rule] = {
    "no_batch": _no_batch,
    "failed_tries": _failed_tries,
    "restarts": _restarts,
    "watermark_lag": _watermark_lag,
    "backlog": _backlog,
    "falling_behind": _falling_behind,
    "idle_source": _idle_source,
    "late_rows": _late_rows,
    "gate_held": _gate_held,
    "commit_time": _commit_time,
    "checkpoint_time": _checkpoint_time,
    "landing": _landing,
    "state_rows": _state_rows,
    "state_bytes": _state_bytes,
    "state_growth": _state_growth,
    "compaction": _compaction,
    "write_stall": _write_stall,
    "cache_hits": _cache_hits,
}
"""Every rule but ``driver`` and ``passed_over``, which have no limits, by the name of its limits in the spec."""


def _seconds(value: float, what: str, warn: timedelta | None, critical: timedelta | None) -> _Measure:
    limits = [None if limit is None else limit.total_seconds() for limit in (warn, critical)]
    return _Measure(value, what, limits[0], limits[1], _duration)


def _median(milliseconds: Iterable[int], what: str, limit: DurationLimit) -> _Measure | None:
    values = list(milliseconds)
    if len(values) < _ENOUGH:
        return None
    return _seconds(statistics.median(values) / 1000, what, limit.warn, limit.critical)


def _sum(facts: Facts, metric: str) -> int:
    return sum(operator.metrics.get(metric, 0) for done in facts.batches for operator in done.operators)


def _share_of_time(facts: Facts, metric: str) -> float | None:
    took = sum(done.duration_ms for done in facts.batches)
    return _sum(facts, metric) / took if took and len(facts.batches) >= _ENOUGH else None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"


def _ratio(value: float) -> str:
    return f"{value:.2f}"
