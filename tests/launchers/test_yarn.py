"""YARN, a real one: what ends a driver there, what the cluster refuses, and output that equals a batch computation."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import psutil
import pytest
from nyc_taxi.demo.batch import compare_trips, compare_zone_windows, expected_zone_windows, read_landed
from nyc_taxi.demo.verify import ROW_RULES, read_table
from nyc_taxi.trips.generator import GeneratorOptions, generate
from nyc_taxi.trips.replay import Replay, ReplayOptions

from streamwarden.errors import StreamwardenError
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.launchers.interface import StartState
from streamwarden.runtime.launchers.launch import launcher_of
from streamwarden.supervision import driver_control
from streamwarden.supervision.decide import Action
from streamwarden.supervision.observe import Observation, Phase
from tests.integration.conftest import BY
from tests.launchers.place import JOB, until
from tests.launchers.yarn import YarnPlace

pytestmark = [
    *(pytest.mark.integration, pytest.mark.launchers, pytest.mark.long, pytest.mark.timeout(600)),
    pytest.mark.parametrize("kind", ["yarn"]),
]


def application(place: YarnPlace, incarnation: str) -> str:
    """Return how YARN shows a driver's application: its final status."""
    (found,) = [one for one in place.cluster.applications() if incarnation.lower() in one["applicationTags"]]
    return f"{found['state']} {found['finalStatus']}"


def one_of(place: YarnPlace, incarnation: str, name: str) -> psutil.Process:
    (found,) = [one for one in place.processes(incarnation) if one.name().startswith(name)]
    return found


def test_zone_windows_equal_a_batch_computation_though_its_container_is_killed(place: YarnPlace) -> None:
    place.job("zone_windows", restarts={"max": 5, "backoff": "100ms", "backoff_max": "1s"})
    trips = generate(GeneratorOptions(start=datetime(2023, 3, 6), end=datetime(2023, 3, 8)))
    landing = place.workspace.root / "landing"
    Replay(trips, landing, ReplayOptions(speed="max", file_every=timedelta(hours=1))).run()
    for job in ("ingest_trips", "zone_windows"):
        deploy_job(place.workspace, job, by=BY)
    place.wait("zone_windows", lambda seen: ((seen.heartbeat and seen.heartbeat.batch) or 0) >= 1, "a second batch")
    driver = place.seen("zone_windows").incarnation
    assert driver is not None
    place.kill_hard(driver)
    place.wait("zone_windows", lambda seen: not seen.phase.alive, "its death to be noticed", timeout=15)
    seen = place.seen("zone_windows")
    assert seen.error is not None and seen.error.code == "DRIVER_DIED"
    # Known without a look at the process, which is on this machine here.
    until(lambda: launcher_of(place.workspace).find("zone_windows", driver).state is StartState.ENDED, "YARN to know")
    assert "exitCode: 137" in launcher_of(place.workspace).find("zone_windows", driver).reason
    place.supervise("zone_windows")

    bounds = place.workspace.job("ingest_trips").options
    landed = read_landed(
        [path for path in landing.iterdir() if path.is_file()],
        earliest=datetime.fromisoformat(str(bounds["earliest"])),
        latest=datetime.fromisoformat(str(bounds["latest"])),
        rules=ROW_RULES,
    )
    expected = expected_zone_windows(landed.trips)

    def all_there() -> bool:
        return (
            compare_trips(landed.trips, read_table(place.workspace, "trips")).equal
            and compare_zone_windows(expected, read_table(place.workspace, "zone_windows")).equal
        )

    until(all_there, "equal tables", timeout=240)
    for job in ("zone_windows", "ingest_trips"):
        assert driver_control.stop(place.workspace, job, by=BY).phase is Phase.STOPPED
    assert all_there()


@pytest.mark.parametrize("what", ["python", "java"])
def test_half_of_a_driver_is_killed(place: YarnPlace, what: str) -> None:
    driver = place.deploy()
    place.in_batch()
    one_of(place, driver, what).kill()
    began = time.monotonic()
    until(lambda: not place.seen().phase.alive, "somebody to notice", timeout=60)
    assert time.monotonic() - began < 20
    seen = place.seen()
    assert seen.error is not None and seen.error.retryable, seen
    assert seen.error.code == ("DRIVER_DIED" if what == "python" else "JVM_DIED")
    place.hold.unlink()
    # Nothing of it is left that could go on.
    until(lambda: not place.runs(driver), "the end of the other half", timeout=60)
    place.supervise()
    place.counts.check()
    place.counts.check_totals()


def test_a_drivers_machine_is_gone(place: YarnPlace) -> None:
    driver = place.deploy()
    place.in_batch()
    node = place.cluster.node_of(one_of(place, driver, "python"))
    place.cluster.kill(node, containers=True)
    place.hold.unlink()
    until(lambda: not place.seen().phase.alive, "somebody to notice", timeout=60)
    # The other machine has room.
    place.supervise()
    place.counts.add([1, 2, 60])
    place.counts.check()
    assert place.cluster.node_of(one_of(place, place.incarnation(), "python")) != node
    place.cluster.start()
    place.counts.check_totals()


def test_yarn_shows_how_a_driver_has_ended(place: YarnPlace) -> None:
    stopped = place.deploy()
    driver_control.stop(place.workspace, JOB, by=BY)
    until(lambda: place.found(stopped).state is StartState.ENDED, "its end", timeout=30)
    assert application(place, stopped) == "FINISHED SUCCEEDED"
    # Still there to read.
    assert "stopped after batch" in place.log(stopped)

    started = driver_control.start(place.workspace, JOB, by=BY)
    place.counts.add([1])
    place.counts.check()
    assert launcher_of(place.workspace).kill(JOB, str(started)) is True
    assert launcher_of(place.workspace).kill(JOB, str(started)) is False
    assert application(place, str(started)) == "KILLED KILLED"


def test_what_the_cluster_refuses_fails_with_its_words(place: YarnPlace) -> None:
    def refused(seen: Observation) -> bool:
        return seen.phase is Phase.FAILED

    place.counts.add([1])
    place.job(JOB, restarts={"max": 5, "backoff": "60s", "backoff_max": "60s"})
    workspace = place.workspace
    place.profile(jobs={"resources": {"cores": 1, "memory": "4g"}})
    deploy_job(place.workspace, JOB, by=BY)
    seen = place.wait(JOB, refused, "a refusal")
    assert seen.error is not None and seen.error.code == "SUBMISSION_REFUSED"
    assert "above the max threshold" in seen.error.what and place.verdict() is Action.RESTART

    assert workspace.profile.yarn is not None
    place.profile(yarn={**workspace.profile.yarn.model_dump(mode="json"), "queue": "nowhere"})
    deploy_job(place.workspace, JOB, by=BY)
    seen = place.wait(JOB, lambda seen: refused(seen) and "nowhere" in seen.error.what, "the other")  # type: ignore[union-attr]
    assert seen.error is not None and seen.error.code == "SUBMISSION_REFUSED"


def test_without_a_resource_manager_drivers_go_on_and_none_is_started(place: YarnPlace) -> None:
    driver = place.deploy()
    place.cluster.kill("rm")
    place.counts.add([1, 2])
    place.counts.check()
    assert place.found(driver).state is StartState.UNKNOWN and place.verdict() is Action.WAIT
    desired = place.seen().desired
    assert desired is not None
    assert driver_control.stop(place.workspace, JOB, by=BY).phase is Phase.STOPPED
    with pytest.raises(StreamwardenError, match="YARN_UNREACHABLE"):
        driver_control.start(place.workspace, JOB, by=BY)
    assert place.seen().phase is Phase.FAILED and place.verdict() is Action.RESTART
    place.cluster.start()
    place.supervise()
    # Only its driver can count these.
    place.counts.add([3])
    place.counts.check()
    place.counts.check_totals()
