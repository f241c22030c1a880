"""A job that begins with a table of earlier rows, with everything on S3."""

from __future__ import annotations

import pytest

from tests.conftest import TripMaker
from tests.integration.conftest import Place
from tests.integration.test_history import SOURCES, run_job
from tests.spark.job_runs import as_trips

pytestmark = [pytest.mark.s3, pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("job", SOURCES)
def test_equal_to_batch_after_kills_in_both_parts_a_restore_into_the_history_and_a_rescale(
    place: Place, make_trips: TripMaker, job: str
) -> None:
    run_job(place, job, as_trips(make_trips(1500, cards=80)), make_trips)
