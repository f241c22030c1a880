"""Rescales of real drivers: the state is kept, the outputs are right, and an unhealthy rescale is rolled back."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.operation import Operation
from streamwarden.model.savepoint import Origin
from streamwarden.model.status import CheckpointRef
from streamwarden.operations import rescale_verify, state_copy
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.rescale import rescale
from streamwarden.operations.restore import restore
from streamwarden.operations.spec_diff import plan
from streamwarden.runtime.processes import kill
from streamwarden.runtime.state_reader import StateAt, read_state
from streamwarden.savepoints import catalog
from streamwarden.savepoints.verify import verify
from streamwarden.store.effective_spec import effective_spec
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase, observe
from tests.integration.conftest import BY, Place
from tests.integration.fleet import Fleet

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


class Counts:
    """The job `counts`, and what it must have counted."""

    def __init__(
        self, place: Place, module: str = "tests.integration.jobs.counts", *, files: int = 1, **fields: Any
    ) -> None:
        self.place = place
        self.expected: Counter[int] = Counter()
        place.job(
            "counts",
            module=module,
            source={"kind": "delta", "table": "rows", "max_files_per_batch": files},
            sinks=[{"table": "counts", "mode": "upsert", "keys": ["key"]}],
            **fields,
        )

    def add(self, keys: list[int]) -> None:
        uri, options = self.place.workspace.delta_rs("rows")
        write_deltalake(uri, pa.table({"key": keys}), mode="append", storage_options=options)
        self.expected.update(keys)

    def check(self) -> None:
        """Wait until all is counted, or nothing more is, and compare."""
        found: dict[int, int] = {}
        deadline = time.monotonic() + 240
        while found != self.expected:
            before, found = found, {row["key"]: row["rows"] for row in self.place.rows("counts")}
            if found != before:
                deadline = time.monotonic() + 240
            elif time.monotonic() >= deadline:
                break
            time.sleep(0.3)
        assert found == self.expected

    def check_totals(self) -> None:
        """Check that each row was counted once as read: no rescale reads one again, nor a way back from it."""
        rows = self.expected.total()
        # Totals are written after the table.
        self.place.wait(
            "counts",
            lambda _: bool((now := self.place.documents("counts").current_totals()) and now.rows_in >= rows),
            f"{rows} rows in the totals",
        )
        totals = self.place.documents("counts").current_totals()
        assert totals is not None and totals.rows_in == rows

    def reference(self) -> CheckpointRef:
        found = self.place.documents("counts").checkpoint.read()
        assert found is not None
        return found

    def partitions(self) -> int:
        """Return what the checkpoint in force says."""
        reader = CheckpointReader(self.place.workspace.storage, self.reference().path)
        last = reader.last_offset()
        assert last is not None
        offsets = reader.offsets(last)
        assert offsets is not None
        return int(offsets.conf["spark.sql.shuffle.partitions"])

    def rescale(self, **target: Any) -> Operation:
        return rescale(self.place.workspace, "counts", by=BY, **target)


def running(place: Place) -> None:
    place.wait(
        "counts", lambda seen: seen.phase is Phase.RUNNING and bool(seen.progress and seen.progress.last), "rows"
    )


@pytest.mark.long
@pytest.mark.ci
def test_two_to_eight_partitions_while_rows_land(place: Place) -> None:
    counts = Counts(place)
    counts.add([*range(200), 1, 1])
    deploy_job(place.workspace, "counts", by=BY)
    running(place)
    counts.check()

    # Rows that land meanwhile are counted by the driver that runs on, and replayed in the copy.
    done = rescale_with_rows(counts, partitions=8)
    assert done.state == "done" and counts.partitions() == 8 and counts.reference().generation == 2
    assert [step.name for step in done.steps] == [
        *("precheck", "start Spark", "pre-rescale savepoint", "copy", "digest before", "repartition", "digest after"),
        *("follow", "stop", "follow to the end", "switch", "start", "first batch", "digest at the stop", "catch up"),
    ]
    told = {step.name: step.detail for step in done.steps}
    assert told["digest at the stop"].startswith("the same after batch")
    assert "200 rows" in told["digest after"] and told["follow"].endswith(", 0 behind")
    assert counts.reference().base_batch == 2, "the first batch, the repartitioning, and the one replayed"
    assert 0 < done.plan.downtime_s < 120
    counts.add([1, 2, 500])
    counts.check()
    counts.check_totals()

    # It is what the job is deployed as: nothing is to be rolled out, and a driver that is killed comes back so.
    assert plan(place.workspace, "counts").effect is Effect.NONE
    assert effective_spec(place.workspace, "counts").state.partitions == 8
    (made,) = catalog.savepoints(place.workspace, "counts")
    assert (made.manifest.origin, made.manifest.partitions) == (Origin.PRE_RESCALE, 2)
    assert verify(place.workspace, [made], by=BY)[made.manifest.id].verdict == "verified"
    assert catalog.find(place.workspace, "counts", made.manifest.id).record.in_use_by == []


@pytest.mark.long
@pytest.mark.parametrize("differs", [False, True])
def test_a_job_that_its_copy_cannot_follow_is_stopped_and_proved_once_it_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch, differs: bool
) -> None:
    # For ten minutes, at two a second.
    counts = Counts(place, state={"min_batches_to_retain": 1200})
    counts.add([*range(200), 1, 1])
    deploy_job(place.workspace, "counts", by=BY)
    running(place)
    counts.check()
    monkeypatch.setattr(state_copy, "follow", lambda *_, **__: False)
    if differs:
        monkeypatch.setattr(rescale_verify, "differing", lambda *_: ["0/default"])
        with pytest.raises(StreamwardenError, match="RESCALE_STATE_DIFFERS"):
            rescale_with_rows(counts, partitions=5)
        assert counts.partitions() == 2
    else:
        done = rescale_with_rows(counts, partitions=5)
        names = [step.name for step in done.steps]
        assert names[names.index("stop") :] == [
            *("stop", "pre-rescale savepoint", "copy", "repartition", "switch", "start", "first batch"),
            *("digest at the stop", "catch up"),
        ]
        (told,) = [step.detail for step in done.steps if step.name == "digest at the stop"]
        assert told.startswith("the same after batch") and counts.partitions() == 5
    counts.add([1, 2, 500])
    counts.check()


@pytest.mark.long
def test_partitions_and_cores_offline_then_cores_alone_then_back_over_both(place: Place) -> None:
    counts = Counts(place)
    counts.add([*range(200), 1, 1])
    deploy_job(place.workspace, "counts", by=BY)
    running(place)
    counts.check()

    done = counts.rescale(partitions=3, cores=2, mode="offline")
    assert done.state == "done" and counts.partitions() == 3
    (made,) = catalog.savepoints(place.workspace, "counts")
    assert [step.name for step in done.steps] == [
        *("precheck", "start Spark", "stop", "pre-rescale savepoint", "copy", "digest before", "repartition"),
        *("digest after", "switch", "start", "first batch", "catch up"),
    ]
    seen = observe(place.workspace, "counts")
    assert seen.desired is not None and seen.desired.spec.resources.cores == 2
    assert seen.heartbeat is not None and kill(seen.heartbeat.process)
    driver_control.start(place.workspace, "counts", by=BY)
    counts.add([1, 7, 7])
    counts.check()

    # Cores alone: no copy, the same generation.
    generation = counts.reference().generation
    done = counts.rescale(cores=1)
    assert counts.reference().generation == generation and "repartition" not in [step.name for step in done.steps]
    counts.add([1])
    counts.check()

    # Back over both rescales: as many partitions as the savepoint has.
    restore(place.workspace, "counts", savepoint=made.manifest.id, by=BY)
    assert counts.partitions() == 2 and plan(place.workspace, "counts").effect is Effect.NONE
    counts.add([3])
    counts.check()


@pytest.mark.long
def test_behind_a_batch_that_was_begun_cores_change_and_partitions_do_not(place: Place, tmp_path: Path) -> None:
    marker = tmp_path / "hold"
    counts = Counts(place, module="tests.integration.jobs.holding", options={"marker": str(marker)})
    counts.add([1, 1])
    deploy_job(place.workspace, "counts", by=BY)
    running(place)
    counts.check()
    marker.touch()
    counts.add([1, 2])
    seen = observe(place.workspace, "counts")
    reader = CheckpointReader(place.workspace.storage, counts.reference().path)
    place.wait("counts", lambda _: reader.last_offset() != reader.last_commit(), "a batch that is begun")
    assert seen.heartbeat is not None and kill(seen.heartbeat.process)
    marker.unlink()
    assert reader.last_offset() != reader.last_commit()
    driver_control.stop(place.workspace, "counts", by=BY)
    # In another generation the batch, which may be in the table already, would be written once more.
    with pytest.raises(StreamwardenError, match=r"RESCALE_NOT_HEALTHY.*in the midst of batch 1"):
        counts.rescale(partitions=4)
    assert counts.rescale(cores=2).state == "done"
    assert (counts.reference().generation, counts.partitions()) == (1, 2)
    driver_control.start(place.workspace, "counts", by=BY)
    counts.check()


@pytest.mark.long
def test_what_is_unhealthy_goes_back_by_itself(place: Place) -> None:
    fragile = {"failures": {"tolerable_consecutive": 0}, "state": {"partitions": 1}}
    counts = Counts(place, module="tests.integration.jobs.fragile", **fragile)
    counts.add([1, 2, 2])
    deploy_job(place.workspace, "counts", by=BY)
    running(place)
    counts.check()
    before = counts.reference()
    # Something to fail at.
    with pytest.raises(StreamwardenError, match="RESCALE_UNHEALTHY") as raised:
        rescale_with_rows(counts, partitions=7, mode="offline")
    assert "seven is too many" in raised.value.what
    (operation,) = [place.documents("counts").past_operation(name).read() for name in past(place)]
    assert operation is not None and operation.state == "rolled back" and operation.error is not None
    assert [step.name for step in operation.steps][-2:] == ["roll back", "wait for health after the rollback"]
    assert operation.plan.downtime_s > 0
    after = counts.reference()
    assert (after.path, after.generation) == (before.path, before.generation)
    check_that_state_is_as_before(place, "counts")
    assert plan(place.workspace, "counts").effect is Effect.NONE
    counts.add([2, 3])
    counts.check()
    counts.check_totals()
    # And a good one, after that.
    assert counts.rescale(partitions=5).state == "done"
    assert counts.reference().generation == 3, "a generation that was tried is not used again"
    counts.add([3])
    counts.check()
    # With the copy following, it fails there, and the driver runs on.
    incarnation = observe(place.workspace, "counts").incarnation
    with pytest.raises(StreamwardenError, match=r"RESCALE_FAILED.*seven is too many"):
        rescale_with_rows(counts, partitions=7)
    counts.check()
    assert observe(place.workspace, "counts").incarnation == incarnation


@pytest.mark.long
def test_a_job_that_does_not_compute_the_same_twice_goes_back_and_can_be_stopped_first(place: Place) -> None:
    counts = Counts(place, module="tests.integration.jobs.random_sums")
    counts.add([*range(50), 1])
    deploy_job(place.workspace, "counts", by=BY)
    running(place)
    counts.check()
    reference = counts.reference()
    # A replayed batch has as many rows of state, and the same watermark; only its values are others.
    with pytest.raises(StreamwardenError, match=r"RESCALE_UNHEALTHY.*RESCALE_STATE_DIFFERS.*0/default"):
        rescale_with_rows(counts, partitions=5)
    assert counts.reference().path == reference.path and counts.partitions() == 2
    counts.check()
    counts.check_totals()
    assert rescale_with_rows(counts, partitions=5, mode="offline").state == "done"
    counts.add([2])
    counts.check()
    counts.check_totals()
    assert counts.partitions() == 5


@pytest.mark.long
def test_too_little_memory_shows_in_the_rehearsal_or_goes_back(place: Place) -> None:
    counts = Counts(place, module="tests.integration.jobs.hungry")
    counts.add([1, 2, 400])
    deploy_job(place.workspace, "counts", by=BY)
    running(place)
    counts.check()
    before = observe(place.workspace, "counts").incarnation
    with pytest.raises(StreamwardenError, match=r"RESCALE_REHEARSAL_FAILED.*OUT_OF_MEMORY.*Java heap space"):
        counts.rescale(partitions=5, memory="512m")
    assert observe(place.workspace, "counts").incarnation == before
    # The rehearsal looks at the newest rows only.
    for _ in range(3):
        counts.add([2])
        counts.check()
    reference = counts.reference()
    with pytest.raises(StreamwardenError, match=r"RESCALE_UNHEALTHY.*OUT_OF_MEMORY.*Java heap space"):
        rescale_with_rows(counts, rows=[400], partitions=5, memory="512m", mode="offline")
    assert counts.reference().path == reference.path and counts.partitions() == 2
    assert plan(place.workspace, "counts").effect is Effect.NONE
    counts.add([3])
    counts.check()


def check_that_state_is_as_before(place: Place, job: str) -> None:
    """Compare the state of the checkpoint in force with that of the newest savepoint, after the savepoint's batch."""
    made = catalog.savepoints(place.workspace, job)[0].manifest
    reference = place.documents(job).checkpoint.read()
    assert reference is not None
    folders = {"savepoint": savepoint_checkpoint_key(job, made.id), "in force": reference.path}
    asked = {name: StateAt(folder, made.batch, made.partitions) for name, folder in folders.items()}
    told = read_state(place.workspace, asked, code="RESCALE_STATE_DIFFERS")
    assert told["in force"]["digests"] and told["in force"] == told["savepoint"]


def rescale_with_rows(counts: Counts, *, rows: Sequence[int] = (9, 9), **target: Any) -> Operation:
    """Rescale, with rows that land while the savepoint is copied; for `plain`, while the driver is down."""
    landed: list[str] = []

    def report(step: str, done: int, total: int) -> None:
        operation = counts.place.documents("counts").operation.read()
        if not landed and operation is not None and operation.steps[-1].name == "copy":
            landed.append(step)
            reader = CheckpointReader(counts.place.workspace.storage, counts.reference().path)
            before = reader.last_commit()
            counts.add([*rows])
            if target.get("mode") != "offline":
                # By the driver that runs on, so that there is a batch to follow.
                counts.place.wait("counts", lambda _: reader.last_commit() != before, "a batch meanwhile")

    done = rescale(counts.place.workspace, "counts", by=BY, report=report, **target)
    assert landed
    return done


def past(place: Place) -> list[str]:
    return place.documents("counts").past_operations()


@pytest.mark.long
def test_a_target_that_makes_no_sense_is_refused_and_the_job_goes_on(place: Place) -> None:
    counts = Counts(place)
    counts.add([1])
    deploy_job(place.workspace, "counts", by=BY)
    running(place)
    first = observe(place.workspace, "counts").incarnation
    for target, code in (
        ({"partitions": 2}, "RESCALE_NOTHING"),
        ({}, "RESCALE_NOTHING"),
        ({"partitions": 0}, "RESCALE_INVALID"),
        ({"memory": "12"}, "RESCALE_INVALID"),
    ):
        with pytest.raises(StreamwardenError, match=code):
            counts.rescale(**target)
    place.job("counts", watermark="5m")
    with pytest.raises(StreamwardenError, match=r"RESCALE_NOT_HEALTHY.*its YAML has changed"):
        counts.rescale(partitions=4)
    counts.add([1])
    counts.check()
    assert observe(place.workspace, "counts").incarnation == first


@pytest.mark.long
def test_a_memory_backend_can_have_more_cores_and_no_other_partitions(place: Place) -> None:
    counts = Counts(place, state={"backend": "memory"})
    counts.add([1, 1])
    deploy_job(place.workspace, "counts", by=BY)
    running(place)
    incarnation = observe(place.workspace, "counts").incarnation
    with pytest.raises(StreamwardenError, match="RESCALE_UNSUPPORTED"):
        counts.rescale(partitions=4)
    assert observe(place.workspace, "counts").incarnation == incarnation, "found while it still runs"
    assert counts.rescale(cores=2).state == "done"
    counts.add([1])
    counts.check()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_all_stateful_jobs_stay_right_while_trips_stream_in(place: Place) -> None:
    rescale_fleet(Fleet(place, speed=1_200))


STATEFUL = ("zone_windows", "card_sessions", "card_velocity")
ROUNDS: tuple[dict[str, Any], ...] = (
    {"partitions": 8},
    # Nothing is healthy so soon.
    {"partitions": 5, "mode": "offline", "health_timeout": 1},
    {"partitions": 3, "cores": 2, "mode": "offline"},
)


def rescale_fleet(fleet: Fleet) -> None:
    """Rescale each stateful job in rounds, while trips stream in and a supervisor watches; compare with batch."""
    place = fleet.place
    with fleet:
        fleet.await_tables()
        for target in ROUNDS:
            for job in STATEFUL:
                documents = place.documents(job)
                before = _in_force(place, job)
                if "health_timeout" in target:
                    with pytest.raises(StreamwardenError, match="RESCALE_UNHEALTHY"):
                        rescale(place.workspace, job, by=BY, **target)
                    assert _in_force(place, job) == before
                    check_that_state_is_as_before(place, job)
                else:
                    rescale(place.workspace, job, by=BY, **target)
                assert not fleet.supervisor.gave_up, fleet.supervisor.gave_up
                done = documents.past_operation(documents.past_operations()[-1]).read()
                assert done is not None
                told = {key: getattr(done.plan, key) for key in ("state_rows", "downtime_s")}
                sys.stdout.write(f"{job}: {target}: {done.state}, {told}\n")
        fleet.settle()
    fleet.stop_and_compare("rescaled")
    for job in STATEFUL:
        assert _in_force(place, job)[2] == 3
        # Each savepoint is whole, with as many partitions as the job had then. (One whose copy could not keep up has
        # made another, after the stop.)
        found = catalog.savepoints(place.workspace, job)
        assert {one.manifest.partitions for one in found} == {2, 8}
        verified = verify(place.workspace, found, by=BY)
        assert {name: one.problems for name, one in verified.items() if one.problems} == {}


def _in_force(place: Place, job: str) -> tuple[str, int, int | None]:
    """Return the checkpoint in force: its folder, its generation, its partitions."""
    found = place.documents(job).checkpoint.read()
    assert found is not None
    return found.path, found.generation, found.partitions
