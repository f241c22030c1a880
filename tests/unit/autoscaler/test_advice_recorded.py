"""The advisor's rule on batches that real drivers made, under a load with steps and a spike.

Recorded by ``make record-load``, with one core and with two, under the same load: ``benchmarks/record_load.py``. The
times that the rule looks at are as much shorter as the recording is than a day's load.
"""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streamwarden.autoscaler.ds2 import Recommendation, StateShare, recommend
from streamwarden.autoscaler.load import BatchSeen
from streamwarden.model.advisor_spec import AdvisorSpec
from streamwarden.model.status import Parallelism

SETTINGS = AdvisorSpec.model_validate({"window": "60s", "catch_up": "2m", "down_after": "3m", "max_cores": 4})
EVERY = timedelta(seconds=15)


@dataclass
class Recording:
    """A job's batches, and what came to it when."""

    cores: int
    partitions: int
    interval: timedelta
    phases: list[tuple[str, datetime, int]]
    batches: list[BatchSeen]

    def began(self, phase: str) -> datetime:
        return next(at for name, at, _ in self.phases if name == phase)

    def asked(self, now: datetime, settings: AdvisorSpec = SETTINGS) -> Recommendation:
        """What the advisor says, of what was known then."""
        known = [one for one in self.batches if one.at <= now]
        parallelism = Parallelism(partitions=self.partitions, cores=self.cores, memory="1g")
        state = StateShare((2**20,) * self.partitions)
        return recommend(known, now, parallelism, self.batches[0].at, self.interval, settings, state)

    def answers(self, begin: str, end: str) -> list[Recommendation]:
        """Return what it says every quarter of a minute between the beginnings of two phases."""
        moments = itertools.takewhile(
            lambda at: at < self.began(end), (self.began(begin) + n * EVERY for n in itertools.count(1))
        )
        return [self.asked(at) for at in moments]

    def busy(self, begin: datetime, end: datetime) -> float:
        """Return the median share of the interval that a batch took."""
        took = [one.seconds for one in self.batches if begin < one.at <= end]
        return statistics.median(took) / self.interval.total_seconds()


def recording(cores: int) -> Recording:
    path = Path(__file__).parent / "recorded_load" / f"{cores}-cores.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return Recording(
        cores=found["cores"],
        partitions=found["partitions"],
        interval=timedelta(seconds=found["interval_s"]),
        phases=[(one["name"], datetime.fromisoformat(one["from"]), one["rows_per_second"]) for one in found["phases"]],
        batches=[BatchSeen(**{**one, "at": datetime.fromisoformat(one["at"])}) for one in found["batches"]],
    )


@pytest.fixture(scope="module")
def narrow() -> Recording:
    return recording(1)


@pytest.fixture(scope="module")
def wide() -> Recording:
    return recording(2)


def test_a_step_up_asks_for_what_it_takes_and_stays_with_it(narrow: Recording) -> None:
    said = narrow.answers("high", "low again")
    asked = [one.to.cores for one in said]
    first = next(number for number, cores in enumerate(asked) if cores > 1)
    # Within a window of the step. More than half of a batch's interval is its fixed time here, so it takes many.
    assert first < SETTINGS.window // EVERY
    assert set(asked[first:]) == {4}
    assert "cores are needed for" in said[-1].why[0]


def test_before_the_step_and_after_it_nothing_is_asked_for(narrow: Recording) -> None:
    # What the capacity was measured with has to be out of the window; and so has the step, after it.
    window = SETTINGS.window // EVERY
    assert {one.to.cores for one in narrow.answers("low", "high")[window:]} == {1}
    assert {one.to.cores for one in narrow.answers("low again", "spike")[window:]} == {1}


def test_a_spike_is_not_answered(narrow: Recording) -> None:
    assert {one.to.cores for one in narrow.answers("spike", "end")} == {1}


def test_a_step_down_is_answered_once_it_has_lasted(wide: Recording) -> None:
    after = [one.to.cores for one in wide.answers("low again", "spike")]
    held = (SETTINGS.down_after - SETTINGS.window) // EVERY
    assert min(after[:held]) >= 2
    assert after[-1] == 1
    # Once it is said it stays.
    assert after == sorted(after, reverse=True)


def test_what_it_foretells_of_two_cores_is_not_better_than_what_two_cores_did(
    narrow: Recording, wide: Recording
) -> None:
    """From batches of one core alone, that is behind, and the same load on two.

    Two cores did better than foretold, since what counts as a batch's fixed time had waited for a core, too. That is
    the side to err on.
    """
    at_two = SETTINGS.model_copy(update={"max_cores": 2})
    seen = narrow.asked(narrow.began("low again"), at_two)
    assert seen.to.cores == 2
    assert seen.expected_busy is not None
    settled = wide.began("high") + SETTINGS.window
    was = wide.busy(settled, wide.began("low again"))
    assert was < seen.expected_busy[1] < 1.5 * was < seen.expected_busy[0]
