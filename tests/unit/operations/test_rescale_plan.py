"""What stands against a rescale, on checkpoints and documents that are made: without a driver and without Spark."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation, OperationState
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef, Desired, DriverState, Exit, Parallelism
from streamwarden.operations import rescale_plan
from streamwarden.operations.rescale import rescale
from streamwarden.operations.rescale_plan import plan_rescale
from streamwarden.runtime.operation_lock import begin
from streamwarden.storage import LocalFiles
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.unit.formats.test_checkpoint_files import CHECKPOINT, Made
from tests.unit.operations.test_spec_diff import JOB, ROCKSDB, deployed, driver, spec, write

pytestmark = pytest.mark.unit

MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
SPARK = version("pyspark")
PARTITIONS = 4
STATE_FILES = 2 * PARTITIONS
"""A byte each."""


class Place:
    """A job that runs, with the state of two batches."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "config"
        (self.config / "profiles").mkdir(parents=True)
        (self.config / "jobs").mkdir()
        (self.config / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
        write(self.config)
        self.workspace: Workspace = open_workspace("test", config=self.config)
        self.documents = JobDocuments(self.workspace.storage, JOB)
        self.made = Made(self.workspace.root)
        self.state()
        reference = CheckpointRef(job=JOB, generation=1, path=CHECKPOINT, since=utc_now(), reason="")
        self.documents.checkpoint.write(reference)
        deployed(self.workspace, spec())
        driver(self.workspace, spec(), digest=spec().digest())
        self.says()

    def state(self, *, provider: str = ROCKSDB, **operator: Any) -> None:
        conf = {
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.streaming.stateStore.providerClass": provider,
        }
        for batch in range(2):
            self.made.batch(batch, conf=conf)
        self.made.operator(partitions=PARTITIONS, **operator)
        for partition in range(PARTITIONS):
            self.made.changes(f"state/0/{partition}", range(1, 3))

    def says(self, **values: Any) -> None:
        heartbeat = self.documents.heartbeat("i1").read()
        assert heartbeat is not None
        versions = {"spark": SPARK}
        self.documents.heartbeat("i1").write(heartbeat.model_copy(update={"versions": versions, **values}))

    def free(self, monkeypatch: pytest.MonkeyPatch, root: int | None, scratch: int) -> None:
        def free_bytes(files: LocalFiles) -> int | None:
            return scratch if files.root == self.workspace.scratch else root

        monkeypatch.setattr(LocalFiles, "free_bytes", free_bytes)
        # Two disks.
        monkeypatch.setattr(LocalFiles, "device", lambda files: int(files.root == self.workspace.scratch))

    def refused(self, *, partitions: int | None = 8, cores: int | None = None) -> str:
        with pytest.raises(StreamwardenError) as raised:
            plan_rescale(self.workspace, JOB, partitions=partitions, cores=cores)
        return f"{raised.value.code}: {raised.value.what}"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_can_be_done_is_told_with_what_it_moves(place: Place) -> None:
    found = plan_rescale(place.workspace, JOB, partitions=8, cores=2)
    assert (found.was.partitions, found.to.partitions, found.to.cores) == (PARTITIONS, 8, 2)
    assert found.repartitions and found.words == "partitions 4 -> 8, cores 1 -> 2"
    assert [one.name for one in found.operators] == ["stateStoreSave"] and found.bytes >= STATE_FILES


def test_executors_are_changed_with_the_cores_that_they_share(place: Place) -> None:
    found = plan_rescale(place.workspace, JOB, cores=4, executors=2)
    assert found.words == "cores 1 -> 4, executors any -> 2" and not found.repartitions
    with pytest.raises(StreamwardenError, match=r"RESCALE_INVALID.*resources: 3 cores can't be shared evenly"):
        plan_rescale(place.workspace, JOB, cores=3, executors=2)


def test_a_job_that_was_never_deployed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(StreamwardenError, match="NOT_DEPLOYED"):
        plan_rescale(place.workspace, "another", partitions=8)


@pytest.mark.parametrize("asked", [{"partitions": PARTITIONS}, {"partitions": None}])
def test_nothing_to_change(place: Place, asked: dict[str, Any]) -> None:
    assert place.refused(**asked) == "RESCALE_NOTHING: job has partitions 4, cores 1, memory 1g already"


def test_what_the_spec_does_not_allow(place: Place) -> None:
    assert place.refused(partitions=0).startswith("RESCALE_INVALID: job: state.partitions")


def test_another_operation_is_named_and_ones_own_is_not_asked_about(place: Place) -> None:
    with begin(place.workspace, JOB, "restore", by="somebody", params={}) as first, first.step("stop"):
        said = place.refused()
        assert said.startswith(f"OPERATION_RUNNING: job: restore {first.id} by somebody") and "at stop" in said
        plan_rescale(place.workspace, JOB, partitions=8, operation=first.id)
        asked = ["rescale", JOB, "-n", "8", "--dry-run", "--profile", "test"]
        answer = CliRunner().invoke(app, asked, env={"STREAMWARDEN_CONFIG": str(place.config)})
        assert answer.exit_code == 2 and first.id in answer.output
    # Let go and not ended: another rescale would take its place.
    plan_rescale(place.workspace, JOB, partitions=8)


def test_a_yaml_that_waits_to_be_rolled_out(place: Place) -> None:
    write(place.config, watermark="3h")
    assert place.refused().startswith("RESCALE_NOT_HEALTHY: job: its YAML has changed")


def test_a_parallelism_that_waits_to_be_rolled_out_would_be_lost(place: Place) -> None:
    write(place.config, resources={"cores": 4, "memory": "1g"})
    assert place.refused().startswith("RESCALE_NOT_HEALTHY: job: its YAML has changed")
    # What is asked for replaces it, whatever it is.
    assert plan_rescale(place.workspace, JOB, cores=2).words == "cores 1 -> 2"
    assert plan_rescale(place.workspace, JOB, partitions=8, cores=4).words == "partitions 4 -> 8, cores 1 -> 4"


def test_code_that_waits_to_be_rolled_out_does_not_come_with_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (tmp_path / "modules" / "tests_rollout_job.py").write_text("VERSION = 3\n")
    place.says(versions={"spark": SPARK, "job": "2"})
    for asked in ({"partitions": 8}, {"partitions": None, "cores": 2}):
        said = place.refused(**asked)
        assert said == "RESCALE_NOT_HEALTHY: job: tests_rollout_job is version 3, and 2 wrote the state"
    place.says(versions={"spark": SPARK, "job": "3"})
    assert plan_rescale(place.workspace, JOB, partitions=8).repartitions


def test_a_driver_that_died(place: Place) -> None:
    failed = Exit(incarnation="i1", at=utc_now(), outcome="failed")
    place.documents.exit("i1").write(failed)
    assert place.refused().startswith("RESCALE_NOT_HEALTHY: job is failed")
    # Cores too: a new driver's health could not be told from what it came from.
    assert place.refused(partitions=None, cores=2).startswith("RESCALE_NOT_HEALTHY")


def test_one_that_was_stopped_has_nothing_to_be_healthy_with(place: Place) -> None:
    place.documents.exit("i1").write(Exit(incarnation="i1", at=utc_now(), outcome="stopped"))
    desired = place.documents.desired.read()
    assert isinstance(desired, Desired)
    place.documents.desired.write(desired.model_copy(update={"state": "suspended"}))
    assert plan_rescale(place.workspace, JOB, partitions=8).repartitions


def test_a_batch_that_fails(place: Place) -> None:
    place.says(failures=3, state=DriverState.RETRYING)
    assert place.refused().startswith("RESCALE_NOT_HEALTHY: job: 3 failed tries")


def test_state_that_another_spark_wrote(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.says(versions={"spark": "4.1.9"})
    assert place.refused() == f"RESCALE_UNSUPPORTED: job: Spark 4.1.9 wrote the checkpoint, this is {SPARK}"
    place.says()
    monkeypatch.setattr(rescale_plan, "spark_version", lambda: "4.3.0")
    assert place.refused() == "RESCALE_UNSUPPORTED: job: Spark 4.3.0, tested with 4.2"
    # That is about moving state.
    assert not plan_rescale(place.workspace, JOB, cores=2).repartitions


def test_another_state_backend(place: Place) -> None:
    place.state(provider=MEMORY)
    assert place.refused() == "RESCALE_UNSUPPORTED: job: its state backend is not rocksdb"


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        ({"name": "streamingLimit"}, "operator 0 is streamingLimit"),
        ({"name": "symmetricHashJoin"}, "operator 0 is a join with state of format 3"),
    ],
)
def test_an_operator_that_spark_can_not_repartition(place: Place, operator: dict[str, Any], said: str) -> None:
    place.state(**operator)
    assert place.refused() == f"RESCALE_UNSUPPORTED: job: {said}"


def test_no_state_and_no_batch(place: Place) -> None:
    place.workspace.files.delete_tree(f"{CHECKPOINT}/state")
    assert place.refused() == "RESCALE_UNSUPPORTED: job: partitions are of state, and it has no state"
    place.workspace.files.delete_tree(f"{CHECKPOINT}/offsets")
    assert "it has committed no batch yet" in place.refused()
    assert plan_rescale(place.workspace, JOB, cores=2).to == Parallelism(partitions=4, cores=2, memory="1g")


def test_no_space_for_a_copy(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    size = plan_rescale(place.workspace, JOB, partitions=8).bytes
    place.free(monkeypatch, 2 * size - 1, 10 * size)
    what = f"{2 * size - 1} bytes are free where checkpoints are kept, and 2 times {size} are needed"
    assert place.refused() == f"RESCALE_NO_SPACE: job: {what}"
    place.free(monkeypatch, 2 * size, 2 * size)
    assert plan_rescale(place.workspace, JOB, partitions=8).bytes == size


def test_one_disk_holds_both(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    size = plan_rescale(place.workspace, JOB, partitions=8).bytes
    monkeypatch.setattr(LocalFiles, "free_bytes", lambda _: 4 * size - 1)
    assert "which is one disk, and 4 times" in place.refused()
    monkeypatch.setattr(LocalFiles, "free_bytes", lambda _: 4 * size)
    assert plan_rescale(place.workspace, JOB, partitions=8).bytes == size


def test_no_space_where_the_drivers_work_on_it_wherever_it_is_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = plan_rescale(place.workspace, JOB, partitions=8).bytes
    # As a bucket says.
    place.free(monkeypatch, None, 2 * size - 1)
    said = place.refused()
    assert said.startswith("RESCALE_NO_SPACE") and str(place.workspace.scratch) in said
    assert not plan_rescale(place.workspace, JOB, cores=2).repartitions


def test_a_resumed_rescale_has_the_timeouts_that_it_was_given(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StreamwardenError, match="RESCALE_NOTHING"):
        rescale(place.workspace, JOB, partitions=PARTITIONS, by="somebody", stop_timeout=11, health_timeout=900)
    operation = place.documents.operation.read()
    assert operation is not None
    # As a process that was killed leaves it.
    changes = {"state": OperationState.RUNNING, "process": None, "ended_at": None, "error": None}
    left = operation.model_copy(update=changes)
    place.documents.operation.write(left)
    called: dict[str, Any] = {}

    def noted(*_: Any, **values: Any) -> Operation:
        called.update(values)
        return left

    monkeypatch.setattr("streamwarden.cli.rescale.run_rescale", noted)
    for asked, health in (([], 900), (["--health-timeout", "7"], 7)):
        command = ["rescale", JOB, "--resume", "--profile", "test", "--json", *asked]
        answer = CliRunner().invoke(app, command, env={"STREAMWARDEN_CONFIG": str(place.config)})
        assert answer.exit_code == 0, answer.output
        assert (called["stop_timeout"], called["health_timeout"]) == (11, health)
        assert (called["by"], called["partitions"]) == ("somebody", PARTITIONS)
    # They are no part of what was asked for: whoever is more patient goes on with the same one.
    with begin(place.workspace, JOB, "rescale", by="somebody", params=left.params) as handle:
        assert handle.id == left.id
