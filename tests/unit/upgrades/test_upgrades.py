"""Places of earlier versions, kept for ever, are read by today's code; and what a later version writes, by this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError, create_model
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.model.gate import GateEvents, GateRecord
from streamwarden.model.hosting import DriverHost, DriverStart
from streamwarden.model.savepoint import Manifest
from streamwarden.model.spec import JobSpec
from streamwarden.model.spec_base import Strict
from streamwarden.operations.repair import DOCUMENTS, repair
from streamwarden.savepoints import catalog
from streamwarden.store import layout
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.unit.upgrades import JOB, PLACES
from tests.unit.upgrades.fields import faults, models

pytestmark = pytest.mark.unit

VERSIONS = sorted(path.name for path in PLACES.iterdir())


@pytest.fixture(params=VERSIONS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    shutil.copytree(PLACES / request.param, tmp_path / "place")
    config = tmp_path / "place" / "config"
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(config))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "test")
    return open_workspace("test", config=config)


def run(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def model_of(key: str) -> type[BaseModel]:
    """Return the model of a document of a place."""
    if key.startswith(f"{layout.GATE}/"):
        return GateEvents if key.endswith(".events.json") else GateRecord
    if key.startswith(f"{layout.HOSTS}/"):
        return DriverStart if key.startswith(f"{layout.STARTS}/") else DriverHost
    return Manifest if key.startswith(f"{layout.SAVEPOINTS}/") else DOCUMENTS[layout.kind_of(key)]


def documents(place: Workspace) -> list[str]:
    manifests = [layout.savepoint_manifest_key(JOB, one) for one in place.files.folders(f"{layout.SAVEPOINTS}/{JOB}")]
    return [
        *manifests,
        *(key for folder in (layout.CONTROL, layout.GATE, layout.HOSTS) for key in place.storage.list(folder)),
    ]


def test_every_document_can_be_read(place: Workspace) -> None:
    found = set()
    for key in documents(place):
        entry = place.storage.read(key)
        assert entry is not None
        model = model_of(key)
        value = model.model_validate_json(entry.data)
        found.add(model)
        # Nothing that was written is lost: today's fields have it.
        assert written(json.loads(entry.data)) <= written(value.model_dump(mode="json")), key
    assert found >= {*DOCUMENTS.values(), Manifest, GateRecord, GateEvents, DriverHost, DriverStart}, "one of each kind"
    assert repair(place, JOB, by="test", dry_run=True) == []


def written(value: Any, path: str = "") -> set[tuple[str, str]]:
    """Return paths and values, without what is empty: a field may have gone that never had one."""
    if isinstance(value, dict):
        return {one for name, inner in value.items() for one in written(inner, f"{path}.{name}")}
    if isinstance(value, list):
        return {one for number, inner in enumerate(value) for one in written(inner, f"{path}.{number}")}
    return set() if value in (None, "", False) else {(path, str(value))}


def test_every_reading_command_works(place: Workspace) -> None:
    (status,) = run("status", code=0)
    assert (status["job"], status["phase"], status["desired"]) == (JOB, "stopped", "suspended")
    assert run("status", JOB)["checkpoint"]["generation"] == 2
    listed = run("savepoints", "list")
    assert {one["state"] for one in listed} == {"verified", "damaged"}
    kept = next(one for one in listed if one["label"] == "kept")
    assert run("savepoints", "show", JOB, "kept")["manifest"]["batch"] == kept["batch"]
    operations = run("operations", "list", JOB)
    assert {one["state"] for one in operations} == {"running", "done", "failed", "rolled back", "interrupted"}
    assert {one["kind"] for one in operations} == {"restore", "rollout", "rescale"}
    (gate,) = run("gate", "status")
    assert gate["hold"] is not None and gate["published"] >= 0 and gate["trouble"]["code"] == "S3_UNREACHABLE"
    assert run("hosts", code=1)[0]["drivers"] == [JOB]
    assert {one["verdict"] for one in run("gate", "history", "rows")} >= {"held", "accepted"}


def test_doctor_finds_what_was_broken_then_and_nothing_else(place: Workspace) -> None:
    found = [one for one in run("doctor", code=1)["findings"] if one["verdict"] == "broken"]
    (outdated,) = [one for one in run("savepoints", "list") if one["state"] == "damaged"]
    assert [(one["about"], one["code"]) for one in found] == [
        ("published rows", "S3_UNREACHABLE"),
        (f"savepoint {outdated['id']}", "SAVEPOINT_DAMAGED"),
    ]


def test_a_job_of_then_can_be_adopted(place: Workspace) -> None:
    before = JobDocuments(place.storage, JOB).checkpoint.read()
    shutil.rmtree(place.root / "control" / JOB)
    repair(place, JOB, by="test")
    now = JobDocuments(place.storage, JOB).checkpoint.read()
    assert before is not None and now is not None and (now.generation, now.path) == (before.generation, before.path)


# What a later version writes, after an upgrade that was rolled back.


def changed(place: Workspace, key: str, **fields: Any) -> None:
    entry = place.storage.read(key)
    assert entry is not None
    place.storage.write(key, json.dumps({**json.loads(entry.data), **fields}).encode())


def test_fields_of_a_later_version_are_ignored(place: Workspace) -> None:
    for key in documents(place):
        changed(place, key, added_later={"x": 1})
        entry = place.storage.read(key)
        assert entry is not None
        model_of(key).model_validate_json(entry.data)
    assert run("status", JOB)["phase"] == "stopped"
    assert len(run("savepoints", "list")) == 2
    assert repair(place, JOB, by="test", dry_run=True) == []


def newer_spec(place: Workspace, key: str, **fields: Any) -> None:
    entry = place.storage.read(key)
    assert entry is not None
    document = json.loads(entry.data)
    changed(place, key, spec={**document["spec"], **fields})


def test_a_setting_of_a_later_version_is_refused_and_never_repaired(place: Workspace) -> None:
    key = JobDocuments(place.storage, JOB).desired.key
    newer_spec(place, key, encrypt=True)
    (status,) = run("status", code=1)
    assert (
        status["error"]["code"] == "DOCUMENT_INVALID"
        and "a later version wrote it: spec.encrypt" in status["error"]["what"]
    )
    assert "Upgrade this installation" in status["error"]["remedy"] and "repair JOB" not in status["error"]["remedy"]
    before = place.storage.read(key)
    with pytest.raises(StreamwardenError, match="a later version wrote it"):
        repair(place, JOB, by="test")
    assert place.storage.read(key) == before
    assert "DOCUMENT_INVALID" in {one["code"] for one in run("doctor", JOB, code=1)["findings"]}


@pytest.mark.parametrize("value", ["paused", "draining"])
def test_a_state_of_a_later_version_is_refused_and_never_repaired(place: Workspace, value: str) -> None:
    changed(place, JobDocuments(place.storage, JOB).desired.key, state=value)
    (status,) = run("status", code=1)
    assert "a later version wrote it: state" in status["error"]["what"]
    with pytest.raises(StreamwardenError, match="a later version wrote it"):
        repair(place, JOB, by="test")


def test_a_savepoint_of_a_later_version_is_left_alone(place: Workspace) -> None:
    kept = catalog.find(place, JOB, "kept")
    key = layout.savepoint_manifest_key(JOB, kept.id)
    newer_spec(place, key, encrypt=True)
    assert place.files.folders(f"savepoints/{JOB}").count(kept.id) == 1
    with pytest.raises(StreamwardenError, match="a later version wrote"):
        repair(place, JOB, by="test")
    with pytest.raises(StreamwardenError, match="a later version wrote its manifest"):
        catalog.find(place, JOB, kept.id).manifest  # noqa: B018
    assert place.storage.read(key) is not None


def test_a_gates_document_of_a_later_version_is_left_alone(place: Workspace) -> None:
    key = layout.gate_key("rows")
    entry = place.storage.read(key)
    assert entry is not None
    changed(place, key, decisions=[{**one, "verdict": "sampled"} for one in json.loads(entry.data)["decisions"]])
    before = place.storage.read(key)
    done = CliRunner().invoke(app, ["gate", "repair", "rows"])
    assert done.exit_code == 2 and "a later version wrote it" in done.output
    assert place.storage.read(key) == before
    (found,) = [one for one in run("doctor", code=1)["findings"] if one["about"] == "published rows"]
    assert "Upgrade this installation" in found["remedy"] and found["commands"] == []


def test_a_derived_document_of_a_later_version_counts_as_missing(place: Workspace) -> None:
    made = JobDocuments(place.storage, JOB)
    heartbeat = made.heartbeat(made.incarnations()[-1])
    changed(place, heartbeat.key, state="resting")
    assert heartbeat.read() is None
    assert run("status", JOB)["phase"] == "stopped"


# The rules for fields that are added from now on.


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_that_were_added_keep_upgrades_and_rollbacks_possible(version: str) -> None:
    known = json.loads((PLACES / version / "fields.json").read_text())
    assert len(known) > 40 and set(known) <= set(models())
    found = {name: faults(model, known[name]) for name, model in models().items() if name in known}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_the_rule_for_specs_holds_for_each_part_of_a_spec() -> None:
    assert [name for name, model in models(JobSpec).items() if not issubclass(model, Strict)] == []


def test_the_rule_finds_what_it_is_for() -> None:
    spec = create_model("Later", __base__=Strict, kept=(int, 1), needed=(int, ...), shown=(int, 2))
    assert [one.partition(":")[0] for one in faults(spec, ["kept", "removed"])] == ["needed", "shown", "removed"]
    record = create_model("Record", kept=(int, 1), needed=(int, ...), shown=(int, 2))
    assert [one.partition(":")[0] for one in faults(record, ["kept", "removed"])] == ["needed"]


def test_a_new_setting_that_is_not_used_does_not_reach_an_earlier_version() -> None:
    class Later(Strict):
        kept: int = 1
        added: bool = Field(default=False, exclude_if=lambda value: value is False)

    class Earlier(Strict):
        kept: int = 1

    assert faults(Later, ["kept"]) == []
    assert Earlier.model_validate_json(Later().model_dump_json()) == Earlier()
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Earlier.model_validate_json(Later(added=True).model_dump_json())
