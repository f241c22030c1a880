"""A changed YAML and real drivers: what goes on, what is restarted, what goes back, and what stays right throughout."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog, application_id
from streamwarden.model.operation import Operation
from streamwarden.model.savepoint import Origin
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.operations import rollout
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.spec_diff import plan
from streamwarden.operations.status import job_status
from streamwarden.savepoints import catalog
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.integration.conftest import BY, Place

pytestmark = pytest.mark.integration


def batch(place: Place, job: str, number: int) -> Observation:
    def committed(seen: Observation) -> bool:
        newest = seen.heartbeat.batch if seen.heartbeat else None
        return newest is not None and newest >= number

    return place.wait(job, committed, f"batch {number}")


def operation(place: Place, job: str) -> Operation:
    found = place.documents(job).operation.read()
    assert found is not None
    return found


def reference(place: Place, job: str) -> CheckpointRef:
    found = place.documents(job).checkpoint.read()
    assert found is not None
    return found


def files(place: Place, table: str) -> list[str]:
    return sorted(row["file"] for row in place.rows(table))


@pytest.mark.long
def test_what_changes_decides_what_becomes_of_the_driver(place: Place) -> None:
    place.numbers()
    place.land("a.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    first = batch(place, "numbers", 0)
    assert first.heartbeat is not None

    # Live: the very same process.
    place.job("numbers", description="copies numbers", restarts={"max": 7})
    done = deploy_job(place.workspace, "numbers", by=BY)
    assert (done.effect, done.launched) == (Effect.LIVE, False)
    place.land("b.txt")
    seen = batch(place, "numbers", 1)
    assert seen.heartbeat is not None and seen.heartbeat.process == first.heartbeat.process
    assert seen.desired is not None and seen.desired.spec.restarts.max == 7
    assert plan(place.workspace, "numbers").changes == ()

    # Somebody's column: the job runs on, and starts again.
    alter = DeltaTable(place.workspace.table("numbers")).alter
    alter.add_columns([Field("theirs", PrimitiveType("string"), nullable=True)])

    # Restart: another process on the same checkpoint; each file once.
    place.profile(jobs={"interval": "300ms", "partitions": 2})
    place.land("c.txt")
    done = deploy_job(place.workspace, "numbers", by=BY)
    assert done.effect is Effect.RESTART and operation(place, "numbers").state == "done"
    place.land("d.txt")
    seen = batch(place, "numbers", 3)
    assert seen.incarnation == done.incarnation != first.incarnation
    assert seen.launch is not None and seen.launch.spec is not None
    assert seen.launch.spec.trigger.interval.total_seconds() == 0.3
    assert files(place, "numbers") == ["a.txt", "b.txt", "c.txt", "d.txt"]
    (note,) = job_status(place.workspace, "numbers")["notes"]
    assert "table numbers: columns that are not the job's: theirs string" in note

    # An option that the module refuses: the old spec goes on where it was.
    place.job("numbers", options={"slwo": 1})
    with pytest.raises(StreamwardenError, match="ROLLOUT_UNHEALTHY") as raised:
        deploy_job(place.workspace, "numbers", by=BY)
    assert "CONFIG_INVALID" in raised.value.what and "slwo: unknown key" in raised.value.what
    assert "began no batch" in raised.value.what
    place.land("e.txt")
    seen = batch(place, "numbers", 4)
    assert seen.phase is Phase.RUNNING and seen.desired is not None and seen.desired.spec.options == {}
    assert reference(place, "numbers").generation == 1
    assert files(place, "numbers") == ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"]


@pytest.mark.long
def test_a_batch_that_a_broken_spec_wrote_in_part_is_undone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proof of need: under the old transaction id, the rows that the new spec made of that batch would stay."""
    place.job(
        "pairs",
        module="tests.integration.jobs.pairs",
        source={"kind": "files", "path": "landing", "max_files_per_batch": 1},
        sinks=[{"table": "first", "mode": "append"}, {"table": "second", "output": "second", "mode": "append"}],
        failures={"tolerable_consecutive": 0},
    )
    place.land("a.txt")
    deploy_job(place.workspace, "pairs", by=BY)
    batch(place, "pairs", 0)
    # With a column more, besides.
    place.job("pairs", module="tests.integration.jobs.pairs_more", options={"mark": "new", "broken": True})
    assert [one.field for one in plan(place.workspace, "pairs").changes if one.after == "bigint"] == [
        "sinks.first.columns.size"
    ]
    switch = rollout._Rollout._switch

    def switch_and_land(work: rollout._Rollout, wanted: JobSpec) -> None:
        switch(work, wanted)
        # Now, so that it is the new spec's to read.
        place.land("b.txt")

    monkeypatch.setattr(rollout._Rollout, "_switch", switch_and_land)
    with pytest.raises(StreamwardenError, match="ROLLOUT_UNHEALTHY") as raised:
        deploy_job(place.workspace, "pairs", by=BY)
    base = operation(place, "pairs").plan.base
    assert "broken as it was told" in raised.value.what and "first put back" in raised.value.what
    old = CheckpointReader(place.workspace.storage, "checkpoints/pairs/g000001")
    log = DeltaLog(place.workspace.files, "first")
    begun = old.last_offset()
    assert begun == base + 1 and old.last_commit() == base
    assert log.after(application_id("pairs", 1), begun).transaction == begun, "it had written the first table"
    (made,) = catalog.savepoints(place.workspace, "pairs")
    assert (made.manifest.origin, made.manifest.batch) == (Origin.PRE_ROLLOUT, base)
    assert reference(place, "pairs").generation == 2
    place.land("c.txt")
    batch(place, "pairs", 2)
    assert sorted((row["file"], row["marked"]) for row in place.rows("first")) == [
        ("a.txt", "old"),
        ("b.txt", "old"),
        ("c.txt", "old"),
    ]
    assert files(place, "second") == ["a.txt", "b.txt", "c.txt"]
    (note,) = job_status(place.workspace, "pairs")["notes"]
    assert "table first: columns that are not the job's: size bigint" in note

    place.job("pairs", options={"mark": "new"})
    done = deploy_job(place.workspace, "pairs", by=BY)
    assert done.effect is Effect.SAVEPOINT
    precheck = operation(place, "pairs").steps[0]
    assert precheck.name == "precheck" and "module" in precheck.detail
    place.land("d.txt", b"four")
    batch(place, "pairs", 3)
    sizes = {row["file"]: row["size"] for row in place.rows("first")}
    assert sizes == {"a.txt": None, "b.txt": None, "c.txt": None, "d.txt": 4}
    assert job_status(place.workspace, "pairs")["notes"] == []
    # What the table can't follow is refused, and the driver goes on.
    place.job("pairs", module="tests.integration.jobs.pairs")
    with pytest.raises(StreamwardenError, match="ROLLOUT_REFUSED") as raised:
        deploy_job(place.workspace, "pairs", by=BY)
    assert "sinks.first.columns.size" in raised.value.what and "Keep size" in raised.value.remedy
    assert observe(place.workspace, "pairs").incarnation == done.incarnation


@pytest.mark.long
def test_other_state_partitions_are_refused_and_the_driver_goes_on(place: Place) -> None:
    def rows(keys: list[int]) -> None:
        uri, options = place.workspace.delta_rs("rows")
        write_deltalake(uri, pa.table({"key": keys}), mode="append", storage_options=options)

    place.job(
        "counts",
        module="tests.integration.jobs.counts",
        source={"kind": "delta", "table": "rows", "max_files_per_batch": 1},
        sinks=[{"table": "counts", "mode": "upsert", "keys": ["key"]}],
    )
    rows([1, 1, 2])
    deploy_job(place.workspace, "counts", by=BY)
    first = batch(place, "counts", 0)
    workspace = place.profile(jobs={"interval": "500ms", "partitions": 5})
    planned = plan(workspace, "counts")
    assert planned.effect is Effect.REFUSED
    assert [(one.field, one.before, one.after) for one in planned.changes] == [("state.partitions", 2, 5)]
    with pytest.raises(StreamwardenError, match="ROLLOUT_REFUSED") as raised:
        deploy_job(workspace, "counts", by=BY)
    assert "rescale" in raised.value.remedy and place.documents("counts").operation.read() is None
    rows([2, 3])
    seen = batch(place, "counts", 1)
    assert seen.heartbeat is not None and first.heartbeat is not None
    assert seen.heartbeat.process == first.heartbeat.process
    # With state, a change of meaning that the state survives: it goes on counting.
    place.profile()
    place.job("counts", spark={"spark.sql.ansi.enabled": "false"})
    done = deploy_job(place.workspace, "counts", by=BY)
    assert done.effect is Effect.SAVEPOINT
    (made,) = catalog.savepoints(place.workspace, "counts")
    assert made.manifest.origin is Origin.PRE_ROLLOUT and made.manifest.partitions == 2
    rows([3, 4])
    batch(place, "counts", made.manifest.batch + 1)
    assert observe(place.workspace, "counts").incarnation == done.incarnation
    assert {row["key"]: row["rows"] for row in place.rows("counts")} == {1: 2, 2: 2, 3: 2, 4: 1}
