"""Spark standalone, a real one: the job goes on by itself, and its output equals a batch computation."""

from __future__ import annotations

import pytest

from streamwarden.operations.rescale import rescale
from streamwarden.supervision.decide import Action
from streamwarden.supervision.observe import Phase
from tests.integration.conftest import BY
from tests.launchers.place import JOB, until
from tests.launchers.standalone import WORKERS, StandalonePlace

pytestmark = [
    *(pytest.mark.integration, pytest.mark.launchers, pytest.mark.long, pytest.mark.timeout(600)),
    pytest.mark.parametrize("kind", ["standalone"]),
]


def test_executors_are_lost_in_a_batch(place: StandalonePlace) -> None:
    driver = place.deploy()
    for _ in range(3):
        place.counts.add([*range(500)])
        place.in_task()
        assert place.cluster.kill_executors() == 1
        place.check()
    # The same driver: the cluster gives others, and Spark repeats the tasks.
    assert place.incarnation() == driver and place.memory().restarts == []
    place.counts.check_totals()


def test_a_worker_is_killed_in_a_batch(place: StandalonePlace) -> None:
    driver = place.deploy()
    for number in range(WORKERS):
        place.counts.add([*range(500)])
        place.in_task()
        place.cluster.kill(f"worker{number}")
        if number == 0:
            # The other worker has room.
            place.check()
    # None is left. A restart would not bring one: it is not counted as stuck, and says why.
    place.counts.add([1])
    seen = place.wait(JOB, lambda seen: seen.phase is Phase.WAITING, "the driver to say so", timeout=60)
    assert "no free slots" in seen.reason and place.verdict() is Action.WAIT
    place.cluster.start()
    place.check()
    place.wait(JOB, lambda seen: seen.phase is Phase.RUNNING, "the driver to say so", timeout=60)
    assert place.incarnation() == driver and place.memory().restarts == []
    place.counts.check_totals()


def test_the_master_is_killed(place: StandalonePlace) -> None:
    driver = place.deploy()
    place.cluster.kill("master")
    # Executors need no master.
    place.counts.add([1, 2, 3])
    place.check()
    place.cluster.start()
    # A recovered master knows the application: a lost executor is replaced.
    place.counts.add([*range(500)])
    assert place.cluster.kill_executors() == 1
    place.check()
    assert place.incarnation() == driver and place.memory().restarts == []
    place.counts.check_totals()


def test_a_rescale_is_online_if_slots_are_free(place: StandalonePlace) -> None:
    place.deploy()
    done = rescale(place.workspace, JOB, partitions=3, by=BY)
    steps = [step.name for step in done.steps]
    assert steps.index("repartition") < steps.index("stop"), steps
    assert done.plan.offline == "" and place.counts.partitions() == 3
    place.counts.add([*range(100)])
    place.check()
    place.counts.check_totals()


def test_a_rescale_is_offline_with_the_reason_if_none_is(
    place: StandalonePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamwarden.operations.rescale._SLOTS_S", 10.0)
    place.deploy()
    # The worker of the job's executor has no memory for another one.
    place.cluster.kill_worker_without_executors()
    done = rescale(place.workspace, JOB, partitions=3, by=BY)
    told = {step.name: step.detail for step in done.steps}
    steps = [step.name for step in done.steps]
    assert steps.index("stop") < steps.index("repartition"), steps
    assert "no free slots" in done.plan.offline and "offline" in told["start Spark"]
    place.check()
    place.counts.check_totals()


def test_executors_have_a_number_of_their_own(place: StandalonePlace) -> None:
    place.deploy()
    done = rescale(place.workspace, JOB, cores=2, executors=2, by=BY)
    assert done.state == "done" and done.plan.to is not None and done.plan.to.executors == 2
    until(lambda: place.cluster.executors() == 2, "two executors", timeout=60)
    (app,) = place.cluster.state()["activeapps"]
    assert app["cores"] == 2
    place.counts.add([1, 2])
    place.check()
    rescale(place.workspace, JOB, executors=1, by=BY)
    until(lambda: place.cluster.executors() == 1, "one executor of two cores", timeout=60)
    place.check()
