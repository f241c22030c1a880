"""A driver that is paused loses its lease, wakes, and writes nothing any more."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.savepoint import Origin
from streamwarden.model.status import CheckpointRef, Exit
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.restore import restore
from streamwarden.runtime.launchers.launch import launch_driver
from streamwarden.savepoints import fresh_checkpoint as fresh_checkpoint_module
from streamwarden.savepoints.take import take
from streamwarden.supervision import act
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.integration.conftest import BY, Place

pytestmark = [pytest.mark.integration, pytest.mark.slow]


# The next one waits for it to run out.
LEASE = "8s"


def pausing(place: Place, marker: Path, before: int, *, by_spark: bool = False) -> None:
    s3 = place.workspace.profile.s3
    place.profile(lease=LEASE, **({"s3": s3.model_dump(exclude_none=True)} if s3 else {}))
    place.numbers()
    options = {"pause_before": before, "marker": str(marker), "by_spark": by_spark}
    place.job("numbers", module="tests.integration.jobs.pausing", options=options)


def pid_of(seen: Observation) -> int:
    assert seen.heartbeat is not None
    return seen.heartbeat.process.pid


def until(condition: object, what: str, timeout: float = 300) -> None:
    deadline = time.monotonic() + timeout
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def lives_elsewhere(place: Place) -> str:
    """Start the next driver as another machine would, which can't kill the paused one."""
    place.wait("numbers", lambda seen: seen.phase is Phase.SILENT, "the paused driver to be silent")
    desired = place.documents("numbers").desired.read()
    assert desired is not None
    return launch_driver(place.workspace, desired, by=BY, reason="as if on another machine")


def freeze(pid: int) -> list[psutil.Process]:
    """Stop a process with all below it, as a machine that is suspended does."""
    root = psutil.Process(pid)
    frozen = []
    for process in [root, *root.children(recursive=True)]:
        # Hadoop's helpers live for a moment.
        with suppress(psutil.NoSuchProcess):
            process.suspend()
            frozen.append(process)
    return frozen


def thaw(frozen: list[psutil.Process]) -> None:
    for process in reversed(frozen):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def ended(place: Place, incarnation: str) -> Exit:
    documents = place.documents("numbers")
    until(lambda: documents.exit(incarnation).read() is not None, "the woken driver to end")
    found = documents.exit(incarnation).read()
    assert found is not None
    return found


def files(place: Place) -> list[str]:
    return sorted(row["file"] for row in place.rows("numbers"))


def at(seen: Observation, batch: int) -> bool:
    return bool(seen.heartbeat and (seen.heartbeat.batch or 0) >= batch and seen.phase is Phase.RUNNING)


@pytest.mark.long
@pytest.mark.ci
def test_paused_between_check_and_commit_its_batch_is_there_once(place: Place, tmp_path: Path) -> None:
    marker = tmp_path / "paused"
    pausing(place, marker, before=2)
    for number in range(6):
        place.land(f"{number}.txt")
    first = deploy_job(place.workspace, "numbers", by=BY).incarnation
    until(marker.exists, "the pause")
    paused = observe(place.workspace, "numbers")
    second = lives_elsewhere(place)
    place.wait("numbers", lambda seen: seen.incarnation == second and at(seen, 5), "the second's batches")
    before = DeltaLog(place.workspace.files, "numbers").latest
    os.kill(pid_of(paused), signal.SIGCONT)
    last = ended(place, first)
    assert last.outcome == "failed" and last.error is not None and last.error.code == "LEASE_LOST"
    assert files(place) == [f"{number}.txt" for number in range(6)]
    assert DeltaLog(place.workspace.files, "numbers").latest == before
    place.land("6.txt")
    place.wait("numbers", lambda seen: seen.incarnation == second and at(seen, 6), "a batch after that")


class Unfenced(CheckpointRef):
    def __init__(self, **fields: Any) -> None:
        super().__init__(**{**fields, "fenced": True})


@pytest.mark.long
@pytest.mark.parametrize(("fenced", "by_spark"), [(False, True), (True, True), (True, False)])
def test_paused_before_a_commit_of_an_earlier_generation(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool, by_spark: bool
) -> None:
    """Without the fence, its rows are added by Spark to the restored table; with the fence, its commit fails."""
    wakes_in_another_generation(place, tmp_path / "paused", monkeypatch, fenced=fenced, by_spark=by_spark)


def wakes_in_another_generation(
    place: Place,
    marker: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fenced: bool = True,
    by_spark: bool = False,
) -> None:
    """Pause a driver before a commit, restore the job under it, and let it wake; on disk or on S3."""
    pausing(place, marker, before=2, by_spark=by_spark)
    for number in range(2):
        place.land(f"{number}.txt")
    first = deploy_job(place.workspace, "numbers", by=BY).incarnation
    place.wait("numbers", lambda seen: at(seen, 1), "batch 1")
    made = take(place.workspace, "numbers", origin=Origin.MANUAL, by=BY)
    place.land("2.txt")
    until(marker.exists, "the pause")
    paused = observe(place.workspace, "numbers")
    place.wait("numbers", lambda seen: seen.phase is Phase.SILENT, "the paused driver to be silent")
    monkeypatch.setattr(act, "kill", lambda process: False)
    if not fenced:
        monkeypatch.setattr(fresh_checkpoint_module, "CheckpointRef", Unfenced)
    restore(place.workspace, "numbers", savepoint=made.id, by=BY)
    place.wait("numbers", lambda seen: at(seen, 2), "batch 2 of the new generation")
    os.kill(pid_of(paused), signal.SIGCONT)
    ended(place, first)
    twice = ["0.txt", "1.txt", "2.txt", "2.txt"]
    assert files(place) == (["0.txt", "1.txt", "2.txt"] if fenced else twice)
    old = CheckpointReader(place.workspace.storage, "checkpoints/numbers/g000001")
    assert old.last_commit() == 1, "what it could not write it must not take for written"


@pytest.mark.long
def test_frozen_with_its_jvm_at_any_moment(place: Place) -> None:
    """As a machine that is suspended: Python and JVM at once, at random; the next one begins when the lease is out."""
    seed = int(os.environ.get("STREAMWARDEN_TEST_SEED", "5"))
    rng = random.Random(seed)
    place.profile(lease=LEASE)
    place.numbers(options={"slow": 0.1})
    landed = 0

    def land(count: int) -> None:
        nonlocal landed
        for _ in range(count):
            place.land(f"{landed:03d}.txt")
            landed += 1

    land(8)
    current = deploy_job(place.workspace, "numbers", by=BY).incarnation
    place.wait("numbers", lambda seen: at(seen, 2), "batch 2")
    for _ in range(3):
        land(8)
        time.sleep(rng.uniform(0.2, 3))
        found = place.documents("numbers").heartbeat(current).read()
        assert found is not None
        frozen = freeze(found.process.pid)
        following = lives_elsewhere(place)
        place.wait("numbers", lambda seen, name=following: seen.incarnation == name and at(seen, 0), "the next one")
        time.sleep(rng.uniform(0, 2))
        thaw(frozen)
        last = ended(place, current)
        assert last.error is not None and last.error.code in ("LEASE_LOST", "BATCH_FAILED"), last.error
        current = following
    place.wait("numbers", lambda seen: at(seen, 0) and len(files(place)) >= landed, f"all {landed} files (seed {seed})")
    assert files(place) == [f"{number:03d}.txt" for number in range(landed)], f"seed {seed}"
    log = DeltaLog(place.workspace.files, "numbers")
    written = [
        action["txn"]["version"] for version in log.versions for action in log.actions(version) if "txn" in action
    ]
    assert len(written) == len(set(written)), f"a batch has two commits (seed {seed})"
