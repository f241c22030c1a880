"""What every launcher promises, on real drivers: start, find, observe, stop, kill, logs, wherever a driver runs."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from streamwarden.operations.rescale import rescale
from streamwarden.runtime.launchers import launch
from streamwarden.runtime.launchers.interface import StartState
from streamwarden.runtime.launchers.launch import launch_driver
from streamwarden.savepoints import catalog
from streamwarden.savepoints.verify import verify
from streamwarden.supervision import driver_control
from streamwarden.supervision.decide import Action
from streamwarden.supervision.observe import Phase
from tests.integration.conftest import BY
from tests.launchers.place import JOB, LauncherPlace, until

pytestmark = [pytest.mark.integration, pytest.mark.launchers, pytest.mark.long, pytest.mark.timeout(600)]

RACES = int(os.environ.get("STREAMWARDEN_TEST_RACES", "2"))
"""How often two drivers are started at once."""

NOTICED_S = 5.0
"""Within this time, a driver's death is known to whoever observes the job."""


def test_it_starts_is_found_by_a_newcomer_and_stops_between_batches(place: LauncherPlace) -> None:
    driver = place.deploy()
    assert place.found(driver).state is StartState.STARTED
    # Of the driver, and on a cluster of its executor.
    assert set(place.archived()) == {True}

    # All else dies and comes back. The driver goes on, and a process that knows only the place finds it.
    place.restart_all_else()
    place.counts.add([1, 30])
    place.check()
    status = place.fresh_status()
    assert (status["phase"], status["incarnation"], status["health"]) == ("running", driver, "ok")
    assert place.found(driver).state is StartState.STARTED and place.memory().restarts == []
    assert "batches every trigger interval" in place.log(driver)

    stopped = driver_control.stop(place.workspace, JOB, by=BY)
    assert stopped.phase is Phase.STOPPED and stopped.incarnation == driver
    assert place.batches().last_offset() == place.batches().last_commit()
    until(lambda: not place.runs(driver), "the end of its process", timeout=30)
    until(lambda: place.found(driver).state is not StartState.STARTED, "its launcher to know the end", timeout=30)
    assert place.verdict() is Action.FINISH
    place.counts.check_totals()


def test_a_killed_driver_is_noticed_and_restarted(
    place: LauncherPlace, record_property: Callable[[str, object], None]
) -> None:
    driver = place.deploy()
    # With a batch begun, which the next driver has to finish.
    place.in_batch()
    place.kill_hard(driver)
    took = until(lambda: not place.seen().phase.alive, "somebody to notice", timeout=60)
    record_property("noticed_s", round(took, 1))
    assert took < NOTICED_S
    seen = place.seen()
    assert seen.error is not None and seen.error.code == "DRIVER_DIED" and seen.error.retryable
    place.hold.unlink()
    place.supervise()
    place.check()
    assert place.incarnation() != driver and len(place.memory().restarts) == 1
    place.counts.check_totals()


def test_of_two_drivers_one_commits(place: LauncherPlace) -> None:
    first = place.deploy()
    desired = place.seen().desired
    assert desired is not None
    second = launch_driver(place.workspace, desired, by=BY, reason="a mistake")
    place.counts.add([1, 2, 40])
    until(lambda: place.documents(JOB).exit(second).read() is not None, "the second driver's end")
    ended = place.documents(JOB).exit(second).read()
    assert ended is not None and ended.error is not None and ended.error.code == "LEASE_HELD"
    place.check()
    # It never was the job's driver: nobody restarts anything.
    assert place.running().incarnation == first and place.verdict() is Action.WAIT
    place.counts.check_totals()


def is_over(place: LauncherPlace, driver: str) -> bool:
    return place.documents(JOB).exit(driver).read() is not None or place.found(driver).state is StartState.ENDED


@pytest.mark.timeout(600 + 120 * RACES)
def test_of_two_drivers_that_are_started_at_once_one_commits(
    place: LauncherPlace, record_property: Callable[[str, object], None]
) -> None:
    holder = place.deploy()
    documents, desired = place.documents(JOB), place.seen().desired
    assert desired is not None
    start = functools.partial(launch_driver, place.workspace, desired, by=BY, reason="a race")
    won = [0, 0]
    for number in range(RACES):
        place.kill_hard(holder)
        until(lambda gone=holder: not place.runs(gone), "the end of the one before", timeout=30)
        place.counts.add([number % 20, 1])
        with ThreadPoolExecutor(2) as starters:
            both = [one.result() for one in [starters.submit(start) for _ in range(2)]]
        until(lambda both=both: any(is_over(place, one) for one in both), "the loser's end")
        place.check()
        (loser,) = [one for one in both if is_over(place, one)]
        (holder,) = set(both) - {loser}
        said = documents.exit(loser).read()
        if said is not None:
            assert said.error is not None and said.error.code == "LEASE_HELD", said
        else:
            assert place.workspace.profile.launcher == "host", "only a host passes over the older of two requests"
        lease = documents.lease.read()
        assert lease is not None and lease.incarnation == holder
        won[both.index(holder)] += 1
        print(f"race {number + 1} of {RACES}: {won}", flush=True)  # noqa: T201
    record_property("won", won)
    place.counts.check_totals()


def test_one_that_does_not_stop_is_killed(place: LauncherPlace) -> None:
    driver = place.deploy()
    place.in_batch()
    ended = driver_control.stop(place.workspace, JOB, by=BY, timeout=2, kill=True)
    assert ended.error is not None and ended.error.code in ("DRIVER_KILLED", "DRIVER_DIED")
    until(lambda: not place.runs(driver), "the end of its process", timeout=30)
    place.hold.unlink()
    driver_control.start(place.workspace, JOB, by=BY)
    place.check()
    place.counts.check_totals()


def test_without_room_it_waits_and_spends_no_restart(place: LauncherPlace) -> None:
    if place.NO_ROOM:
        pytest.skip(place.NO_ROOM)
    place.counts.add([1, 1, 2])
    with place.take_room():
        driver = place.launch()
        seen = place.wait(JOB, place.waits, "a driver that waits for room")
        assert seen.reason, seen
        # For longer than a driver may be silent.
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            assert place.verdict() is Action.WAIT
            time.sleep(0.5)
    place.check()
    assert place.incarnation() == driver and place.memory().restarts == []


def test_one_that_waits_for_room_is_stopped(place: LauncherPlace) -> None:
    if place.NO_ROOM:
        pytest.skip(place.NO_ROOM)
    place.counts.add([1, 2])
    with place.take_room():
        place.launch()
        place.wait(JOB, place.waits, "a driver that waits for room")
        assert driver_control.stop(place.workspace, JOB, by=BY, timeout=60).phase is Phase.STOPPED
    # It does not come to run with the room.
    time.sleep(5)
    assert place.seen().phase is Phase.STOPPED and place.verdict() is Action.FINISH
    driver_control.start(place.workspace, JOB, by=BY)
    place.check()
    place.counts.check_totals()


def test_a_savepoint_and_a_rescale(place: LauncherPlace) -> None:
    place.deploy()
    done = rescale(place.workspace, JOB, partitions=3, by=BY)
    assert done.state == "done" and place.counts.partitions() == 3
    (made,) = catalog.savepoints(place.workspace, JOB)
    assert made.manifest.partitions == 2
    assert verify(place.workspace, [made], by=BY)[made.manifest.id].verdict == "verified"
    place.counts.add([1, 2, 50])
    place.check()
    # The launcher knows the new driver as it knows any other.
    assert place.found(place.incarnation()).state is StartState.STARTED
    place.counts.check_totals()
    assert driver_control.stop(place.workspace, JOB, by=BY).phase is Phase.STOPPED


def test_a_start_whose_asker_died_is_repeated(place: LauncherPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    place.counts.add([1, 1])
    # Between the launch document and the launcher.
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(launch, "launcher_of", dies)
        place.launch()
    never = place.incarnation()
    assert place.seen().phase is Phase.STARTING and place.verdict() is Action.WAIT
    document = place.documents(JOB).launch(never)
    document.update(lambda now: now.model_copy(update={"at": now.at - timedelta(minutes=2)}))  # type: ignore[union-attr]
    # Some launchers know more than silence: there is no such driver.
    assert place.seen().phase in (Phase.SILENT, Phase.DEAD) and not place.runs(never)
    place.supervise()
    place.check()
    assert place.incarnation() != never and len(place.memory().restarts) == 1
