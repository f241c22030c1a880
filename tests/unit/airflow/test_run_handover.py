from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from streamwarden.airflow.run_handover import are_used_up, is_due, relief_id
from streamwarden.supervision.claim import Claim

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


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("attempt", "granted", "deferred", "began_s", "changed_s", "used_up"),
    [
        (1, 2, False, 20, None, True),
        (1, 2, False, 19, None, False),
        # It watched until 19 s before its end: no more than one try has come and gone since.
        (1, 2, False, 3600, 19, False),
        (1, 2, False, 3600, 20, True),
        (1, 2, True, 3600, 3000, False),
        # Cleared by hand: Airflow has granted as many again.
        (2, 4, False, 29, None, False),
        (2, 4, False, 30, None, True),
        # The claim of a deploy: the first try comes at once.
        (0, 0, False, 20, None, True),
        (0, 0, False, 19, None, False),
    ],
)
def test_tries_that_did_not_begin_take_their_time(
    attempt: int, granted: int, deferred: bool, began_s: int, changed_s: int | None, used_up: bool
) -> None:
    claim = Claim(
        holder="run",
        attempt=attempt,
        granted=granted,
        at=NOW - timedelta(seconds=began_s),
        deferred=deferred,
        deferred_at=None if changed_s is None else NOW - timedelta(seconds=changed_s),
    )
    assert are_used_up(claim, retries=2, retry_delay=timedelta(seconds=10), ended=NOW) is used_up
