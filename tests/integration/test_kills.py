"""Drivers killed at arbitrary moments: what they wrote equals a batch computation over the same trips.

A tenth of the trips arrive late, within the watermark.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from streamwarden.runtime.processes import kill
from streamwarden.supervision.observe import observe
from tests.integration.conftest import Place
from tests.integration.fleet import JOBS, Fleet

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

KILLS = 2
"""Of each job."""


def test_killed_drivers_leave_tables_equal_to_batch(place: Place) -> None:
    seed = int(os.environ.get("STREAMWARDEN_TEST_SEED", "20230306"))
    chance = random.Random(seed)
    killed = []
    with Fleet(place, speed=3_000) as fleet:
        for number in range(KILLS * len(JOBS)):
            job = JOBS[number % len(JOBS)]
            # Anywhere from the JVM's start to the middle of some batch.
            time.sleep(chance.uniform(0.5, 9.0))
            seen = observe(place.workspace, job)
            process = seen.heartbeat.process if seen.heartbeat else seen.launch.process if seen.launch else None
            if process is not None and seen.phase.alive and kill(process):
                killed.append((job, seen.phase))
        fleet.settle()
        for job in JOBS:
            # Each successor has removed what the killed one left on the disk.
            assert len(list((place.workspace.scratch / job).iterdir())) == 1
    assert len(killed) >= KILLS * len(JOBS) * 0.8, killed
    fleet.stop_and_compare(f"seed {seed}")
