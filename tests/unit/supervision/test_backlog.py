"""When a job that was away counts as caught up: by numbers, and over simulated streams."""

from __future__ import annotations

import pytest

from streamwarden.model.progress import BatchProgress, SourceProgress
from streamwarden.model.record import utc_now
from streamwarden.supervision.backlog import has_caught_up

pytestmark = pytest.mark.unit


def batches(*counted: tuple[int, int | None]) -> list[BatchProgress]:
    """Of what each has taken and left."""
    return [
        BatchProgress(
            batch=number,
            at=utc_now(),
            duration_ms=1,
            rows_in=1,
            source=SourceProgress(unit="files", taken=taken, pending=left),
        )
        for number, (taken, left) in enumerate(counted)
    ]


@pytest.mark.parametrize(
    ("counted", "backlog", "caught_up"),
    [
        ([], 0, False),
        ([(9, 0)], 0, True),
        ([(9, 3)], 3, True),
        ([(9, 4)], 3, False),
        ([(9, None)], 0, True),
        # A stream that leaves four after each batch: what the first has left was taken by the second.
        ([(9, 4), (4, 4)], 0, True),
        ([(9, 4), (3, 4)], 0, False),
        ([(9, 4), (3, 4)], 1, True),
        # All of it was taken, and more has come: it does not keep up.
        ([(9, 4), (4, 6), (6, 9)], 0, False),
        # By limited batches, nearer with each.
        ([(5, 20), (5, 17), (5, 14), (5, 11)], 0, False),
        ([(5, 20), (5, 17), (5, 14), (5, 11), (5, 8)], 0, True),
    ],
)
def test_by_what_was_taken_and_what_is_left(
    counted: list[tuple[int, int | None]], backlog: int, caught_up: bool
) -> None:
    assert has_caught_up(batches(*counted), backlog) is caught_up


def test_a_version_that_is_read_in_parts_is_taken_with_its_last() -> None:
    found = [
        BatchProgress(
            batch=number,
            at=utc_now(),
            duration_ms=1,
            rows_in=256,
            source=SourceProgress(unit="versions", taken=1, finished=finished, pending=left),
        )
        for number, (finished, left) in enumerate([(0, 2), (0, 2), (0, 2), (1, 2), (1, 2)])
    ]
    assert [has_caught_up(found[:count], 0) for count in range(1, 6)] == [False, False, False, False, True]


def stream(*, files_a_s: float, interval_s: float, seconds_a_file: float, away_s: float) -> list[tuple[int, int]]:
    """Batches of a job that takes all there is whenever it begins one, from the moment when it is back."""
    now, taken, found = away_s, 0, []
    for _ in range(40):
        there = int(now * files_a_s)
        took = 0.5 + (there - taken) * seconds_a_file
        now, was, taken = now + took, taken, there
        found.append((taken - was, int(now * files_a_s) - taken))
        now = max(now, (now - took) + interval_s)
    return found


@pytest.mark.parametrize(("seconds_a_file", "keeps_up"), [(0.1, True), (0.4, True), (0.8, True), (1.1, False)])
def test_a_job_that_keeps_up_is_seen_to_and_one_that_does_not_is_not(seconds_a_file: float, keeps_up: bool) -> None:
    """A file a second, a batch each ten; away for a minute. Ever slower batches leave ever more."""
    found = stream(files_a_s=1, interval_s=10, seconds_a_file=seconds_a_file, away_s=60)
    seen = [has_caught_up(batches(*found[: count + 1]), 2) for count in range(len(found))]
    assert any(seen) is keeps_up
