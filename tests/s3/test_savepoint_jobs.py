"""Savepoints and rescales of real jobs on S3: the same sequences and the same load as on disk."""

from __future__ import annotations

import os

import pytest

from tests.integration.conftest import Place
from tests.integration.fleet import Fleet
from tests.integration.test_rescale import rescale_fleet
from tests.integration.test_savepoint_hot import take_in_a_row
from tests.integration.test_savepoint_sequences import run_sequence

pytestmark = [pytest.mark.s3, pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(7200)]


@pytest.mark.long
def test_a_random_sequence_on_s3_ends_equal_to_batch(place: Place) -> None:
    seed = int(os.environ.get("STREAMWARDEN_TEST_SEED", "11"))
    actions = int(os.environ.get("STREAMWARDEN_TEST_ACTIONS", "12"))
    run_sequence(fleet(place), seed, actions)


def test_rescaled_jobs_on_s3_stay_right(place: Place) -> None:
    rescale_fleet(fleet(place))


def fleet(place: Place) -> Fleet:
    bucket = place.workspace.profile.s3
    assert bucket is not None
    return Fleet(place, speed=1_200, profile={"s3": bucket.model_dump(mode="json")})


@pytest.mark.long
def test_hot_savepoints_in_a_row_on_s3(place: Place) -> None:
    ended = take_in_a_row(place, 6)
    assert set(ended) <= {"taken", "SAVEPOINT_OUTRUN"}
