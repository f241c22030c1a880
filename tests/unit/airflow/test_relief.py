from __future__ import annotations

import pytest

from streamwarden.airflow.relief import is_due, relief_id

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("retries", "granted", "first"),
    [
        (1000, 1000, 501),
        (3, 3, 3),
        (1, 1, 2),
        # Cleared by hand at its second try: Airflow grants as many again.
        (3, 5, 5),
        (0, 0, 2),
    ],
)
def test_due_with_half_of_the_retries_left(retries: int, granted: int, first: int) -> None:
    assert next(attempt for attempt in range(1, granted + 3) if is_due(attempt, granted, retries)) == first


def test_ids_of_relieving_runs_count_and_do_not_grow() -> None:
    assert relief_id("manual__2026-01-01T00:00:00+00:00") == "relief__1__manual__2026-01-01T00:00:00+00:00"
    assert relief_id(relief_id("scheduled__x")) == "relief__2__scheduled__x"
