"""Damaged entries of Delta logs: found by what they are, and cut off where a savepoint of before replays them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_restore import put_back
from streamwarden.model.savepoint import Manifest, SinkState
from streamwarden.savepoints import catalog
from streamwarden.savepoints.documents import manifest_document
from streamwarden.savepoints.table_damage import (
    check_output,
    check_source,
    cut_off,
    damaged_version,
    forget_damaged_checkpoints,
    outdate_savepoints,
    unfit,
)
from streamwarden.savepoints.verify import verify
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.batches import made_desired
from tests.unit.formats.test_checkpoint_files import Made
from tests.unit.formats.test_damaged_checkpoint import Damage, cut, empty, remove
from tests.unit.savepoints.test_catalog import manifest
from tests.unit.savepoints.test_compatibility import current, job_module, spec, workspace

__all__ = ["job_module", "workspace"]

pytestmark = pytest.mark.unit


@pytest.fixture
def log(workspace: Workspace) -> Path:
    """The log of a table of versions 0 to 4."""
    for number in range(5):
        write_deltalake(workspace.table("job"), pa.table({"x": [number]}), mode="append")
    return Path(workspace.table("job")) / "_delta_log"


def _json(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


@pytest.mark.parametrize(
    ("version", "damage", "words"),
    [
        (4, empty, "empty"),
        (4, cut, "truncated"),
        (2, empty, "empty"),
        (2, remove, "missing"),
        (0, empty, "empty"),
    ],
)
def test_a_damaged_entry_is_named(workspace: Workspace, log: Path, version: int, damage: Damage, words: str) -> None:
    assert damaged_version(workspace, "job") is None
    damage(_json(log, version))
    found = damaged_version(workspace, "job")
    assert found == (version, f"tables/job/_delta_log/{version:020}.json is {words}")
    for check in (lambda: check_output(workspace, "job", "job"), lambda: check_source(workspace, "job")):
        with pytest.raises(StreamwardenError, match="TABLE_DAMAGED") as raised:
            check()
        assert not raised.value.retryable


def test_a_newest_entry_that_is_missing_is_told_by_its_checksum(workspace: Workspace, log: Path) -> None:
    (log / f"{4:020}.crc").write_text("{}")
    assert damaged_version(workspace, "job") is None
    remove(_json(log, 4))
    found = damaged_version(workspace, "job")
    assert found is not None and found[0] == 4


def test_a_commit_that_came_during_the_listing_is_not_missing(
    workspace: Workspace, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log / f"{4:020}.crc").write_text("{}")
    listed = [info for info in workspace.files.walk("tables/job/_delta_log") if f"{4:020}.json" not in info.key]
    assert len(listed) >= 5
    monkeypatch.setattr(type(workspace.files), "walk", lambda *_: iter(listed))
    assert damaged_version(workspace, "job") is None


def test_what_deltas_checkpoint_holds_may_be_gone(workspace: Workspace, log: Path) -> None:
    DeltaTable(log.parent).create_checkpoint()
    for version in range(4):
        remove(_json(log, version))
    assert damaged_version(workspace, "job") is None
    assert damaged_version(workspace, "not_there") is None


@pytest.mark.parametrize(("version", "damage"), [(4, empty), (4, cut), (2, empty), (2, remove)])
def test_the_log_is_cut_off_once_and_the_table_put_back(
    workspace: Workspace, log: Path, version: int, damage: Damage
) -> None:
    damage(_json(log, version))
    cut_off(workspace, "job", version)
    assert DeltaTable(log.parent).version() == version - 1
    assert put_back(workspace, "job", 0, author="test")
    cut_off(workspace, "job", version)
    assert DeltaTable(log.parent).version() == version, "of a second time nothing comes: the entry is a new one"
    assert DeltaTable(log.parent).to_pyarrow_table().column("x").to_pylist() == [0]


@pytest.mark.parametrize("damage", [empty, cut])
def test_deltas_own_checkpoint_is_forgotten_if_it_is_damaged(workspace: Workspace, log: Path, damage: Damage) -> None:
    DeltaTable(log.parent).create_checkpoint()
    forget_damaged_checkpoints(workspace, "job")
    (whole,) = log.glob("*.checkpoint.parquet")
    assert (log / "_last_checkpoint").exists(), "one that is whole is left alone"
    damage(whole)
    with pytest.raises(DeltaError):
        DeltaTable(log.parent).to_pyarrow_table()
    forget_damaged_checkpoints(workspace, "job")
    assert damaged_version(workspace, "job") is None
    assert DeltaTable(log.parent).version() == 4


def _of(version: int | None) -> Manifest:
    sink = SinkState(table="job", mode="append", version=version, application="a", transaction=None)
    return manifest("1", sinks=[sink])


def test_only_a_savepoint_of_before_the_damage_fits(workspace: Workspace, log: Path) -> None:
    def codes(at: int | None) -> list[str]:
        return [one.code for one in unfit(workspace, "job", _of(at), {"job": 3})]

    assert (codes(None), codes(2), codes(3), codes(4)) == ([], [], ["RESTORE_OUTPUT_GONE"], ["RESTORE_OUTPUT_GONE"])


@pytest.mark.parametrize(
    ("read", "fits"), [('{"reservoirVersion":3,"index":-1}', True), ('{"reservoirVersion":4,"index":-1}', False)]
)
def test_a_version_that_another_job_has_read_is_not_cut_off(
    workspace: Workspace, log: Path, read: str, fits: bool
) -> None:
    made = Made(workspace.root)
    made.batch(0, [read])
    reader = spec(name="reader", source={"kind": "delta", "table": "job"}, sinks=[{"table": "other", "mode": "append"}])
    documents = JobDocuments(workspace.storage, "reader")
    documents.checkpoint.write(current(job="reader"))
    documents.desired.write(made_desired(reader))
    codes = [one.code for one in unfit(workspace, "job", _of(2), {"job": 3})]
    assert codes == ([] if fits else ["RESTORE_BREAKS_READERS"])


def _saved(workspace: Workspace, made: Manifest) -> None:
    manifest_document(workspace, made.job, made.id).write(made)


def test_savepoints_that_count_on_a_removed_version_are_outdated(workspace: Workspace) -> None:
    """Whatever a verification finds of their files."""
    source = {"kind": "delta", "table": "job"}
    reader = spec(name="reader", source=source, sinks=[{"table": "other", "mode": "append"}])
    for number, version in enumerate((2, 3)):
        _saved(workspace, _of(version).model_copy(update={"id": f"w{number}"}))
    for number, position in enumerate(('{"reservoirVersion":3,"index":-1}', '{"reservoirVersion":3,"index":0}')):
        _saved(workspace, manifest(f"r{number}", job="reader", spec=reader, sources=[position]))
    assert outdate_savepoints(workspace, "job", 3, by="test") == ["lamp w1", "reader r1"]
    assert outdate_savepoints(workspace, "job", 3, by="test") == []
    chosen = [one for job in ("lamp", "reader") for one in catalog.savepoints(workspace, job)]
    verify(workspace, chosen, by="test", state=False)
    found = {
        f"{job} {one.manifest.id}": one for job in ("lamp", "reader") for one in catalog.savepoints(workspace, job)
    }
    problems = {name: one.record.verification.problems for name, one in found.items() if one.record.verification}
    assert [problems[name][0] for name in ("lamp w1", "reader r1")] == [
        "job was cut off at version 3, which this savepoint needs"
    ] * 2
    assert [one.record.outdated for name, one in sorted(found.items()) if name in ("lamp w0", "reader r0")] == ["", ""]
