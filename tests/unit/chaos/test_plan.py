from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.plan import JOBS, MOMENTS, SHARED, WORDS, Kind, calm_rounds, make_plan

pytestmark = pytest.mark.unit


def test_plan_is_its_seeds() -> None:
    assert make_plan(50, 7) == make_plan(50, 7)
    assert make_plan(50, 7) != make_plan(50, 8)


@pytest.mark.parametrize("seed", [1, 2, 20230306])
def test_every_combination_comes_before_any_comes_often(seed: int) -> None:
    plan = [fault for fault in make_plan(300, seed) if not fault.calm]
    cells = Counter((fault.kind, fault.moment, fault.job) for fault in plan)
    for kind in Kind:
        counts = [cells[kind, moment, job] for moment in MOMENTS[kind] for job in JOBS]
        assert max(counts) - min(counts) <= 1, kind
    kinds = Counter(fault.kind for fault in plan)
    assert max(kinds.values()) - min(kinds.values()) <= 1
    jobs = Counter(fault.job for fault in plan)
    assert max(jobs.values()) - min(jobs.values()) <= len(Kind)


def test_two_hundred_faults_cover_every_moment_of_every_kind() -> None:
    plan = make_plan(200, 20230306)
    assert len(plan) == 200 and [fault.number for fault in plan] == list(range(1, 201))
    covered = {(fault.kind, fault.moment) for fault in plan}
    assert covered >= {(kind, moment) for kind in Kind for moment in MOMENTS[kind]}


def test_short_form_has_calm_kills_of_each_job_and_distinct_others() -> None:
    plan = make_plan(8, 20230306)
    calm = [fault for fault in plan if fault.calm]
    assert Counter(fault.job for fault in calm) == Counter(JOBS)
    others = [fault.kind for fault in plan if not fault.calm]
    assert len(set(others)) == len(others) == 5
    assert SHARED & set(others)


def test_only_these_kinds() -> None:
    plan = make_plan(10, 1, [Kind.API_KILLED, Kind.TASK_CLEARED])
    assert {fault.kind for fault in plan} == {Kind.API_KILLED, Kind.TASK_CLEARED}
    assert not any(fault.calm for fault in plan)


@pytest.mark.parametrize(("count", "rounds"), [(1, 0), (3, 1), (8, 1), (60, 3), (200, 3)])
def test_calm_rounds(count: int, rounds: int) -> None:
    assert calm_rounds(count) == rounds


def test_every_kind_has_words_and_moments() -> None:
    assert set(WORDS) == set(MOMENTS) == set(Kind)
