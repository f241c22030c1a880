"""docs/upgrading.md, "Streamwarden N to N+1", by its commands: a driver of an earlier commit under this code."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.conftest import TripMaker
from tests.integration.conftest import REPOSITORY, Place
from tests.spark.job_runs import as_trips, in_order_of_arrival
from tests.upgrade.installed import COMPARE, Installed, append, wait_until_equal

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.upgrade, pytest.mark.timeout(900)]

EARLIER = "c0fc35d"
"""Of 28 November 2026. Its dependencies are today's, and its state of zone_windows has the same form."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    kept = subprocess.run(["git", "archive", EARLIER], cwd=REPOSITORY, capture_output=True, check=False)
    if kept.returncode:
        pytest.skip(f"this checkout has no commit {EARLIER}: {kept.stderr.decode()}")
    home = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(kept.stdout)) as archive:
        archive.extractall(home, filter="data")
    jars = str(REPOSITORY / ".jars")
    return Installed(
        Path(sys.executable).with_name("streamwarden"), {"PYTHONPATH": str(home), "STREAMWARDEN_JARS": jars}
    )


def code_of(place: Place, job: str) -> str:
    """Return the folder whose code the job's driver runs, by the process itself."""
    beat = place.documents(job).heartbeat(place.documents(job).incarnations()[-1]).read()
    assert beat is not None
    variables = Path(f"/proc/{beat.process.pid}/environ").read_bytes().split(b"\0")
    return next(one.partition(b"=")[2].decode() for one in variables if one.startswith(b"PYTHONPATH="))


def test_the_next_version_takes_over_a_running_job_and_gives_it_back(
    place: Place, old: Installed, new: Installed, make_trips: TripMaker
) -> None:
    job = "zone_windows"
    # Within the watermark: otherwise late trips would be missing in its table, rightly.
    trips = as_trips(make_trips(1500, cards=60))
    parts = in_order_of_arrival(trips, seed=5, late_share=0.3, latest=timedelta(hours=1), batches=5)

    def arrive(number: int) -> None:
        append(place, parts[number - 1])
        wait_until_equal(place, job, pa.concat_tables(parts[:number]))

    append(place, parts[0])
    old.run(place, "deploy", job)
    wait_until_equal(place, job, parts[0])
    assert code_of(place, job) == old.variables["PYTHONPATH"]
    before = old.json(place, "savepoint", job)

    # Installed: the old driver goes on, and the new version reads what it writes.
    running = new.json(place, "status", job)
    arrive(2)
    status = new.json(place, "status", job)
    assert (status["phase"], status["health"]) == ("running", "ok")
    assert status["incarnation"] == running["incarnation"] and status["batch"] > running["batch"]
    assert f"{before['id']}: verified" in new.run(place, "savepoints", "verify", job, "latest")
    new.run(place, "doctor")
    # An unchanged YAML leaves it alone.
    new.run(place, "deploy", job)
    assert code_of(place, job) == old.variables["PYTHONPATH"]

    new.run(place, "stop", job)
    new.run(place, "deploy", job)
    assert code_of(place, job) == str(REPOSITORY)
    arrive(3)
    new.run(place, "rescale", job, "--partitions", "3")
    arrive(4)

    # Back.
    old.run(place, "stop", job)
    old.run(place, "deploy", job)
    assert code_of(place, job) == old.variables["PYTHONPATH"]
    arrive(5)
    old.run(place, "doctor")
    old.run(place, "stop", job)
    assert COMPARE[job](trips, place.table(job)).equal
