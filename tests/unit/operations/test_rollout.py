"""Rollouts, with drivers that are processes without Spark (tests/airflow/standin_driver.py)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, Transaction, write_deltalake
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import application_id
from streamwarden.model.operation import Operation
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.savepoint import Origin
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import (
    CheckpointRef,
    Desired,
    DriverState,
    Exit,
    Heartbeat,
    Launch,
    OutputStart,
    Parallelism,
)
from streamwarden.model.supervision import Supervision
from streamwarden.operations import rollout, spec_diff, workflow
from streamwarden.operations.deploy import Deployment, deploy_job
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.spec_diff import Change
from streamwarden.runtime.operation_lock import active_operation, begin
from streamwarden.runtime.processes import current_process, kill
from streamwarden.savepoints import catalog
from streamwarden.store import effective_spec
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.observe import Observation, Phase, observe

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).resolve().parents[3]
CI = [pytest.mark.long, pytest.mark.ci]
JOB = "lamp"
BY = "test"


class Place:
    """A configuration, a root, and the job ``lamp`` there."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "config"
        (self.config / "jobs").mkdir(parents=True)
        (self.config / "profiles").mkdir()
        profile = {"name": "test", "root": "root", "heartbeat": "300ms", "lease": "30s"}
        (self.config / "profiles" / "test.yaml").write_text(yaml.safe_dump(profile))
        self.write()
        self.workspace: Workspace = open_workspace("test", config=self.config)
        self.documents = JobDocuments(self.workspace.storage, JOB)

    def write(self, *, options: dict[str, Any] | None = None, **fields: Any) -> None:
        spec = {
            "name": JOB,
            "module": "spark_jobs.none",
            "source": {"kind": "files", "path": "landing"},
            "sinks": [{"table": JOB, "mode": "append"}],
            "options": options or {},
            **fields,
        }
        (self.config / "jobs" / f"{JOB}.yaml").write_text(yaml.safe_dump(spec))

    def deploy(self, *, by: str = BY, health_timeout: float = 60) -> Deployment:
        return deploy_job(self.workspace, JOB, by=by, health_timeout=health_timeout)

    def runs(self, *, batches: int = 1) -> Observation:
        """Deploy, and wait for some batches."""
        self.deploy()
        return self.until(lambda seen: bool(seen.heartbeat and (seen.heartbeat.batch or 0) >= batches))

    def until(self, condition: Callable[[Observation], bool]) -> Observation:
        return driver_control.wait_for(self.workspace, JOB, condition, timeout=120, what="the test", poll=0.05)

    def seen(self) -> Observation:
        return observe(self.workspace, JOB)

    @property
    def operation(self) -> Operation:
        found = self.documents.operation.read()
        assert found is not None
        return found

    @property
    def reference(self) -> CheckpointRef:
        found = self.documents.checkpoint.read()
        assert found is not None
        return found

    @property
    def desired(self) -> Desired:
        found = self.documents.desired.read()
        assert found is not None
        return found

    @property
    def steps(self) -> list[str]:
        return [step.name for step in self.operation.steps]

    def goes_on(self) -> Observation:
        """Wait until a batch is committed that wasn't yet."""
        last = CheckpointReader(self.workspace.storage, self.reference.path).last_commit()
        before = -1 if last is None else last
        return self.until(
            lambda seen: seen.phase is Phase.RUNNING and bool(seen.heartbeat and (seen.heartbeat.batch or 0) > before)
        )

    def end(self) -> None:
        for incarnation in self.documents.incarnations():
            launch = self.documents.launch(incarnation).read()
            if launch is not None and launch.process is not None:
                kill(launch.process)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("STREAMWARDEN_DRIVER_MODULE", "tests.airflow.standin_driver")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "test")
    monkeypatch.delenv("STREAMWARDEN_ROOT", raising=False)
    made = Place(tmp_path)
    yield made
    made.end()


def test_a_live_change_leaves_the_driver_alone(place: Place) -> None:
    first = place.runs()
    place.write(description="new words", restarts={"max": 1, "backoff": "1ms"})
    done = place.deploy()
    assert (done.incarnation, done.launched, done.effect) == (first.incarnation, False, Effect.LIVE)
    assert {change.field for change in done.changes} == {"description", "restarts.max", "restarts.backoff"}
    assert place.desired.spec.description == "new words" and place.desired.digest == place.desired.spec.digest()
    assert place.documents.operation.read() is None
    memory = place.documents.supervision.read()
    assert memory is not None and memory.decisions[-1].what == "live change"
    # The driver still says the old digest; no later deploy takes that for another spec.
    again = place.deploy()
    assert (again.incarnation, again.launched, again.changes) == (first.incarnation, False, ())
    place.write(description="new words", restarts={"max": 1, "backoff": "1ms"}, trigger={"interval": "7s"})
    assert [change.field for change in place.deploy().changes] == ["trigger.interval"]
    assert place.seen().incarnation != first.incarnation


def test_what_a_driver_reads_at_its_start_restarts_it_on_its_checkpoint(place: Place) -> None:
    first = place.runs()
    place.write(trigger={"interval": "7s"})
    done = place.deploy()
    assert done.launched and done.effect is Effect.RESTART and done.operation == place.operation.id
    assert place.operation.state == "done" and place.operation.kind == "rollout"
    assert place.steps == ["precheck", "stop", "switch", "start", "wait for health"]
    seen = place.goes_on()
    assert seen.incarnation == done.incarnation != first.incarnation
    assert place.reference.generation == 1 and place.desired.spec.trigger.interval.total_seconds() == 7
    assert catalog.savepoints(place.workspace, JOB) == []
    assert active_operation(place.workspace, JOB) is None


def test_a_change_of_meaning_takes_a_savepoint_of_where_the_old_spec_ended(place: Place) -> None:
    place.runs()
    place.write(options={"size": 2})
    done = place.deploy()
    assert done.effect is Effect.SAVEPOINT and place.operation.state == "done"
    assert place.steps == ["precheck", "stop", "pre-rollout savepoint", "switch", "start", "wait for health"]
    (made,) = catalog.savepoints(place.workspace, JOB)
    assert made.manifest.origin is Origin.PRE_ROLLOUT and made.manifest.spec.options == {}
    assert made.manifest.batch == place.operation.plan.base and made.record.in_use_by == []
    assert place.goes_on().heartbeat.generation == 1  # type: ignore[union-attr]


def test_a_refused_change_touches_nothing(place: Place) -> None:
    first = place.runs()
    before = place.desired
    place.write(source={"kind": "files", "path": "elsewhere"}, description="also this")
    with pytest.raises(StreamwardenError, match="ROLLOUT_REFUSED") as raised:
        place.deploy()
    assert "source.path landing -> elsewhere" in raised.value.what and not raised.value.retryable
    assert place.desired == before and place.documents.operation.read() is None
    assert place.goes_on().incarnation == first.incarnation
    # Nor is a job started so that is down.
    driver_control.stop(place.workspace, JOB, by=BY)
    with pytest.raises(StreamwardenError, match="ROLLOUT_REFUSED"):
        place.deploy()
    assert place.seen().phase is Phase.STOPPED and place.desired.state == "suspended"


def test_a_job_that_is_down_is_started_without_an_operation(place: Place) -> None:
    first = place.runs()
    driver_control.stop(place.workspace, JOB, by=BY)
    place.write(options={"size": 2})
    done = place.deploy()
    assert done.launched and done.effect is Effect.SAVEPOINT and done.operation is None
    assert place.goes_on().incarnation == done.incarnation != first.incarnation
    assert place.documents.operation.read() is None and place.desired.spec.options == {"size": 2}


@pytest.mark.parametrize(
    "options, code",
    [({"standin_fail": "CONFIG_INVALID"}, "CONFIG_INVALID"), ({"standin_mute": 0}, "DRIVER_DID_NOT_START")],
    ids=["ends", "does nothing"],
)
def test_a_spec_that_never_begins_a_batch_leaves_nothing_behind(
    place: Place, options: dict[str, Any], code: str
) -> None:
    place.runs()
    before = place.desired
    place.write(options=options)
    with pytest.raises(StreamwardenError, match="ROLLOUT_UNHEALTHY") as raised:
        place.deploy(health_timeout=60 if code == "CONFIG_INVALID" else 2)
    assert code in raised.value.what and "began no batch" in raised.value.what and not raised.value.retryable
    assert place.operation.state == "rolled back" and place.steps[-1] == "roll back"
    assert place.operation.error is not None and place.operation.error.code == code
    assert (place.desired.spec, place.desired.digest, place.desired.state) == (before.spec, before.digest, "running")
    assert place.goes_on().heartbeat.batch > place.operation.plan.base  # type: ignore[operator, union-attr]
    assert place.reference.generation == 1
    (made,) = catalog.savepoints(place.workspace, JOB)
    assert made.record.in_use_by == []
    memory = place.documents.supervision.read()
    assert memory is not None and memory.decisions[-1].what == "roll back" and code in memory.decisions[-1].why


def test_a_driver_that_ended_before_it_knew_its_generation_is_not_waited_for(place: Place) -> None:
    """It reads the generation after its first heartbeat. In between it may refuse an order."""
    # Nobody's: the fixture kills what was launched.
    now, process = utc_now(), current_process().model_copy(update={"started": 1.0})
    error = ErrorInfo.of(StreamwardenError("CONFIG_INVALID", "slwo: unknown key"))
    spec = place.workspace.job(JOB)
    place.documents.desired.write(
        Desired(
            job=JOB, state="running", spec=spec, digest=spec.digest(), profile="test", updated_at=now, updated_by=BY
        )
    )
    place.documents.launch("i1").write(Launch(incarnation="i1", at=now, by=BY, reason="", digest="d", process=process))
    place.documents.heartbeat("i1").write(
        Heartbeat(incarnation="i1", at=now, started_at=now, state=DriverState.STARTING, process=process)
    )
    place.documents.exit("i1").write(Exit(incarnation="i1", at=now, outcome="failed", error=error))
    with pytest.raises(StreamwardenError, match="CONFIG_INVALID"):
        driver_control.await_health(place.workspace, JOB, generation=3, base=None, timeout=5)


def unhealthy_after_a_batch(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, then: Callable[[int], None] = lambda _: None
) -> None:
    """A job of which the health is lost in the moment after its first batches."""
    real = driver_control.await_health

    def wait(*arguments: Any, base: int | None, **rest: Any) -> str:
        real(*arguments, base=(base or 0) + 2, **rest)
        then(base or 0)
        raise StreamwardenError("DRIVER_DIED", "for the test")

    monkeypatch.setattr(driver_control, "await_health", wait)


def test_a_column_of_a_module_that_was_edited_is_rolled_out_and_the_way_back_says_what_it_lacks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else differs: the spec names the module, and does not hold it."""
    first = place.runs()
    added = Change("sinks.lamp.columns.z", None, "bigint", Effect.SAVEPOINT, "for the test")
    monkeypatch.setattr(spec_diff, "_with_tables", lambda workspace, found, *_, **__: (*found, added))
    done = place.deploy()
    assert (done.effect, done.changes) == (Effect.SAVEPOINT, (added,)) and done.incarnation != first.incarnation
    assert "sinks.lamp.columns.z" in place.operation.steps[0].detail and not place.desired.went_back
    unhealthy_after_a_batch(place, monkeypatch)
    with pytest.raises(StreamwardenError, match="ROLLOUT_UNHEALTHY") as raised:
        place.deploy()
    assert "Its module spark_jobs.none is still as it was edited: restore the earlier one" in raised.value.what
    assert place.desired.went_back and place.goes_on().desired == place.desired


def test_batches_under_another_meaning_are_undone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.runs()
    place.write(options={"size": 2})
    unhealthy_after_a_batch(place, monkeypatch)
    with pytest.raises(StreamwardenError, match="ROLLOUT_UNHEALTHY") as raised:
        place.deploy()
    base = place.operation.plan.base
    (made,) = catalog.savepoints(place.workspace, JOB)
    assert f"from savepoint {made.manifest.id} after batch {base}" in raised.value.what
    assert (place.reference.generation, place.reference.path) == (2, "checkpoints/lamp/g000002")
    assert (place.reference.savepoint, place.reference.base_batch) == (made.manifest.id, base)
    assert place.desired.spec.options == {}
    seen = place.until(lambda now: bool(now.heartbeat and now.heartbeat.generation == 2))
    assert seen.phase is Phase.RUNNING
    old = CheckpointReader(place.workspace.storage, "checkpoints/lamp/g000001")
    assert old.last_commit() is not None and old.last_commit() > base  # type: ignore[operator]


def test_batches_that_mean_the_same_stay(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.runs()
    place.write(trigger={"interval": "7s"})
    unhealthy_after_a_batch(place, monkeypatch)
    with pytest.raises(StreamwardenError, match="does not affect results"):
        place.deploy()
    assert place.reference.generation == 1 and place.desired.spec.trigger.interval.total_seconds() == 60
    assert place.goes_on().heartbeat.batch > place.operation.plan.base + 2  # type: ignore[operator, union-attr]


def test_a_first_batch_of_another_source_is_not_for_the_old_spec(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first batch a source may be another one; what was read of that must not stand for the old one's."""
    place.write(options={"standin_mute": 0})
    place.deploy()
    place.until(lambda seen: seen.phase is Phase.RUNNING)
    place.write(source={"kind": "files", "path": "elsewhere"})
    unhealthy_after_a_batch(place, monkeypatch)
    with pytest.raises(StreamwardenError, match=r"(?s)ROLLOUT_UNHEALTHY.*begins anew"):
        place.deploy()
    assert place.desired.spec.source.path == "landing"  # type: ignore[union-attr]
    assert (place.reference.generation, place.reference.base_batch) == (2, None)


def test_a_deploy_repeated_while_the_driver_stops_is_a_rollout_again(place: Place, tmp_path: Path) -> None:
    gate = tmp_path / "stops.gate"
    place.write(options={"standin_stop_gate": str(gate)})
    place.runs()
    place.write(options={"size": 2})
    with pytest.raises(StreamwardenError, match="STOP_TIMED_OUT"):
        deploy_job(place.workspace, JOB, by=BY, stop_timeout=0.5)
    assert place.operation.state == "failed" and place.seen().phase is Phase.STOPPING
    opens = threading.Timer(1, gate.touch)
    opens.start()
    done = place.deploy()
    assert done.operation == place.operation.id and place.operation.state == "done"
    assert "pre-rollout savepoint" in place.steps and place.desired.spec.options == {"size": 2}
    opens.join()


@pytest.mark.parametrize(
    "sink, read, generation, put_back, words",
    [
        ({"mode": "append"}, False, 2, [(JOB, 0)], "lamp put back"),
        ({"mode": "append"}, True, 1, [], "lamp can't be put back under readers"),
        ({"mode": "upsert", "keys": ["k"]}, True, 2, [], "from savepoint"),
        pytest.param({"mode": "upsert", "keys": ["k"]}, False, 2, [(JOB, 0)], "lamp put back", marks=CI),
        ({"mode": "upsert", "keys": ["k"], "on_restore": "leave"}, False, 2, [], "from savepoint"),
    ],
    ids=["no keys", "no keys, read", "keys, read", "keys", "to be left"],
)
def test_tables_that_the_new_spec_wrote_are_put_back_where_nobody_reads_them(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    sink: dict[str, Any],
    read: bool,
    generation: int,
    put_back: list[tuple[str, int]],
    words: str,
) -> None:
    sinks = [{"table": JOB, **sink}]
    # There is no module that could say what it has.
    monkeypatch.setattr(spec_diff, "compared_columns", lambda *_, **__: [])

    def write(batch: int) -> None:
        uri, options = place.workspace.delta_rs(JOB)
        done = CommitProperties(app_transactions=[Transaction(application_id(JOB, 1), batch)])
        rows = pa.table({"batch": [batch]})
        write_deltalake(uri, rows, mode="append", storage_options=options, commit_properties=done)

    place.write(sinks=sinks)
    place.runs()
    write(0)
    place.write(sinks=sinks, options={"size": 2})
    if read:
        source = {"kind": "delta", "table": JOB}
        spec = JobSpec.model_validate(
            {"name": "reader", "module": "m", "source": source, "sinks": [{"table": "r", "mode": "append"}]}
        )
        JobDocuments(place.workspace.storage, "reader").desired.write(
            place.desired.model_copy(update={"job": "reader", "spec": spec})
        )
    unhealthy_after_a_batch(place, monkeypatch, then=lambda base: write(base + 1))
    with pytest.raises(StreamwardenError, match="ROLLOUT_UNHEALTHY") as raised:
        place.deploy()
    assert words in raised.value.what
    assert place.reference.generation == generation and place.desired.spec.options == {}
    assert [(one.table, one.version) for one in place.reference.outputs] == put_back
    seen = place.until(lambda now: bool(now.heartbeat and now.heartbeat.generation == generation))
    assert seen.phase.alive


# -- interrupted -------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As SIGKILL would: nothing is tidied up."""


def test_tables_that_are_still_to_be_put_back_are_so_after_a_way_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place.write(options={"standin_mute": 2})
    place.runs()
    # As after a restore, if the driver had died within a batch.
    pending = [OutputStart(table=JOB, version=7)]
    place.documents.checkpoint.write(place.reference.model_copy(update={"outputs": pending}))
    place.workspace.files.write(f"{place.reference.path}/offsets/2", b'v1\n{"conf":{}}\n-')
    place.write(options={"standin_mute": 2, "standin_gate": str(tmp_path / "gate")})

    def unhealthy(*_: Any, **__: Any) -> str:
        raise StreamwardenError("DRIVER_DIED", "for the test")

    monkeypatch.setattr(driver_control, "await_health", unhealthy)
    with pytest.raises(StreamwardenError, match=r"ROLLOUT_UNHEALTHY(?s:.)*the new spec began no batch"):
        place.deploy()
    assert (place.reference.generation, place.reference.outputs) == (1, pending)


def test_a_clone_that_never_started_is_not_changed_without_a_way_back(place: Place) -> None:
    place.runs()
    pending = [OutputStart(table=JOB, version=7, source="another")]
    place.documents.checkpoint.write(place.reference.model_copy(update={"outputs": pending}))
    place.write(options={"size": 2})
    with pytest.raises(StreamwardenError, match=r"SAVEPOINT_NOTHING.*not in place"):
        place.deploy()
    assert place.operation.state == "failed" and place.desired.spec.options == {}
    assert place.goes_on() and place.reference.outputs == pending


def killed_at(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, *, after: bool) -> None:
    real = getattr(target, name)

    def cut(*arguments: Any, **rest: Any) -> Any:
        monkeypatch.setattr(target, name, real)
        if after:
            real(*arguments, **rest)
        raise Killed

    monkeypatch.setattr(target, name, cut)


POINTS = [
    (driver_control, "stop_in_turn", False),
    (driver_control, "stop_in_turn", True),
    (workflow, "take", True),
    (rollout._Rollout, "_switch", False),
    (rollout._Rollout, "_switch", True),
    (driver_control, "start", True),
    (driver_control, "await_health", True),
]
IDS = [f"{'after' if after else 'before'} {name}" for _, name, after in POINTS]


@pytest.mark.parametrize("target, name, after", POINTS, ids=IDS)
def test_a_killed_rollout_is_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, after: bool
) -> None:
    place.runs()
    place.write(options={"size": 2})
    killed_at(monkeypatch, target, name, after=after)
    with pytest.raises(Killed):
        place.deploy()
    left = place.operation
    assert left.state == "running" and active_operation(place.workspace, JOB) is None
    seen = place.seen()
    if not seen.phase.alive:
        # A supervisor starts what is in force.
        assert decide(seen, Supervision()).action is Action.RESTART
    done = place.deploy()
    assert place.operation.id == left.id == done.operation and place.operation.state == "done"
    assert place.desired.spec.options == {"size": 2}
    assert place.goes_on().incarnation == done.incarnation
    assert place.reference.generation == 1
    assert all(one.record.in_use_by == [] for one in catalog.savepoints(place.workspace, JOB))


@pytest.mark.parametrize("target, name, after", [POINTS[1], POINTS[5]], ids=[IDS[1], IDS[5]])
def test_a_killed_rollout_is_settled_by_another_deploy(
    place: Place, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, after: bool
) -> None:
    place.runs()
    place.write(options={"standin_fail": "CONFIG_INVALID"})
    killed_at(monkeypatch, target, name, after=after)
    with pytest.raises(Killed):
        place.deploy()
    left = place.operation
    place.write(options={"size": 3})
    done = place.deploy(by="somebody else")
    assert done.operation is not None and done.operation == place.operation.id != left.id
    assert place.operation.state == "done" and place.operation.plan.before.desired.spec.options == {}
    settled = place.documents.past_operation(left.id).read()
    assert settled is not None and settled.state == ("failed" if name == "stop_in_turn" else "rolled back")
    assert place.desired.spec.options == {"size": 3} and place.goes_on().incarnation == done.incarnation


def test_a_killed_rollout_whose_change_is_taken_back_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.runs()
    place.write(options={"size": 2})
    killed_at(monkeypatch, driver_control, "stop_in_turn", after=False)
    with pytest.raises(Killed):
        place.deploy()
    left = place.operation
    place.write()
    assert not place.deploy().launched
    assert (place.operation.id, place.operation.state) == (left.id, "failed")


@pytest.mark.parametrize(
    "target, name, after",
    [
        pytest.param(driver_control, "end_driver", False, marks=CI),
        (rollout, "fresh_checkpoint", True),
        (rollout._Rollout, "_state_before", True),
        pytest.param(driver_control, "start", False, marks=CI),
        (workflow, "record_decision", False),
    ],
)
def test_a_killed_way_back_is_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, after: bool
) -> None:
    place.runs()
    place.write(options={"size": 2})
    unhealthy_after_a_batch(place, monkeypatch)
    if name == "start":
        # The second one: the first starts the new spec.
        real = driver_control.start

        def first(*arguments: Any, **rest: Any) -> str:
            killed_at(monkeypatch, driver_control, "start", after=False)
            return real(*arguments, **rest)

        monkeypatch.setattr(driver_control, "start", first)
    else:
        killed_at(monkeypatch, target, name, after=after)
    with pytest.raises(Killed):
        place.deploy()
    left = place.operation
    assert left.state == "running" and left.plan.failure.code == "DRIVER_DIED"
    monkeypatch.setattr(driver_control, "start", real) if name == "start" else None
    with pytest.raises(StreamwardenError, match="ROLLOUT_UNHEALTHY"):
        place.deploy()
    assert (place.operation.id, place.operation.state) == (left.id, "rolled back")
    assert place.desired.spec.options == {} and place.reference.base_batch == place.operation.plan.base
    seen = place.goes_on()
    assert seen.heartbeat is not None and seen.heartbeat.generation == place.reference.generation >= 2


def test_a_failure_before_the_switch_leaves_the_old_spec_running(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = place.runs()
    place.write(options={"size": 2})

    def outrun(*_: Any, **__: Any) -> None:
        raise StreamwardenError("SAVEPOINT_OUTRUN", "for the test")

    monkeypatch.setattr(workflow, "take", outrun)
    with pytest.raises(StreamwardenError, match="SAVEPOINT_OUTRUN"):
        place.deploy()
    assert place.operation.state == "failed" and place.desired.spec.options == {}
    assert place.goes_on().incarnation != first.incarnation


def test_a_first_batch_that_was_begun_meanwhile_is_heeded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write(options={"standin_mute": 0})
    place.deploy()
    place.until(lambda seen: seen.phase is Phase.RUNNING)
    place.write(options={"standin_mute": 0}, source={"kind": "files", "path": "elsewhere"})
    real = driver_control.stop_in_turn

    def stop(*arguments: Any, **rest: Any) -> str:
        done = real(*arguments, **rest)
        place.workspace.files.write(f"{place.reference.path}/offsets/0", b'v1\n{"conf":{}}\n-')
        return done

    monkeypatch.setattr(driver_control, "stop_in_turn", stop)
    with pytest.raises(StreamwardenError, match="ROLLOUT_REFUSED"):
        place.deploy()
    assert place.operation.state == "failed" and place.desired.spec.source.path == "landing"  # type: ignore[union-attr]
    assert place.until(lambda seen: seen.phase is Phase.RUNNING).desired == place.desired


def test_another_operation_is_not_disturbed(place: Place) -> None:
    first = place.runs()
    place.write(options={"size": 2})
    with (
        begin(place.workspace, JOB, "restore", by="somebody", params={}) as handle,
        pytest.raises(StreamwardenError, match=f"OPERATION_RUNNING.*{handle.id}"),
    ):
        place.deploy()
    assert place.goes_on().incarnation == first.incarnation


# -- the command line --------------------------------------------------------------------------------------------------


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


def test_diff_shows_what_a_deploy_would_do(place: Place) -> None:
    assert "never deployed" in run("diff", JOB)
    # As wide as a rescale has made it, and not as the YAML says: no difference.
    place.documents.parallelism.write(
        effective_spec.decide(place.workspace, JOB, Parallelism(partitions=8, cores=2, memory="1g"), by=BY)
    )
    place.runs()
    assert "none: a deploy changes nothing" in run("diff", JOB)
    assert json.loads(run("status", JOB, "--json"))["changed"] == []
    place.write(trigger={"interval": "7s"}, options={"colours": ["[red]"]})
    said = run("diff", JOB)
    for word in ("trigger.interval", "1m", "7s", "options.colours", '["[red]"]', "savepoint + restart"):
        assert word in said, word
    found = json.loads(run("diff", JOB, "--json"))
    assert found["effect"] == "savepoint + restart" and found["running"] and found["deployed"]
    assert {one["field"]: one["effect"] for one in found["changes"]} == {
        "trigger.interval": "restart",
        "options.colours": "savepoint + restart",
    }
    assert f"its YAML differs in trigger.interval, options.colours; see `streamwarden diff {JOB}`" in run("status", JOB)
    done = json.loads(run("deploy", JOB, "--json"))
    assert done["effect"] == "savepoint + restart" and done["operation"] and len(done["changes"]) == 2
    assert "rollout" in run("operations", JOB)
    place.write(source={"kind": "files", "path": "elsewhere"}, options={"colours": ["[red]"]})
    said = run("diff", JOB, code=1)
    assert "refused" in said and "source.path" in said and "What to do: Set it back" in said
    assert json.loads(run("diff", JOB, "--json", code=1))["effect"] == "refused"
    assert "ROLLOUT_REFUSED" in run("deploy", JOB, code=2)
    place.write(trigger={"interval": "9s"})
    driver_control.stop(place.workspace, JOB, by=BY)
    assert "it is down; a deploy starts it" in run("diff", JOB)
    (place.config / "jobs" / f"{JOB}.yaml").write_text("name: lamp")
    assert "CONFIG_INVALID" in run("diff", JOB, code=2)
    assert json.loads(run("status", "--json"))[0]["changed"] is None
