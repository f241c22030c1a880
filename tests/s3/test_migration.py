"""State of an earlier version, migrated on S3 as on disk."""

from __future__ import annotations

import pytest

from tests.conftest import TripMaker
from tests.integration.conftest import Place
from tests.integration.test_migration import migrate_sessions
from tests.spark.job_runs import as_trips

pytestmark = [pytest.mark.s3, pytest.mark.integration, pytest.mark.long]


def test_sessions_of_version_1_go_on_in_version_2(place: Place, make_trips: TripMaker) -> None:
    migrate_sessions(place, as_trips(make_trips(1200, cards=60)))
