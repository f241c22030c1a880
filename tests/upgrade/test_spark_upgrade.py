"""docs/upgrading.md, "Spark, a minor version", by its commands: two installations, one job, one checkpoint."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from tests.conftest import TripMaker
from tests.integration.conftest import REPOSITORY, Place
from tests.spark.job_runs import as_trips, in_order_of_arrival
from tests.upgrade.installed import COMPARE, Installed, append, wait_until_equal

# The first test may have to install this checkout's code into the old environment.
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.upgrade, pytest.mark.timeout(1500)]

OLD = tomllib.loads((Path(__file__).with_name("old_spark.toml")).read_text())["pyspark"]
NEW = version("pyspark")
SCRIPT = "scripts/make_old_spark.py"
HOME = REPOSITORY / ".tools" / f"spark-{OLD.rpartition('.')[0]}"


@pytest.fixture(scope="module")
def old() -> Installed:
    if not (HOME / ".ready").is_file():
        pytest.skip(f"no environment with Spark {OLD} here: run {SCRIPT}, or `make test-upgrade`")
    done = subprocess.run([sys.executable, REPOSITORY / SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Installed(HOME / "bin" / "streamwarden", {"STREAMWARDEN_JARS": str(HOME / "jars")})


def writer(place: Place, job: str) -> str | None:
    """Return the version of Spark with which the job's newest driver runs, by its own report."""
    documents = place.documents(job)
    beat = documents.heartbeat(documents.incarnations()[-1]).read()
    return beat.versions.get("spark") if beat else None


@pytest.mark.parametrize("job", COMPARE)
def test_a_minor_version_of_spark_and_back(
    place: Place, job: str, old: Installed, new: Installed, make_trips: TripMaker
) -> None:
    # Within the watermark of zone_windows: otherwise late trips would be missing in its table, rightly.
    trips = as_trips(make_trips(1500, cards=60))
    parts = in_order_of_arrival(trips, seed=5, late_share=0.3, latest=timedelta(hours=1), batches=6)

    def arrived(count: int) -> pa.Table:
        return pa.concat_tables(parts[:count])

    append(place, parts[0])
    old.run(place, "deploy", job)
    assert writer(place, job) == OLD
    append(place, parts[1])
    wait_until_equal(place, job, arrived(2))
    assert "[RESCALE_UNSUPPORTED]" in old.run(place, "rescale", job, "--partitions", "4", status=2)

    # 1. savepoint, with the old version
    before = old.json(place, "savepoint", job, "--stop", "--note", f"before Spark {NEW}")
    assert before["state"] == "verified" and before["rows"] > 0

    # 2. check, with the new one
    assert f"{before['id']}: verified" in new.run(place, "savepoints", "verify", job, "latest")
    again = new.json(place, "savepoints", "show", job, before["id"])
    assert again["manifest"]["versions"]["spark"] == OLD and again["rows"] == before["rows"]

    # 3. try
    trial = f"{job}_trial"
    described = yaml.safe_load((place.config / "jobs" / f"{job}.yaml").read_text())
    del described["name"]
    place.job(trial, **{**described, "sinks": [{**sink, "table": trial} for sink in described["sinks"]]})
    append(place, parts[2])
    new.run(place, "restore", trial, "--of", job)
    wait_until_equal(place, job, arrived(3), trial)
    new.run(place, "stop", trial)
    assert COMPARE[job](arrived(2), place.table(job)).equal, "the trial has left the job's table alone"

    # 4. switch
    new.run(place, "deploy", job)
    assert writer(place, job) == NEW
    append(place, parts[3])
    wait_until_equal(place, job, arrived(4))
    status = new.json(place, "status", job)
    assert (status["phase"], status["health"]) == ("running", "ok")
    assert place.documents(job).checkpoint.read().generation == 1, "the checkpoint of the old version"
    after = new.json(place, "savepoint", job)
    assert after["state"] == "verified"

    # The old version on this checkpoint: its supervisor starts a driver, which refuses. Nothing else goes either.
    way_back = "`streamwarden restore JOB --savepoint ID`"
    place.kill_all()
    refused = old.run(place, "supervise", job, status=2)
    assert "[CHECKPOINT_NEWER_SPARK]" in refused and f"was written by Spark {NEW}, here is {OLD}" in refused
    assert writer(place, job) == OLD and way_back in refused
    refused = old.run(place, "deploy", job, status=2)
    assert "[ROLLOUT_REFUSED]" in refused and f"Spark {NEW} -> {OLD}" in refused and way_back in refused
    refused = old.run(place, "restore", job, "--savepoint", after["id"], status=2)
    assert "[RESTORE_SPARK_VERSION]" in refused

    # roll back, to the savepoint of step 1
    new.run(place, "stop", job)
    append(place, parts[4])
    old.run(place, "restore", job, "--savepoint", before["id"])
    assert writer(place, job) == OLD
    saved = old.json(place, "savepoints", "show", job, old.json(place, "savepoints", "list", job)[0]["id"])
    assert saved["origin"] == "pre-restore" and saved["manifest"]["versions"]["spark"] == NEW
    append(place, parts[5])
    wait_until_equal(place, job, trips)

    # It is the old version's again, and goes on.
    last = old.json(place, "savepoint", job, "--stop")
    assert last["state"] == "verified" and last["generation"] == 2
    shown = old.json(place, "savepoints", "show", job, last["id"])
    assert shown["manifest"]["versions"]["spark"] == OLD
    assert COMPARE[job](trips, place.table(job)).equal
