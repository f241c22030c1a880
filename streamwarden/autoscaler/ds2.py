"""Recommended parallelism of a job: DS2's rule, for micro-batches.

DS2 (Kalavri et al., "Three steps is all you need", OSDI 2018) computes how many rows a second an instance can process
without waiting. An operator gets as many instances as its input needs. Here the operator is the batch, and waiting is
the time between batches. More cores shorten only the rows' part of a batch, so only this part is divided; the fixed
part is estimated separately.

Pure functions: equal inputs from the command, the DAG or a simulation give equal results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from streamwarden.autoscaler.load import BatchSeen, Cost, arrivals, busy_share, cost, pending_rows
from streamwarden.model.advisor_spec import AdvisorSpec
from streamwarden.model.durations import format_duration
from streamwarden.model.status import Parallelism

__all__ = ["Recommendation", "StateShare", "recommend"]

_PER_CORE = 2
"""Recommended state partitions per core. 2: the slower half of a batch's tasks overlaps with the faster half."""

_TOO_MANY = 8
"""State partitions per core above which fewer are recommended: each commits a store in every batch."""

_SKEWED = 2.0
"""Ratio of largest to mean partition above which the state is skewed. 2: compaction alone makes files differ."""

_COUNTED = 2**20
"""Bytes of state below which skew is ignored: even an empty store has some kilobytes."""


@dataclass(frozen=True)
class StateShare:
    """Distribution of the state over its partitions.

    Parameters
    ----------
    bytes
        Bytes of each partition, over all operators and stores.
    """

    bytes: Sequence[int] = ()

    @property
    def total(self) -> int:
        """Bytes of all partitions."""
        return sum(self.bytes)

    @property
    def skew(self) -> float:
        """Ratio of the largest to the mean partition; 1 if the state is too small."""
        return max(self.bytes) * len(self.bytes) / self.total if self.total >= _COUNTED else 1.0

    @property
    def largest(self) -> float | None:
        """The largest partition's share, or None if it is about as large as the others."""
        return max(self.bytes) / self.total if self.skew > _SKEWED else None


@dataclass(frozen=True)
class Recommendation:
    """Recommended parallelism of a job, and the reasons.

    Parameters
    ----------
    now, to
        Current and recommended parallelism; equal if nothing should change.
    why
        Sentences, the most important first.
    rows_per_second
        Arrival rate at the source; None: not enough known.
    capacity
        Rows a second in batches that fill the interval; None: unknown, or no batch fits.
    busy
        Share of the time that its batches took.
    expected_busy
        Share of the interval that a batch takes, now and as recommended, by the fitted cost. None: unknown, also if
        each batch is held up by too many state partitions.
    backlog_rows
        Rows that wait.
    skew
        Ratio of the largest to the mean state partition.
    """

    now: Parallelism
    to: Parallelism
    why: tuple[str, ...]
    rows_per_second: float | None = None
    capacity: float | None = None
    busy: float | None = None
    expected_busy: tuple[float, float] | None = None
    backlog_rows: float | None = None
    skew: float = 1.0

    @property
    def changes(self) -> dict[str, int]:
        """The fields to change."""
        names = ("partitions", "cores")
        return {name: getattr(self.to, name) for name in names if getattr(self.to, name) != getattr(self.now, name)}


def recommend(
    batches: Sequence[BatchSeen],
    now: datetime,
    parallelism: Parallelism,
    since: datetime,
    interval: timedelta,
    settings: AdvisorSpec,
    state: StateShare | None = None,
    *,
    idle: bool = False,
) -> Recommendation:
    """Recommend state partitions and cores.

    Does not recommend memory, nor a cluster's executors other than by the number of cores.

    Parameters
    ----------
    batches
        Oldest first; the last ``settings.down_after`` and earlier ones if there are any.
    now
        The time.
    parallelism
        The job's current parallelism.
    since
        Start of that parallelism: only later batches give the cost.
    interval
        The trigger's interval.
    settings
        Limits.
    state
        Distribution of the state; None for a stateless job.
    idle
        Whether the driver has found no new input since its last batch, so nothing has arrived until now.
    """
    return _Advisor(batches, now, parallelism, since, interval, settings, state, idle).recommend()


@dataclass
class _Advisor:
    batches: Sequence[BatchSeen]
    now: datetime
    parallelism: Parallelism
    since: datetime
    interval: timedelta
    settings: AdvisorSpec
    state: StateShare | None
    idle: bool
    why: list[str] = field(default_factory=list)
    fewer_first: bool = False
    """Whether so many state partitions hold each batch up that the rest is unknown until there are fewer."""

    def __post_init__(self) -> None:
        # Arrivals after the last batch are unknown until the next one.
        self.until = self.now if self.idle or not self.batches else self.batches[-1].at
        begin = self.until - self.settings.window
        self.recent = [one for one in self.batches if one.at > begin]
        mine = [one for one in self.batches if one.at > self.since]
        self.fitted = cost(mine, begin)
        self.rate = arrivals(self.batches, self.until, self.settings.window)
        self.backlog = pending_rows(self.recent)

    def recommend(self) -> Recommendation:
        if self.fitted is None or self.rate is None:
            if self._within(self.parallelism.cores) == self.parallelism.cores:
                self.why.append(self._unknown())
            return self._said(self._partitions(self.parallelism.cores))
        cores = self._cores(self.fitted, self.rate)
        return self._said(self._partitions(cores))

    def _unknown(self) -> str:
        window = format_duration(self.settings.window)
        return f"too little is known of the last {window} at this parallelism: {len(self.recent)} batches"

    # -- cores -------------------------------------------------------------------------------------------------------

    def _cores(self, fitted: Cost, rate: float) -> int:
        limits = self.settings
        now = self._busy(fitted, rate, self.parallelism.cores)
        behind = self._behind(fitted, rate)
        if now > limits.busy_above or behind:
            wanted = self._needed(fitted, rate, catch_up=True)
            target = limits.target_busy
            if wanted is None:
                # The target is unreachable, but keeping up with arrivals is possible.
                target = limits.busy_above
                wanted = self._needed(fitted, rate, catch_up=True, share=target)
            reason = f"{rate:,.0f} rows/s arrive, and batches take {now:.0%} of the interval"
            if behind:
                room = format_duration(limits.catch_up)
                reason += f"; {self.backlog or 0:,.0f} rows wait, more than can be caught up with in {room}"
            return self._more(fitted, rate, wanted, target, reason)
        peak = self._peak()
        if peak is None:
            if self.parallelism.cores > limits.min_cores and self._needed(fitted, rate) != self.parallelism.cores:
                after = format_duration(limits.down_after)
                self.why.append(f"fewer cores may be enough, but the load of the last {after} is not known yet")
            return self._within(self.parallelism.cores)
        least = self._needed(fitted, max(peak, rate))
        if least is not None and least < self.parallelism.cores and self._within(least) < self.parallelism.cores:
            after, fewer = format_duration(limits.down_after), self._within(least)
            share = self._busy(fitted, max(peak, rate), fewer)
            self.why.append(
                f"no more than {max(peak, rate):,.0f} rows/s arrived in the last {after}: with {fewer} cores batches"
                f" would take {share:.0%} of the interval; the target is {limits.target_busy:.0%}"
            )
            return fewer
        self.why.append(
            f"{rate:,.0f} rows/s arrive, and batches take {now:.0%} of the interval: fewer cores are not enough,"
            f" and more are not needed up to {limits.busy_above:.0%}"
        )
        return self._within(self.parallelism.cores)

    def _more(self, fitted: Cost, rate: float, wanted: int | None, target: float, reason: str) -> int:
        if wanted is None and fitted.fixed >= self.settings.busy_above * self.interval.total_seconds():
            reason += f"; {fitted.fixed:.1f} s of each batch don't depend on its rows"
            cores, partitions = self.parallelism.cores, self.parallelism.partitions
            if self.state is not None and partitions > max(_TOO_MANY * cores, self._fewest(cores, self.state)):
                self.why.append(reason)
                self.fewer_first = True
                return self._within(self.parallelism.cores)
            # What to do comes first: the reasons are long.
            reason = f"make trigger.interval longer than {fitted.fixed / self.settings.target_busy:.0f}s: {reason}"
            wanted, target = self._for_rows(fitted, rate + self._backlog_rate()), self.settings.busy_above
            if wanted is None or wanted <= self.parallelism.cores:
                self.why.append(f"{reason}; more cores don't help")
                return self._within(self.parallelism.cores)
        if wanted is None:
            self._tell_skew()
            wanted = math.ceil(1 / self._largest())
            if wanted <= self.parallelism.cores:
                self.why.append(f"{reason}; the largest partition alone is too slow, so more cores don't help")
                return self._within(self.parallelism.cores)
        useful = wanted if self.state is None else max(self.parallelism.partitions, self.settings.max_partitions)
        named = "max_partitions" if useful < min(wanted, self.settings.max_cores) else "max_cores"
        # Cores that idled for lack of partitions may be enough once they are used.
        cores = max(self._within(min(wanted, useful)), self._within(self.parallelism.cores))
        if cores == self.parallelism.cores and wanted > cores:
            self.why.append(f"{reason}; {wanted} cores are needed, and {cores} is the limit (advisor.{named})")
        elif cores == self.parallelism.cores:
            self.why.append(f"{reason}; of {cores} cores only {self.parallelism.partitions} have a state partition")
        else:
            limit = f", and {cores} is the limit (advisor.{named})" if wanted > cores else ""
            self.why.append(f"{reason}; {wanted} cores are needed for {target:.0%}{limit}")
        return cores

    def _slower(self, cores: int, partitions: int | None = None) -> float:
        """Return the factor by which other cores lengthen the time of a batch's rows."""
        spread = partitions or max(self.parallelism.partitions, cores)
        floor = self._largest()
        before = max(1 / self._used(self.parallelism.cores, self.parallelism.partitions), floor)
        return max(1 / self._used(cores, spread), floor) / before

    def _used(self, cores: int, partitions: int) -> int:
        # Partitions limit the cores in use only for a job with state.
        return min(cores, partitions) if self.state is not None else cores

    def _largest(self) -> float:
        return (self.state.largest if self.state is not None else None) or 0.0

    def _busy(self, fitted: Cost, rate: float, cores: int) -> float:
        seconds = self.interval.total_seconds()
        partitions = self.parallelism.partitions if cores == self.parallelism.cores else None
        return fitted.seconds(rate * seconds, slower=self._slower(cores, partitions)) / seconds

    def _behind(self, fitted: Cost, rate: float) -> bool:
        return self._busy(fitted, rate + self._backlog_rate(), self.parallelism.cores) > 1 if self.backlog else False

    def _backlog_rate(self) -> float:
        return (self.backlog or 0.0) / self.settings.catch_up.total_seconds()

    def _needed(self, fitted: Cost, rate: float, *, catch_up: bool = False, share: float | None = None) -> int | None:
        """Return the least cores that keep a batch's share at the target or at `share`; None if no number does."""
        shares = [(rate, share or self.settings.target_busy)]
        if catch_up:
            shares.append((rate + self._backlog_rate(), 1.0))
        seconds = self.interval.total_seconds()
        needed = 1
        alone = self._slower(1, 1)
        for rows, most in shares:
            room, work = most * seconds - fitted.fixed, fitted.row * alone * rows * seconds
            if room <= 0 or work * self._largest() > room:
                return None
            # Slightly less, so that an exact fit does not round up.
            needed = max(needed, math.ceil(work / room - 1e-9))
        return needed

    def _for_rows(self, fitted: Cost, rate: float) -> int | None:
        """Return the cores for the rows alone; None if a large partition makes them useless.

        Batches that take longer than the interval follow each other, and grow: then their fixed part hardly counts.
        """
        work = fitted.row * self._slower(1, 1) * rate / self.settings.busy_above
        return math.ceil(work - 1e-9) if work * self._largest() <= 1 else None

    def _peak(self) -> float | None:
        """Return the highest load of any window in the scale-down time; None: not known."""
        limits = self.settings
        if not self.batches or self.batches[0].at > self.until - limits.down_after:
            return None
        # The last batch ends the last window; the first window starts with the period.
        ends, end = [], self.until
        while end - limits.window >= self.until - limits.down_after:
            ends.append(end)
            end -= limits.window / 3
        rates = [arrivals(self.batches, end, limits.window) for end in ends]
        known = [rate for rate in rates if rate is not None]
        return max(known) if len(known) == len(rates) else None

    def _within(self, cores: int) -> int:
        limits, each = self.settings, self.parallelism.executors or 1
        allowed = min(max(cores, limits.min_cores), limits.max_cores)
        # Executors have the same number of cores each.
        even = -(-allowed // each) * each
        return even if even <= limits.max_cores else max(allowed // each, 1) * each

    # -- partitions --------------------------------------------------------------------------------------------------

    def _partitions(self, cores: int) -> Parallelism:
        cores = self._within(cores)
        partitions = self.parallelism.partitions
        if cores != self.parallelism.cores and not self.why:
            self.why.append(f"advisor.min_cores and max_cores allow {cores}")
        if self.state is not None and self.state.bytes:
            told = len(self.why)
            partitions = self._spread(cores, self.state)
            if cores == self.parallelism.cores and partitions != self.parallelism.partitions:
                # The reasons for the change come first, before those for unchanged cores.
                self.why = self.why[told:] + self.why[:told]
        return self.parallelism.model_copy(update={"cores": cores, "partitions": partitions})

    def _spread(self, cores: int, state: StateShare) -> int:
        limits, partitions = self.settings, self.parallelism.partitions
        for_state = math.ceil(state.total / limits.bytes_per_partition)
        wanted = partitions
        if partitions < cores:
            wanted = _PER_CORE * cores
            self.why.append(f"{cores} cores need at least as many state partitions, and there are {partitions}")
        if for_state > max(partitions, wanted):
            wanted = -(-for_state // cores) * cores
            self.why.append(
                f"a state partition has {state.total / partitions / 2**20:.0f} MiB,"
                f" {limits.bytes_per_partition / 2**20:.0f} is the limit"
            )
        fewest = self._fewest(cores, state)
        # Only if the load is known for long enough: partitions that seem too many now may be needed in an hour.
        known = self.fewer_first or self._peak() is not None
        if wanted == partitions > _TOO_MANY * cores and fewest < partitions and known:
            wanted = fewest
            on = f"{cores} cores" if cores > 1 else "1 core"
            self.why.append(f"{partitions} state partitions on {on}: each commits a store in every batch")
        allowed = min(max(wanted, limits.min_partitions), limits.max_partitions)
        if allowed != wanted:
            limit = "max_partitions" if allowed < wanted else "min_partitions"
            now = (
                f"there are {wanted} state partitions"
                if wanted == partitions
                else f"{wanted} state partitions are wanted"
            )
            self.why.append(f"{now}, and {allowed} are the limit (advisor.{limit})")
        self._tell_skew()
        return allowed

    def _fewest(self, cores: int, state: StateShare) -> int:
        """Return the fewest partitions that are worth a rescale: for the cores, and for a state twice as large."""
        for_state = math.ceil(state.total / self.settings.bytes_per_partition)
        return max(_PER_CORE * cores, 2 * for_state, self.settings.min_partitions)

    def _tell_skew(self) -> None:
        largest = self._largest()
        if not largest or self.state is None:
            return
        number = max(range(len(self.state.bytes)), key=self.state.bytes.__getitem__)
        said = (
            f"the state is skewed: partition {number} has {largest:.0%} of it, {self.state.skew:.1f} times the mean;"
            f" more than {math.ceil(1 / largest)} cores don't help against that"
        )
        if said not in self.why:
            self.why.append(said)

    def _said(self, to: Parallelism) -> Recommendation:
        expected = capacity = None
        if self.fitted is not None and self.rate is not None:
            capacity = self._capacity(self.fitted)
            if not self.fewer_first:
                rows, seconds = self.rate * self.interval.total_seconds(), self.interval.total_seconds()
                then = self.fitted.seconds(rows, slower=self._slower(to.cores, to.partitions)) / seconds
                expected = (self._busy(self.fitted, self.rate, self.parallelism.cores), then)
        return Recommendation(
            now=self.parallelism,
            to=to,
            why=tuple(self.why),
            rows_per_second=self.rate,
            capacity=capacity,
            busy=busy_share(self.recent),
            expected_busy=expected,
            backlog_rows=self.backlog,
            skew=self.state.skew if self.state is not None and self.state.bytes else 1.0,
        )

    def _capacity(self, fitted: Cost) -> float | None:
        room = self.interval.total_seconds() - fitted.fixed
        if not fitted.row:
            return None
        # A longer interval reduces the fixed part's weight. Without room no batch fits the interval.
        return room / fitted.row / self.interval.total_seconds() if room > 0 else None
