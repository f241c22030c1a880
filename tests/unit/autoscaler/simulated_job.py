"""A job that is not there: batches as a micro-batch query would make them under a load, in simulated time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from streamwarden.autoscaler.ds2 import Recommendation, StateShare, recommend
from streamwarden.autoscaler.load import BatchSeen
from streamwarden.model.advisor_spec import AdvisorSpec
from streamwarden.model.status import Parallelism

START = datetime(2026, 3, 9, tzinfo=None).astimezone()
Load = Callable[[float], float]
"""Rows a second, by seconds since the start."""


@dataclass
class SimulatedJob:
    """A job whose batches start every `interval`, or at once where the last one overran it or was cut by its limit.

    A batch takes ``fixed`` seconds, and ``row`` core-seconds for each row, spread over the cores that have a partition;
    a share `noise` more or less. A rescale takes `downtime` seconds. Every `every` seconds the advisor is asked, and
    what it says is done under its own cool-down. A file lands each second, and a batch takes `limit` of them at most.
    """

    load: Load
    settings: AdvisorSpec
    parallelism: Parallelism = field(default_factory=lambda: Parallelism(partitions=8, cores=1, memory="1g"))
    interval: float = 10.0
    fixed: float = 1.0
    row: float = 0.001
    noise: float = 0.1
    downtime: float = 20.0
    every: float = 300.0
    seed: int = 1
    acts: bool = True
    largest: float | None = None
    limit: int = 64

    def __post_init__(self) -> None:
        self.clock = 0.0
        self.files: deque[float] = deque()
        self.batches: list[BatchSeen] = []
        self.changes: list[tuple[float, Parallelism, Recommendation]] = []
        self.incarnation = 0
        self._since = 0.0
        self._last_change = float("-inf")
        self._asked = 0.0
        self._landed = 0
        self._chance = random.Random(self.seed)
        self.busiest: list[tuple[float, float]] = []

    def at(self, seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)

    def run(self, seconds: float) -> None:
        end = self.clock + seconds
        while self.clock < end:
            self._batch()
            if self.clock - self._asked >= self.every:
                self._asked = self.clock
                said = self.asked()
                calm = self.clock - self._last_change >= self.settings.cool_down.total_seconds()
                if said.changes and self.acts and calm:
                    self._rescale(said)

    def asked(self) -> Recommendation:
        return recommend(
            self.batches[-2000:],
            self.at(self.clock),
            self.parallelism,
            self.at(self._since),
            timedelta(seconds=self.interval),
            self.settings,
            StateShare(self._sizes()),
        )

    def _sizes(self) -> tuple[int, ...]:
        whole = 64 * 2**20
        if self.largest is None:
            return (whole // self.parallelism.partitions,) * self.parallelism.partitions
        rest = round(whole * (1 - self.largest) / (self.parallelism.partitions - 1))
        return (round(whole * self.largest), *[rest] * (self.parallelism.partitions - 1))

    def _batch(self) -> None:
        taken = min(len(self.files), self.limit)
        rows = round(sum(self.files.popleft() for _ in range(taken)))
        share = max(1 / min(self.parallelism.cores, self.parallelism.partitions), self.largest or 0.0)
        took = (self.fixed + self.row * rows * share) * self._chance.uniform(1 - self.noise, 1 + self.noise)
        self._pass(took)
        self.batches.append(
            BatchSeen(
                incarnation=f"i{self.incarnation}",
                at=self.at(self.clock),
                seconds=took,
                fixed_seconds=0.2,
                rows=rows,
                taken=taken,
                # Listed when the batch is reported, which is after it.
                pending=len(self.files),
            )
        )
        self.busiest.append((self.clock, took / self.interval))
        # What its limit has left is taken at once.
        if taken < self.limit or not self.files:
            self._pass(max(self.interval - took, 0.0))

    def _rescale(self, said: Recommendation) -> None:
        self.parallelism = said.to
        self.incarnation += 1
        self.changes.append((self.clock, said.to, said))
        self._pass(self.downtime)
        self._since = self._last_change = self.clock

    def _pass(self, seconds: float) -> None:
        # In steps of a second: the load may change within a batch.
        left = seconds
        while left > 0:
            step = min(left, 1.0)
            self.clock += step
            left -= step
            if int(self.clock) > self._landed:
                self._landed = int(self.clock)
                self.files.append(self.load(self.clock))
