"""The advisor's rule, on simulated load: steps, spikes, daily waves, skew, and what it can't know."""

from __future__ import annotations

import itertools
import math
from datetime import timedelta

import pytest
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamwarden.autoscaler.ds2 import Recommendation, StateShare, recommend
from streamwarden.autoscaler.load import BatchSeen, arrivals, cost
from streamwarden.model.advisor_spec import AdvisorSpec
from streamwarden.model.status import Parallelism
from tests.unit.autoscaler.simulated_job import START, SimulatedJob

HOUR = 3600.0
DAY = 24 * HOUR


def settings(**fields: object) -> AdvisorSpec:
    return AdvisorSpec.model_validate({"apply": True, "max_cores": 16, **fields})


def cores(job: SimulatedJob) -> list[int]:
    return [to.cores for _, to, _ in job.changes]


def needed(rate: float, job: SimulatedJob, share: float = 0.7) -> int:
    """By hand: cores that do the rows of an interval in its share, less the fixed time."""
    return math.ceil(rate * job.interval * job.row / (share * job.interval - job.fixed))


def test_a_step_up_is_answered_once_with_as_many_cores_as_it_needs() -> None:
    job = SimulatedJob(lambda t: 400 if t < HOUR else 2400, settings())
    job.run(HOUR)
    assert job.changes == []
    job.run(3 * HOUR)
    # 2400 rows/s on one core take 24 s of every 10. The first window spans both loads, so the first advice may be too
    # low, and a second one corrects it.
    assert job.parallelism.cores >= needed(2400, job) == 4
    assert len(job.changes) <= 2
    assert job.changes[0][0] < HOUR + 1200
    late = [share for at, share in job.busiest if at > 3 * HOUR]
    assert max(late) < 1
    assert job.asked().changes == {}


def test_a_step_down_is_answered_after_the_time_that_it_must_have_lasted() -> None:
    job = SimulatedJob(
        lambda t: 2400 if t < 2 * HOUR else 300, settings(), parallelism=Parallelism(partitions=8, cores=4, memory="1g")
    )
    job.run(2 * HOUR)
    assert job.changes == []
    job.run(3 * HOUR)
    # Twice at most: the first of the windows may have seen the end of the load that was.
    assert len(job.changes) <= 2
    assert job.parallelism.cores == needed(300, job) == 1
    at, _, said = job.changes[0]
    # Less a window, whose mean is of both loads.
    assert 2.75 * HOUR <= at < 3.5 * HOUR
    assert "in the last 1h" in said.why[0]


def test_a_short_spike_is_caught_up_with_and_not_answered() -> None:
    job = SimulatedJob(lambda t: 3000 if HOUR < t < HOUR + 60 else 300, settings())
    job.run(4 * HOUR)
    assert job.changes == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
def test_a_daily_wave_is_followed_without_flapping(seed: int) -> None:
    def wave(t: float) -> float:
        return 1600 - 1400 * math.cos(2 * math.pi * t / DAY)

    job = SimulatedJob(wave, settings(), seed=seed)
    job.run(2 * DAY)
    # Up in the morning and down in the evening, each in as many steps as there are cores between, and no more.
    steps = cores(job)
    turns = [b - a for a, b in zip([1, *steps], steps, strict=False)]
    signs = [1 if step > 0 else -1 for step in turns]
    assert sum(a != b for a, b in itertools.pairwise(signs)) <= 3
    # Between what the busiest hour needs at the limit and at the target.
    assert needed(3000, job, share=0.9) <= max(steps) <= needed(3000, job)
    # Whoever follows it has to be up to it.
    assert sum(share > 1 for _, share in job.busiest) < 0.01 * len(job.busiest)
    spent = sum(one.cores * length for one, length in _held(job)) / (max(steps) * 2 * DAY)
    assert spent < 0.85


def _held(job: SimulatedJob) -> list[tuple[Parallelism, float]]:
    times = [0.0, *[at for at, _, _ in job.changes], job.clock]
    parallelisms = [Parallelism(partitions=8, cores=1, memory="1g"), *[to for _, to, _ in job.changes]]
    return [(parallelism, end - begin) for parallelism, begin, end in zip(parallelisms, times, times[1:], strict=False)]


@hypothesis_settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    rate=st.floats(20, 6000),
    begin=st.integers(1, 16),
    fixed=st.floats(0.1, 3),
    # With 15 % one run in thirty changes once more.
    noise=st.floats(0, 0.1),
    seed=st.integers(0, 1000),
)
def test_under_a_steady_load_it_settles_and_stays(
    rate: float, begin: int, fixed: float, noise: float, seed: int
) -> None:
    job = SimulatedJob(
        lambda _: rate,
        settings(),
        parallelism=Parallelism(partitions=32, cores=begin, memory="1g"),
        fixed=fixed,
        noise=noise,
        seed=seed,
    )
    job.run(4 * HOUR)
    settled = len(job.changes)
    job.run(8 * HOUR)
    assert len(job.changes) == settled <= 4
    enough = rate * job.interval * job.row / (0.9 * job.interval - fixed)
    assert job.parallelism.cores >= min(16, math.floor(enough))
    # Never much more than a batch at the target takes.
    assert job.parallelism.cores <= max(begin, 1.3 * rate * job.interval * job.row / (0.7 * job.interval - fixed) + 2)


def test_where_the_fixed_time_fills_the_interval_it_says_to_make_that_longer() -> None:
    job = SimulatedJob(lambda t: 200 + 150 * math.sin(t / 50), settings(), interval=2.0, fixed=1.9, noise=0.02)
    job.run(HOUR)
    said = job.asked()
    assert job.changes == []
    assert said.changes == {}
    assert "trigger.interval longer than" in said.why[0]


@pytest.mark.parametrize(("grows", "cores"), [(0, 1), (2, 3)])
def test_a_fixed_time_beyond_the_interval_hides_no_lack_of_cores(grows: int, cores: int) -> None:
    """Batches that are longer than the interval follow each other: 5 s of each, and a millisecond a row."""
    seen, at = [], START
    for number in range(200):
        rows = (2000, 4000, 6000)[number % 3]
        at += timedelta(seconds=5 + rows / 1000)
        seen.append(BatchSeen("i", at, 5 + rows / 1000, 0.1, rows, taken=1, pending=grows * number))
    one = Parallelism(partitions=8, cores=1, memory="1g")
    said = recommend(seen, at, one, START, timedelta(seconds=3), settings(), StateShare())
    assert "trigger.interval longer than 7s" in said.why[0]
    # Of 1,333 rows/s only 444 are read; the 1.4 million that wait are 796 a second more, for half an hour.
    assert said.to.cores == cores, said.why
    assert said.capacity is None


def test_too_many_partitions_hold_each_batch_up_and_fewer_come_before_more_cores() -> None:
    """As seen of 96 on one core: 5 to 8 s, with rows or without, 4 minutes after the rescale."""
    rows = (40_000, 60_000, 0)
    seen = [BatchSeen("i", START + timedelta(seconds=7 * n), 7 - n % 3, 0.01, rows[n % 3], 1, 0) for n in range(40)]
    much = Parallelism(partitions=96, cores=1, memory="1g")
    state = StateShare((1500,) * 96)
    said = recommend(seen, seen[-1].at, much, START, timedelta(seconds=3), settings(window="4m"), state)
    assert said.changes == {"partitions": 2}, said.why
    assert said.why[0] == "96 state partitions on 1 core: each commits a store in every batch"
    assert "5.0 s of each batch don't depend on its rows" in said.why[1]
    assert said.expected_busy is None
    # A large state, or a limit, needs them all: then only the interval is left.
    large, least = StateShare((2**29,) * 96), settings(window="4m", min_partitions=96, max_partitions=96)
    for limits, one in ((settings(window="4m", max_partitions=96), large), (least, state)):
        said = recommend(seen, seen[-1].at, much, START, timedelta(seconds=3), limits, one)
        assert said.changes == {} and said.why[0].startswith("make trigger.interval longer than 7s: "), said.why


def test_batches_of_a_backlog_are_no_load_that_asks_for_more_cores() -> None:
    """What has come in an hour is worked off in some minutes, by a job that the usual load leaves idle."""
    job = SimulatedJob(lambda _: 100, settings(), interval=60.0)
    job.run(2 * HOUR)
    job._pass(HOUR)
    job.run(2 * HOUR)
    assert max(share for _, share in job.busiest) < 0.5
    assert job.changes == [] and len(job.files) <= 60


def test_the_limit_is_named_where_it_binds() -> None:
    job = SimulatedJob(lambda _: 5000, settings(max_cores=2))
    job.run(3 * HOUR)
    assert job.parallelism.cores == 2
    assert "advisor.max_cores" in job.asked().why[0]


def test_cores_are_a_multiple_of_the_executors() -> None:
    parallelism = Parallelism(partitions=8, cores=3, executors=3, memory="1g")
    job = SimulatedJob(lambda _: 5000, settings(max_cores=8), parallelism=parallelism)
    job.run(3 * HOUR)
    assert job.parallelism.cores == 6 and {to.cores % 3 for _, to, _ in job.changes} == {0}


def test_no_more_cores_than_there_may_be_partitions() -> None:
    parallelism = Parallelism(partitions=4, cores=2, memory="1g")
    job = SimulatedJob(lambda _: 5000, settings(max_partitions=4), parallelism=parallelism)
    job.run(3 * HOUR)
    assert (job.parallelism.cores, job.parallelism.partitions) == (4, 4)
    assert "advisor.max_partitions" in job.asked().why[0]


def test_more_cores_than_partitions_bring_more_partitions_with_them() -> None:
    job = SimulatedJob(lambda _: 3000, settings(), parallelism=Parallelism(partitions=2, cores=2, memory="1g"))
    job.run(3 * HOUR)
    assert job.changes[0][1].cores > 2
    assert job.changes[0][1].partitions == 2 * job.changes[0][1].cores
    assert max(share for at, share in job.busiest if at > 2 * HOUR) < 1


def test_skew_is_named_and_cores_that_it_would_leave_idle_are_not_recommended() -> None:
    job = SimulatedJob(
        lambda _: 1400, settings(), parallelism=Parallelism(partitions=16, cores=1, memory="1g"), largest=0.5
    )
    job.run(3 * HOUR)
    # Half of the state in one partition: a second core is all that helps, and 0.5 x 14 s + 1 s just fit.
    assert max(cores(job)) == 2
    assert any("skewed" in line for line in job.changes[0][2].why)


def test_large_state_asks_for_partitions_and_needs_no_load() -> None:
    said = recommend(
        [],
        START,
        Parallelism(partitions=4, cores=2, memory="1g"),
        START,
        timedelta(seconds=10),
        settings(bytes_per_partition=2**30),
        StateShare((3 * 2**30,) * 4),
    )
    assert said.changes == {"partitions": 12}
    assert "1024 is the limit" in "".join(said.why)


def test_many_partitions_of_little_state_are_too_many() -> None:
    job = SimulatedJob(lambda _: 100, settings(), parallelism=Parallelism(partitions=64, cores=1, memory="1g"))
    job.run(2 * HOUR)
    assert job.parallelism.partitions == 2
    assert len(job.changes) == 1


@pytest.mark.parametrize(
    ("partitions", "limits", "to", "said"),
    [
        (100, {}, 64, "there are 100 state partitions, and 64 are the limit (advisor.max_partitions)"),
        (2, {"min_partitions": 4}, 4, "there are 2 state partitions, and 4 are the limit (advisor.min_partitions)"),
    ],
)
def test_partitions_beyond_the_limits_are_changed_by_what_the_limits_are(
    partitions: int, limits: dict[str, int], to: int, said: str
) -> None:
    found = _of_state(
        StateShare((1000,) * partitions), Parallelism(partitions=partitions, cores=2, memory="1g"), **limits
    )
    assert found.changes == {"partitions": to}
    # First: it is the reason that the rescale is given.
    assert found.why[0] == said


def test_a_limit_that_cuts_what_is_wanted_is_named() -> None:
    wide = Parallelism(partitions=4, cores=2, memory="1g")
    found = _of_state(StateShare((3 * 2**30,) * 4), wide, bytes_per_partition=2**30, max_partitions=8)
    assert found.changes == {"partitions": 8}
    assert "MiB" in found.why[0]
    assert "12 state partitions are wanted, and 8 are the limit (advisor.max_partitions)" in found.why


def test_a_limit_that_leaves_everything_as_it_is_changes_nothing() -> None:
    found = _of_state(StateShare((1000,) * 64), Parallelism(partitions=64, cores=2, memory="1g"))
    assert found.changes == {} and not any("limit" in line for line in found.why)


def _of_state(state: StateShare, parallelism: Parallelism, **limits: int) -> Recommendation:
    return recommend([], START, parallelism, START, timedelta(seconds=10), settings(**limits), state)


def test_too_little_known_is_said_and_nothing_recommended() -> None:
    job = SimulatedJob(lambda _: 5000, settings(), acts=False)
    job.run(30)
    said = job.asked()
    assert said.changes == {}
    assert "too little is known" in said.why[0]


def test_an_idle_jobs_last_batch_does_not_count_for_ever() -> None:
    job = SimulatedJob(lambda t: 2000 if t < 2 * HOUR else 0, settings(), acts=False)
    job.parallelism = Parallelism(partitions=8, cores=4, memory="1g")
    job.run(2 * HOUR)
    now = job.at(job.clock + 2 * HOUR)
    silent = recommend(
        job.batches, now, job.parallelism, START, timedelta(seconds=10), job.settings, StateShare((1,) * 8), idle=True
    )
    # No batch in the window: its cost is not known any more, but that nothing comes is.
    assert silent.rows_per_second == 0


def seen(number: int, rows: int, seconds: float, *, gap: float = 10, **fields: object) -> BatchSeen:
    given: dict[str, object] = {"incarnation": "i", "fixed_seconds": 0.3, "taken": 1, "pending": 0, **fields}
    return BatchSeen(at=START + timedelta(seconds=number * gap), seconds=seconds, rows=rows, **given)  # type: ignore[arg-type]


def test_a_cost_is_found_in_spite_of_a_few_slow_batches() -> None:
    batches = [seen(n, 1000 + 100 * n, 2 + 0.001 * (1000 + 100 * n) + (30 if n % 9 == 8 else 0)) for n in range(40)]
    found = cost(batches, START)
    assert found is not None
    assert found.fixed == pytest.approx(2, abs=0.3)
    assert found.row == pytest.approx(0.001, rel=0.1)


def test_a_cost_is_told_from_all_loads_and_has_the_height_of_the_newest() -> None:
    loads = [seen(n, 1000 if n < 50 else 4000, 1 + 0.001 * (1000 if n < 50 else 4000)) for n in range(100)]
    # Now at one load alone, and everything takes half as long again.
    slower = [seen(n, 2000, 1.5 * 3) for n in range(100, 120)]
    found = cost([*loads, *slower], slower[0].at)
    assert found is not None
    assert (found.fixed, found.row) == (pytest.approx(1.5), pytest.approx(0.0015))


def test_equal_batches_tell_no_fixed_time_but_the_checkpoints() -> None:
    found = cost([seen(n, 1000, 2.3) for n in range(20)], START)
    assert found is not None
    assert (found.fixed, found.row) == (pytest.approx(0.3), pytest.approx(0.002))


def test_a_batch_with_rows_among_hundreds_without_is_no_line() -> None:
    # Of so many every third counts for a line, and the one with rows does not.
    batches = [seen(n, 1000 if n == 905 else 0, 2.3) for n in range(910)]
    found = cost(batches, batches[900].at)
    assert found is not None
    assert found.fixed == pytest.approx(0.3)


def test_a_drivers_first_batches_are_not_its_cost() -> None:
    assert cost([seen(n, 1000, 2) for n in range(7)], START) is None
    warm = cost([seen(n, 1000, 60 if n < 3 else 2) for n in range(20)], START)
    assert warm is not None
    assert warm.row == pytest.approx(0.0017)


def test_arrivals_count_what_was_read_and_what_waits() -> None:
    minute = timedelta(seconds=60)
    steady = [seen(n, 1000, 2) for n in range(20)]
    assert arrivals(steady, steady[-1].at, minute) == pytest.approx(100)
    # Each took a file and left two more than the one before it.
    behind = [seen(n, 1000, 10, pending=2 * n) for n in range(20)]
    assert arrivals(behind, behind[-1].at, minute) == pytest.approx(300)
    assert arrivals(steady[:2], steady[1].at, minute) is None
    assert arrivals([], START, minute) is None
