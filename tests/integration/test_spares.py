"""A spare with a real Spark takes over from a driver that is killed, and is not used for code that has changed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime import processes, spares
from streamwarden.runtime.spares import SPARES_ENV, Spare
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import restart
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.observe import Observation
from tests.integration.conftest import BY, REPOSITORY, Place, log_of

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.ci]


def test_a_spare_takes_over_unless_its_code_has_changed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPARES_ENV, "1")
    # A module that this test may change.
    code = tmp_path / "code"
    code.mkdir()
    (code / "counted.py").write_text((REPOSITORY / "tests/integration/jobs/numbers.py").read_text())
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{code}")
    place.numbers()
    place.job("numbers", module="counted")
    place.land("a.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    place.wait("numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 0), "batch 0")
    first = ready(place)

    now = killed_and_restarted(place, "b.txt", batch=1)
    assert now.heartbeat is not None and now.heartbeat.process == first.process
    # The files that its JVM has opened since before it had a job.
    assert now.incarnation is not None
    logs = place.workspace.log_dir("numbers", now.incarnation)
    assert {"console.log", "driver.log", "spark.log"} <= {path.name for path in logs.iterdir()}
    assert f"this process was the warm spare {first.id}" in log_of(place, "numbers")

    second = ready(place)
    assert second.process != first.process
    (code / "counted.py").write_text((code / "counted.py").read_text() + "\n# changed\n")
    now = killed_and_restarted(place, "c.txt", batch=2)
    assert now.heartbeat is not None and now.heartbeat.process != second.process
    assert sorted(row["file"] for row in place.rows("numbers")) == ["a.txt", "b.txt", "c.txt"]

    ready(place)
    driver_control.stop_all(place.workspace, by=BY)
    assert spares.living(place.workspace) == {}


def ready(place: Place) -> Spare:
    """Wait for a ready spare."""
    deadline = time.monotonic() + 120
    while not (found := [spare for spare, is_ready in spares.living(place.workspace).items() if is_ready]):
        assert time.monotonic() < deadline, list(place.workspace.log_dir("_spares", "x").parent.glob("*/*"))
        time.sleep(0.1)
    return found[0]


def killed_and_restarted(place: Place, file: str, *, batch: int) -> Observation:
    """Kill the driver and its JVM, restart the job as a supervisor does, and wait for its next batch."""
    documents = place.documents("numbers")
    lease = documents.lease.read()
    assert lease is not None and lease.jvm is not None
    processes.kill(lease.process)
    seen = place.wait("numbers", lambda seen: not seen.phase.alive, "the end")
    assert decide(seen, documents.supervision.read() or Supervision()).action is Action.RESTART
    place.land(file)
    assert restart(place.workspace, seen, by=BY) is not None
    return place.wait("numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == batch), f"batch {batch}")
