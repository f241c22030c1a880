"""Each file that a checkpoint is read from, emptied, cut, removed or another's: named, and restored over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import check_described, newest_closure
from streamwarden.model.record import Decided
from streamwarden.model.savepoint import Origin
from streamwarden.operations.restore import _Restore
from streamwarden.operations.spec_diff import checkpoint_facts
from streamwarden.runtime.operation_lock import begin
from streamwarden.savepoints import catalog
from streamwarden.savepoints.compatibility import incompatibilities
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.unit.formats.test_checkpoint_files import CHECKPOINT, Made
from tests.unit.savepoints.test_compatibility import current, job_module, made, of, spec, workspace
from tests.unit.savepoints.test_take import documents

__all__ = ["documents", "job_module", "made", "workspace"]

pytestmark = pytest.mark.unit

Damage = Callable[[Path], None]


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def remove(path: Path) -> None:
    path.unlink()


def foreign(path: Path) -> None:
    path.write_bytes(b'{"what": "a document of somebody else"}')


def _reader(workspace: Workspace) -> CheckpointReader:
    return CheckpointReader(workspace.storage, CHECKPOINT)


LOGS = [
    (name, damage)
    for name in ("metadata", "offsets/2", "offsets/1", "commits/2", "sources/0/2", "sources/0/1")
    for damage in (empty, cut, remove, foreign)
    # Without its commit a batch is one that was begun, and Spark finishes it; `metadata` is any JSON.
    if (name, damage) not in (("commits/2", remove), ("metadata", foreign))
]


@pytest.mark.parametrize(("name", "damage"), LOGS, ids=[f"{name}-{damage.__name__}" for name, damage in LOGS])
def test_a_damaged_file_of_the_logs_is_named_before_spark_starts(
    workspace: Workspace, documents: JobDocuments, made: Made, name: str, damage: Damage
) -> None:
    _reader(workspace).check()
    saved = take(workspace, "job", origin=Origin.MANUAL, by="test")
    found = catalog.find(workspace, "job", saved.id)
    verify(workspace, [found], by="test", state=False)
    path = made.folder / name
    path.write_bytes(path.read_bytes())
    damage(path)
    with pytest.raises(StreamwardenError) as raised:
        _reader(workspace).check()
    assert raised.value.code == "CHECKPOINT_DAMAGED" and f"{CHECKPOINT}: {name}: it is" in raised.value.what
    assert f"`streamwarden restore job --savepoint {saved.id}`" in raised.value.remedy
    assert not raised.value.retryable, "no supervisor starts the job again on it"
    # What is damaged stands in no restore's way: the job's own checkpoint is asked for what it says only.
    assert [one.code for one in incompatibilities(workspace, saved, spec(), current())] == []


def test_swapped_entries_and_a_hole_in_the_commits_are_named(workspace: Workspace, made: Made) -> None:
    made.remove("commits/2", "commits/1")
    with pytest.raises(StreamwardenError, match=r"CHECKPOINT_DAMAGED.*commits/1: it is missing"):
        _reader(workspace).check()


def test_what_a_batch_in_flight_leaves_is_no_damage(workspace: Workspace, made: Made) -> None:
    made.remove("commits/2")
    _reader(workspace).check()
    # A first batch that was begun; before that there is nothing to be damaged.
    made.remove("offsets/2", "offsets/1", "commits/1", "commits/0")
    _reader(workspace).check()
    made.remove("offsets/0", "metadata")
    _reader(workspace).check()


def test_without_a_verified_savepoint_the_remedy_says_what_then(workspace: Workspace, made: Made) -> None:
    empty(made.folder / "offsets/2")
    with pytest.raises(StreamwardenError) as raised:
        _reader(workspace).check()
    assert "savepoints verify job all" in raised.value.remedy and "under another name" in raised.value.remedy


@pytest.mark.parametrize("damage", [empty, cut, foreign])
def test_every_command_that_reads_the_newest_offsets_names_the_damage(
    workspace: Workspace, documents: JobDocuments, made: Made, damage: Damage
) -> None:
    damage(made.folder / "offsets/2")
    asked: list[Callable[[], Any]] = [
        lambda: checkpoint_facts(workspace, "job", spec()),
        lambda: newest_closure(workspace.files, workspace.storage, CHECKPOINT),
        lambda: take(workspace, "job", origin=Origin.MANUAL, by="test"),
    ]
    for ask in asked:
        with pytest.raises(StreamwardenError, match=r"CHECKPOINT_DAMAGED.*offsets/2"):
            ask()
    assert list(workspace.files.walk("savepoints")) == [], "nothing is left of the take"


STATE = [
    (name, damage)
    for name, damages in {
        "state/0/_metadata/v2/0": (empty, cut, foreign),
        "state/0/_stateSchema/default/0_schema": (empty,),
        "state/0/1/3.changelog": (empty, remove),
        "state/0/1/3.zip": (empty, cut, foreign),
        "state/0/1/SSTs/t-uuid.sst": (empty, remove),
    }.items()
    for damage in damages
]


@pytest.mark.parametrize(("name", "damage"), STATE, ids=[f"{name}-{damage.__name__}" for name, damage in STATE])
def test_no_savepoint_is_taken_of_damaged_state(
    workspace: Workspace, documents: JobDocuments, made: Made, name: str, damage: Damage
) -> None:
    saved = of(made)
    if "changelog" not in name:
        made.snapshot("state/0/1", 3, ["t"])
    damage(made.folder / name)
    with pytest.raises(StreamwardenError, match=r"CHECKPOINT_DAMAGED.*state/0"):
        take(workspace, "job", origin=Origin.MANUAL, by="test")
    assert incompatibilities(workspace, saved, spec(), current()) == []


@pytest.mark.parametrize("name", ["state/0/_metadata/v2/0", "state/0/_stateSchema/default/0_schema"])
def test_a_description_of_state_that_is_empty_is_named_before_spark_starts(
    workspace: Workspace, made: Made, name: str
) -> None:
    check_described(workspace.storage, CHECKPOINT)
    empty(made.folder / name)
    with pytest.raises(StreamwardenError, match=f"CHECKPOINT_DAMAGED.*{name}: it is empty"):
        check_described(workspace.storage, CHECKPOINT)


def test_an_operation_that_dies_of_any_exception_ends_as_failed(
    workspace: Workspace, documents: JobDocuments, made: Made
) -> None:
    with (
        pytest.raises(StreamwardenError, match=r"OPERATION_FAILED.*IndexError: list index out of range"),
        begin(workspace, "job", "restore", by="test", params={}) as handle,
        _Restore(workspace, handle, 1, 1, None).failure_on_record(),
    ):
        raise IndexError("list index out of range")
    ended = documents.operation.read()
    assert ended is not None and ended.state == "failed" and ended.error is not None
    assert ended.error.code == "OPERATION_FAILED"
    assert isinstance(documents.checkpoint.read(), Decided) and json.dumps(ended.params) == "{}"
