"""Every pattern on S3 as on disk: equal to a batch computation after a kill, a restore and a rescale from 2 to 7."""

from __future__ import annotations

import pytest

from tests.conftest import TripMaker
from tests.integration.conftest import Place
from tests.integration.test_patterns import CASES, run_case
from tests.spark.job_runs import as_trips

pytestmark = [pytest.mark.s3, pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", CASES)
def test_equal_to_batch_after_a_kill_a_restore_and_a_rescale(place: Place, make_trips: TripMaker, name: str) -> None:
    run_case(place, CASES[name](as_trips(make_trips(1500, cards=80))))
