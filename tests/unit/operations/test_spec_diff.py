"""What a changed YAML means for a job, without one that runs."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args, get_origin

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from pydantic import BaseModel

from streamwarden.errors import StreamwardenError
from streamwarden.formats import column_changes
from streamwarden.formats.output_columns import RECORD
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, Desired, DriverState, Exit, Heartbeat, Launch
from streamwarden.operations.field_effects import FIELD_EFFECTS, Effect, effect_of, strongest
from streamwarden.operations.spec_diff import (
    Change,
    CheckpointFacts,
    RolloutPlan,
    changed_fields,
    changes_between,
    plan,
)
from streamwarden.runtime.processes import current_process
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.batches import made_desired

pytestmark = pytest.mark.unit

JOB = "job"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

FIELDS: dict[str, Any] = {
    "name": JOB,
    "module": "tests_rollout_job",
    "source": {"kind": "delta", "table": "trips"},
    "sinks": [{"table": "a", "mode": "append"}, {"table": "b", "mode": "upsert", "keys": ["k"], "output": "other"}],
    "state": {"partitions": 4},
    "watermark": "1h",
    "options": {"size": 1, "deep": {"x": 1}},
    "spark": {"spark.eventLog.enabled": "false"},
}


TOPIC = {"kind": "kafka", "topic": "my.alerts", "bootstrap_servers": "one:9092", "keys": ["k"]}
PAYMENTS = {"kind": "kafka", "topic": "payments", "bootstrap_servers": "one:9092"}


def spec(**values: Any) -> JobSpec:
    return JobSpec.model_validate({**FIELDS, **values})


def sinks(**second: Any) -> list[dict[str, Any]]:
    return [FIELDS["sinks"][0], {**FIELDS["sinks"][1], **second}]


def with_state(**values: Any) -> CheckpointFacts:
    settings = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
    return CheckpointFacts(**{"spec": spec(), "settings": settings, "partitions": 4, **values})


STATELESS = CheckpointFacts(spec=spec())


# -- every field has a class -------------------------------------------------------------------------------------------


def leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        inner = list(models(info.annotation))
        for held in inner:
            yield from leaves(held, f"{path}{name}.")
        if not inner:
            yield f"{path}{name}"


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if get_origin(annotation) is typing.Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models(inner)


def test_every_field_of_the_spec_has_a_class() -> None:
    found = list(leaves(JobSpec))
    assert {"source.path", "source.table", "sinks.keys", "savepoints.keep.periodic.age"} <= set(found)
    for field in found:
        effect, why = effect_of(field)
        assert effect is not Effect.NONE and why, field
    with pytest.raises(KeyError):
        effect_of("colour")
    with pytest.raises(KeyError):
        effect_of("trigger.colour")


def test_no_class_is_of_a_field_that_is_gone() -> None:
    known = {*leaves(JobSpec), "sinks", *(field.split(".")[0] for field in leaves(JobSpec))}
    # To come: the limits of health rules. The others are compared as a whole.
    assert set(FIELD_EFFECTS) - known <= {
        "health",
        "sinks.serve",
        "sinks.reconcile",
        "sinks.row_rules",
        "source.value",
        "source.history",
    }


# -- what each change asks for -----------------------------------------------------------------------------------------

EFFECTS = [
    ({"description": "other"}, {"description": Effect.LIVE}),
    ({"restarts": {"max": 9}}, {"restarts.max": Effect.LIVE}),
    ({"savepoints": {"every": "5m"}}, {"savepoints.every": Effect.LIVE}),
    ({"savepoints": {"keep": {"manual": {"count": 2}}}}, {"savepoints.keep.manual.count": Effect.LIVE}),
    ({"sinks": sinks(on_restore="rewind")}, {"sinks.b.on_restore": Effect.LIVE}),
    ({"trigger": {"interval": "5s"}}, {"trigger.interval": Effect.RESTART}),
    ({"trigger": {"min_pause": "5s"}}, {"trigger.min_pause": Effect.RESTART}),
    ({"failures": {"backoff": "5s"}}, {"failures.backoff": Effect.RESTART}),
    (
        {"resources": {"memory": "2g", "cores": 2, "executors": 2}},
        {f"resources.{name}": Effect.RESTART for name in ("memory", "cores", "executors")},
    ),
    ({"state": {"partitions": 4, "min_batches_to_retain": 5}}, {"state.min_batches_to_retain": Effect.RESTART}),
    ({"state": {"partitions": 4, "changelog": False}}, {"state.changelog": Effect.RESTART}),
    ({"source": {**FIELDS["source"], "max_files_per_batch": 3}}, {"source.max_files_per_batch": Effect.RESTART}),
    ({"source": {**FIELDS["source"], "on_change": "skip"}}, {"source.on_change": Effect.RESTART}),
    ({"sinks": sinks(partition_by=["k"])}, {"sinks.b.partition_by": Effect.RESTART}),
    ({"sinks": FIELDS["sinks"][::-1]}, {"sinks": Effect.RESTART}),
    ({"spark": {"spark.eventLog.enabled": True}}, {"spark.spark.eventLog.enabled": Effect.RESTART}),
    (
        {"spark": {**FIELDS["spark"], "spark.sql.ansi.enabled": False}},
        {"spark.spark.sql.ansi.enabled": Effect.SAVEPOINT},
    ),
    ({"module": "another"}, {"module": Effect.SAVEPOINT}),
    ({"options": {"size": 2, "deep": {"x": 1}}}, {"options.size": Effect.SAVEPOINT}),
    ({"options": {"size": 1, "deep": {"x": 2}}}, {"options.deep": Effect.SAVEPOINT}),
    ({"options": {"size": 1, "deep": {"x": 1}, "more": None}}, {"options.more": Effect.SAVEPOINT}),
    ({"options": {"deep": {"x": 1}}}, {"options.size": Effect.SAVEPOINT}),
    ({"watermark": "2h"}, {"watermark": Effect.SAVEPOINT}),
    ({"watermark": None}, {"watermark": Effect.SAVEPOINT}),
    ({"state": {"partitions": 4, "ttl": "1d"}}, {"state.ttl": Effect.SAVEPOINT}),
    ({"sinks": sinks(keys=["k", "l"])}, {"sinks.b.keys": Effect.SAVEPOINT}),
    ({"sinks": sinks(mode="append")}, {"sinks.b.mode": Effect.SAVEPOINT}),
    ({"sinks": FIELDS["sinks"][:1]}, {"sinks.b": Effect.SAVEPOINT}),
    ({"sinks": [*FIELDS["sinks"], TOPIC]}, {"sinks.topic:my.alerts": Effect.SAVEPOINT}),
    ({"sinks": sinks(table="c")}, {"sinks.b": Effect.SAVEPOINT, "sinks.c": Effect.SAVEPOINT}),
    ({"state": {"partitions": 8}}, {"state.partitions": Effect.REFUSED}),
    ({"state": {"partitions": 4, "backend": "memory"}}, {"state.backend": Effect.REFUSED}),
    ({"source": {"kind": "delta", "table": "others"}}, {"source.table": Effect.REFUSED}),
    (
        {"source": {"kind": "files", "path": "landing"}},
        {
            "source.kind": Effect.REFUSED,
            "source.table": Effect.REFUSED,
            "source.path": Effect.REFUSED,
            "source.max_files_per_batch": Effect.RESTART,
            "source.max_batch_size": Effect.RESTART,
            "source.max_file_size": Effect.RESTART,
            "source.on_change": Effect.RESTART,
            "source.published": Effect.RESTART,
            "source.history": Effect.RESTART,
        },
    ),
]


@pytest.mark.parametrize("change, effects", EFFECTS, ids=[", ".join(effects) for _, effects in EFFECTS])
def test_a_change_asks_for(change: dict[str, Any], effects: dict[str, Effect]) -> None:
    found = changes_between(spec(), spec(**change), with_state())
    assert {one.field: one.effect for one in found} == effects
    assert all(one.why for one in found)
    assert all(bool(one.remedy) is (one.effect is Effect.REFUSED) for one in found)
    # And back again it is the same fields.
    assert {one.field for one in changes_between(spec(**change), spec(), None)} == set(effects)


def test_topics_are_added_but_not_left_out() -> None:
    one = spec(source=PAYMENTS)
    two = spec(source={**PAYMENTS, "topic": None, "topics": ["payments", "refunds"]})
    parsed = spec(source={**PAYMENTS, "value": {"format": "json", "columns": "a string"}})

    def effects(before: JobSpec, after: JobSpec) -> dict[str, Effect]:
        written = replace(with_state(), spec=before)
        return {change.field: change.effect for change in changes_between(before, after, written)}

    assert effects(one, two) == dict.fromkeys(("source.topic", "source.topics"), Effect.RESTART)
    assert effects(two, one) == dict.fromkeys(("source.topic", "source.topics"), Effect.REFUSED)
    assert effects(one, parsed) == {"source.value": Effect.SAVEPOINT}


def test_nothing_changed_asks_for_nothing() -> None:
    assert changes_between(spec(), spec(), with_state()) == ()
    # A default that is written out is no change.
    assert changed_fields(spec(), spec(trigger={"interval": "1m"}, resources={"cores": 1})) == []


def test_values_are_told_as_the_yaml_has_them() -> None:
    (found,) = changes_between(spec(), spec(trigger={"interval": timedelta(seconds=90)}), None)
    assert (found.before, found.after) == ("1m", "90s")
    (found,) = changes_between(spec(), spec(sinks=sinks(keys=["k", "l"])), None)
    assert (found.before, found.after) == (["k"], ["k", "l"])


def test_the_number_of_buckets_is_fixed_by_the_checkpoint_alone() -> None:
    was, now = (spec(state={"partitions": 4, "buckets": buckets}) for buckets in (32, 64))
    (found,) = changes_between(was, now, with_state(spec=was))
    assert (found.field, found.before, found.after, found.effect) == ("state.buckets", 32, 64, Effect.REFUSED)
    (found,) = changes_between(was, now, None)
    assert found.effect is Effect.RESTART


def test_buckets_are_at_least_eight_a_partition() -> None:
    with pytest.raises(ValueError, match="buckets must be at least 8 for each of 4 partitions"):
        spec(state={"partitions": 4, "buckets": 31})


@pytest.mark.parametrize("change", [{"state": {"partitions": 8}}, {"state": {"partitions": 4, "backend": "memory"}}])
def test_without_state_nothing_stands_against_the_state_section(change: dict[str, Any]) -> None:
    for facts in (STATELESS, None):
        (found,) = changes_between(spec(), spec(**change), facts)
        assert found.effect is Effect.RESTART


def test_without_a_checkpoint_the_source_is_free() -> None:
    (found,) = changes_between(spec(), spec(source={"kind": "delta", "table": "others"}), None)
    assert found.effect is Effect.RESTART
    (found,) = changes_between(spec(), spec(source={"kind": "delta", "table": "others"}), STATELESS)
    assert found.effect is Effect.REFUSED and "another name" in found.remedy


def test_the_checkpoint_counts_and_not_what_was_deployed() -> None:
    """A deploy of long ago may have asked for what its driver then refused."""
    (found,) = changes_between(spec(state={"partitions": 8}), spec(state={"partitions": 8}), with_state())
    assert (found.field, found.before, found.after, found.effect) == ("state.partitions", 4, 8, Effect.REFUSED)
    assert "back to 4" in found.remedy and "rescale" in found.remedy
    (found,) = changes_between(spec(state={"partitions": 8}), spec(), with_state())
    assert (found.before, found.after, found.effect) == (8, 4, Effect.RESTART)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    (tmp_path / "modules").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))

    def write(text: str) -> None:
        (tmp_path / "modules" / "tests_rollout_job.py").write_text(text)

    return write


def test_another_version_of_the_module_is_refused_where_there_is_state(module: Callable[[str], None]) -> None:
    module("VERSION = 3\nraise AssertionError('imported')\n")
    assert changes_between(spec(), spec(), with_state(versions={"job": "3"})) == ()
    (found,) = changes_between(spec(), spec(), with_state(versions={"job": "2"}))
    assert (found.field, found.before, found.after, found.effect) == ("module VERSION", "2", "3", Effect.REFUSED)
    assert "version 2" in found.remedy
    module("VERSION = 3\nMIGRATES_FROM = (1, 2)\n")
    (found,) = changes_between(spec(), spec(), with_state(versions={"job": "2"}))
    assert found.effect is Effect.REFUSED and "`streamwarden savepoint job`" in found.remedy
    stateless = CheckpointFacts(spec=spec(), versions={"job": "2"})
    (found,) = changes_between(spec(), spec(), stateless)
    assert found.effect is Effect.SAVEPOINT


def test_what_another_spark_wrote_is_refused() -> None:
    (found,) = changes_between(spec(), spec(), with_state(versions={"spark": "99.1.0"}))
    assert (found.field, found.before, found.effect) == ("Spark", "99.1.0", Effect.REFUSED)
    assert "`streamwarden restore JOB --savepoint ID`" in found.remedy


def test_the_strongest_effect_counts_and_all_refusals_are_told() -> None:
    assert strongest([]) is Effect.NONE
    assert strongest([Effect.RESTART, Effect.LIVE]) is Effect.RESTART
    assert [effect.rank for effect in Effect] == [0, 1, 2, 3, 4]
    changed = spec(description="x", state={"partitions": 8}, source={"kind": "delta", "table": "others"})
    planned = RolloutPlan(JOB, spec(), changed, changes_between(spec(), changed, with_state()))
    assert planned.effect is Effect.REFUSED
    with pytest.raises(StreamwardenError, match="ROLLOUT_REFUSED") as raised:
        planned.refuse()
    assert "state.partitions 4 -> 8" in raised.value.what and "source.table trips -> others" in raised.value.what
    assert "description" not in raised.value.what
    assert raised.value.remedy in {one.remedy for one in planned.changes}
    RolloutPlan(JOB, spec(), changed, (Change("x", 1, 2, Effect.SAVEPOINT, "y"),)).refuse()


# -- against the documents ---------------------------------------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    config = tmp_path / "config"
    (config / "profiles").mkdir(parents=True)
    (config / "jobs").mkdir()
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    write(config)
    return open_workspace("test", config=config)


def write(config: Path, **values: Any) -> None:
    (config / "jobs" / f"{JOB}.yaml").write_text(yaml.safe_dump({**FIELDS, **values}))


def deployed(workspace: Workspace, found: JobSpec) -> Desired:
    desired = made_desired(found)
    JobDocuments(workspace.storage, JOB).desired.write(desired)
    return desired


def driver(workspace: Workspace, launched: JobSpec, *, digest: str = "", keeps_spec: bool = True) -> JobDocuments:
    documents = JobDocuments(workspace.storage, JOB)
    now, process = utc_now(), current_process()
    documents.launch("i1").write(
        Launch(
            incarnation="i1",
            at=now,
            by="test",
            reason="",
            digest=launched.digest(),
            spec=launched if keeps_spec else None,
            process=process,
        )
    )
    documents.heartbeat("i1").write(
        Heartbeat(incarnation="i1", at=now, started_at=now, state=DriverState.RUNNING, process=process, digest=digest)
    )
    return documents


def test_never_deployed(workspace: Workspace) -> None:
    found = plan(workspace, JOB)
    assert found.deployed is None and found.changes == () and found.effect is Effect.NONE and not found.running
    found.refuse()


def test_a_profile_s_overrides_count(workspace: Workspace) -> None:
    deployed(workspace, spec())
    profile = {"name": "test", "root": "root", "jobs": {"interval": "3s"}}
    (workspace.config / "profiles" / "test.yaml").write_text(yaml.safe_dump(profile))
    found = plan(open_workspace("test", config=workspace.config), JOB)
    assert [(one.field, one.after) for one in found.changes] == [("trigger.interval", "3s")]


def test_a_live_change_that_was_made_is_no_news(workspace: Workspace) -> None:
    """The driver goes on with the digest that it was launched with."""
    old, new = spec(), spec(description="new", restarts={"max": 1})
    write(workspace.config, description="new", restarts={"max": 1})
    deployed(workspace, old)
    driver(workspace, old, digest=old.digest())
    found = plan(workspace, JOB)
    assert found.effect is Effect.LIVE and found.running and len(found.changes) == 2
    deployed(workspace, new)
    assert plan(workspace, JOB).changes == ()
    # A later change counts from what the driver runs, and doesn't repeat those.
    write(workspace.config, description="new", restarts={"max": 1}, watermark="3h")
    found = plan(workspace, JOB)
    assert [one.field for one in found.changes] == ["watermark"]


def test_a_driver_that_runs_another_spec_than_the_deployed_is_seen(workspace: Workspace) -> None:
    """A deploy may have died between writing what it wants and stopping the driver."""
    old, new = spec(), spec(watermark="3h")
    write(workspace.config, watermark="3h")
    deployed(workspace, new)
    documents = driver(workspace, old, digest=old.digest())
    assert [one.field for one in plan(workspace, JOB).changes] == ["watermark"]
    # Its own word counts: it may have read the newer document a moment after its launch.
    driver(workspace, old, digest=new.digest())
    assert plan(workspace, JOB).changes == ()
    driver(workspace, old, keeps_spec=False)
    found = plan(workspace, JOB)
    assert [one.field for one in found.changes] == ["driver"] and found.effect is Effect.RESTART
    documents.exit("i1").write(Exit(incarnation="i1", at=utc_now(), outcome="stopped"))
    found = plan(workspace, JOB)
    assert found.changes == () and not found.running, "what a driver ran that has ended is no matter"


def test_a_checkpoint_s_partitions_are_read_from_it(workspace: Workspace) -> None:
    write(workspace.config, state={"partitions": 8})
    deployed(workspace, spec())
    path = "checkpoints/job/g000001"
    JobDocuments(workspace.storage, JOB).checkpoint.write(
        CheckpointRef(job=JOB, generation=1, path=path, since=utc_now(), reason="")
    )
    assert plan(workspace, JOB).effect is Effect.RESTART, "no batch was begun"
    conf = '{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"4"}}'
    workspace.files.write(f"{path}/offsets/0", f"v1\n{conf}\n-".encode())
    assert plan(workspace, JOB).effect is Effect.RESTART, "it is stateless"
    workspace.files.write(f"{path}/state/0/0/1.changelog", b"x")
    found = plan(workspace, JOB)
    assert found.effect is Effect.REFUSED and found.changes[0].before == 4


# -- against the tables ------------------------------------------------------------------------------------------------


def made(workspace: Workspace, table: str = "a", *, record: list[str] | None = None, **values: Any) -> None:
    """Make a table with columns x (string) and y (bigint), of which the record says that they are the job's."""
    rows = pa.table({"x": pa.array(["1"]), "y": pa.array([1], pa.int64())})
    write_deltalake(workspace.table(table), rows, **values)
    properties = {RECORD: json.dumps(["x", "y"] if record is None else record)}
    DeltaTable(workspace.table(table)).alter.set_table_properties(properties, raise_if_not_exists=False)


def declares(monkeypatch: pytest.MonkeyPatch, **columns: str) -> None:
    """Let the module's main output have these columns."""
    fields = [{"name": name, "type": kind, "nullable": True} for name, kind in columns.items()]
    monkeypatch.setattr(column_changes, "declared_outputs", lambda *_: {"main": fields})


def test_a_column_that_the_module_has_newly_got_is_rolled_out(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(workspace, spec())
    made(workspace)
    declares(monkeypatch, x="string", y="long")
    assert plan(workspace, JOB).changes == ()
    declares(monkeypatch, x="string", y="long", z="double")
    found = plan(workspace, JOB)
    (change,) = found.changes
    assert (change.field, change.before, change.after) == ("sinks.a.columns.z", None, "double")
    assert found.effect is Effect.SAVEPOINT and found.has_columns


@pytest.mark.parametrize(
    ("columns", "field", "before", "after"),
    [
        ({"x": "string", "y": "string"}, "y", "bigint", "string"),
        ({"x": "string", "Y": "long"}, "Y", "y bigint", "bigint"),
        ({"x": "string"}, "y", "bigint", None),
        ({"x": "string", "z": "long"}, "y", "bigint", None),
    ],
    ids=["type", "case", "removed", "renamed"],
)
def test_another_change_of_columns_is_refused(
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, str],
    field: str,
    before: str,
    after: str | None,
) -> None:
    deployed(workspace, spec())
    made(workspace)
    declares(monkeypatch, **columns)
    found = plan(workspace, JOB)
    assert found.effect is Effect.REFUSED
    refused = next(one for one in found.changes if one.effect is Effect.REFUSED)
    assert (refused.field, refused.before, refused.after) == (f"sinks.a.columns.{field}", before, after)
    with pytest.raises(StreamwardenError, match="ROLLOUT_REFUSED") as raised:
        found.refuse()
    assert raised.value.remedy == refused.remedy != ""


def test_columns_of_others_are_no_change_nor_are_those_of_a_spec_that_was_given_up(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    was = deployed(workspace, spec())
    made(workspace, record=["x"])
    declares(monkeypatch, x="string")
    assert plan(workspace, JOB).changes == ()
    made(workspace, record=["x", "y"], mode="overwrite")
    assert plan(workspace, JOB).effect is Effect.REFUSED
    JobDocuments(workspace.storage, JOB).desired.write(was.model_copy(update={"went_back": True}))
    assert plan(workspace, JOB).changes == ()


def test_a_table_that_is_there_keeps_its_partitioning(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed(workspace, spec())
    declares(monkeypatch, x="string", y="long")
    write(workspace.config, sinks=[{**FIELDS["sinks"][0], "partition_by": ["x"]}, FIELDS["sinks"][1]])
    assert plan(workspace, JOB).effect is Effect.RESTART, "no table is there yet"
    made(workspace)
    found = plan(workspace, JOB)
    (change,) = found.changes
    assert change.field == "sinks.a.partition_by" and change.effect is Effect.REFUSED
    assert "partitioned by nothing" in change.why and "another table" in change.remedy
    # As it is, whatever was deployed: back to that is no harm.
    made(workspace, mode="overwrite", schema_mode="overwrite", partition_by=["x"])
    assert plan(workspace, JOB).effect is Effect.RESTART


def test_a_module_that_no_driver_could_use_is_found_before_anything_is_touched(workspace: Workspace) -> None:
    deployed(workspace, spec())
    made(workspace)
    with pytest.raises(StreamwardenError, match="JOB_MODULE_INVALID") as raised:
        plan(workspace, JOB)
    assert raised.value.what.endswith("module: there is no module tests_rollout_job")
