from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.progress import Totals
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import FileEntry, Manifest, OperatorState, Origin, Record, Verification
from streamwarden.model.spec import KeepSpec, RetentionSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints import catalog
from streamwarden.savepoints import verify as verify_module
from streamwarden.savepoints.catalog import (
    LATEST,
    delete,
    describe,
    find,
    housekeeping,
    label,
    release,
    savepoints,
    use,
)
from streamwarden.savepoints.documents import is_interrupted, manifest_document, record_document
from streamwarden.savepoints.verify import verify
from streamwarden.storage import S3Location
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import savepoint_checkpoint_key, savepoint_key
from streamwarden.store.workspace import Workspace, open_workspace
from tests.unit.supervision.test_supervision import GONE, JOB, spec

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ELSEWHERE = ProcessRef(host="another-machine", boot="b", pid=1, started=0)
KEEP_ALL = RetentionSpec(
    periodic=KeepSpec(), pre_rescale=KeepSpec(), pre_restore=KeepSpec(), pre_rollout=KeepSpec(), suspend=KeepSpec()
)

Verdict = Literal["verified", "damaged", "unverified"]


def opened(folder: Path) -> Workspace:
    (folder / "config" / "profiles").mkdir(parents=True)
    (folder / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=folder / "config")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return opened(tmp_path)


def manifest(name: str, **values: Any) -> Manifest:
    found = spec()
    fields: dict[str, Any] = {
        "id": name,
        "job": JOB,
        "origin": Origin.PERIODIC,
        "by": "test",
        "taken_at": NOW,
        "took_s": 0.1,
        "parent": None,
        "generation": 1,
        "checkpoint": f"checkpoints/{JOB}/g000001",
        "batch": 3,
        "watermark_ms": 0,
        "sources": [],
        "settings": {},
        "operators": [],
        "sinks": [],
        "versions": {},
        "spec": found,
        "digest": found.digest(),
        "files": [FileEntry(path="metadata", size=1, sha256="")],
    }
    return Manifest(**{**fields, **values})


def made(
    workspace: Workspace,
    name: str,
    verdict: Verdict = "verified",
    *,
    origin: Origin = Origin.PERIODIC,
    age: timedelta = timedelta(0),
    record: dict[str, Any] | None = None,
) -> str:
    """Put a savepoint into the catalogue, with one file."""
    at = NOW - age
    put(workspace, f"{savepoint_checkpoint_key(JOB, name)}/metadata", "x")
    put(
        workspace,
        manifest_document(workspace, JOB, name).key,
        manifest(name, origin=origin, taken_at=at).model_dump_json(),
    )
    found = None
    if verdict != "unverified":
        found = Verification(verdict=verdict, at=NOW, by="test", took_s=0, files=1, bytes=1)
    fields = {"id": name, "job": JOB, "state": "complete", "origin": origin, "by": "test", "at": at}
    whole = Record.model_validate({**fields, "verification": found, **(record or {})})
    put(workspace, record_document(workspace, JOB, name).key, whole.model_dump_json())
    return name


def put(workspace: Workspace, key: str, text: str) -> None:
    """Write a file without waiting for the disk."""
    path = workspace.root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def operation(workspace: Workspace, state: str, process: ProcessRef | None, job: str = JOB) -> None:
    """Say that the operation `1` works on a job."""
    fields = {"id": "1", "kind": "restore", "job": job, "by": "test", "params": {}, "state": state}
    fields |= {"started_at": NOW, "seen_at": NOW, "process": process}
    put(
        workspace,
        JobDocuments(workspace.storage, job).operation.key,
        Operation.model_validate(fields).model_dump_json(),
    )


def ids(workspace: Workspace) -> list[str]:
    return [one.manifest.id for one in savepoints(workspace, JOB)]


def left(workspace: Workspace, name: str) -> list[str]:
    """Return what there is of a savepoint: of its files, and its record."""
    keys = [info.key for info in workspace.files.walk(savepoint_key(JOB, name))]
    return keys + [key for key in workspace.storage.list(f"control/{JOB}/savepoints") if name in key]


# -- lists -------------------------------------------------------------------------------------------------------------


def test_they_are_listed_newest_first(workspace: Workspace) -> None:
    for name in ("20260102", "20260101", "20260103"):
        made(workspace, name)
    made(workspace, "20260104", record={"state": "deleting"})
    workspace.files.write(f"{savepoint_checkpoint_key(JOB, '20260105')}/metadata", b"no manifest yet")
    assert ids(workspace) == ["20260103", "20260102", "20260101"]
    assert savepoints(workspace, "another_job") == []


def test_one_is_found_by_id_by_label_and_as_the_newest_verified(workspace: Workspace) -> None:
    made(workspace, "1", record={"label": "before the change"})
    made(workspace, "2")
    made(workspace, "3", "unverified")
    made(workspace, "4", "damaged")
    for word, name in (("1", "1"), ("4", "4"), ("before the change", "1"), (LATEST, "2")):
        assert find(workspace, JOB, word).manifest.id == name
    for word in ("5", "before", "../other/1", "1/checkpoint", "", ".."):
        with pytest.raises(StreamwardenError) as raised:
            find(workspace, JOB, word)
        assert raised.value.code == "SAVEPOINT_NOT_FOUND"


def test_without_a_verified_one_there_is_no_latest(workspace: Workspace) -> None:
    made(workspace, "1", "unverified")
    made(workspace, "2", "damaged")
    made(workspace, "3", record={"state": "deleting"})
    with pytest.raises(StreamwardenError, match="no verified savepoint") as raised:
        find(workspace, JOB, LATEST)
    assert f"savepoints verify {JOB} all` checks the unverified ones (1)" in raised.value.remedy


def test_of_two_with_one_label_the_newer_is_found(workspace: Workspace) -> None:
    made(workspace, "1", record={"label": "good"})
    made(workspace, "2", record={"label": "good"})
    assert find(workspace, JOB, "good").manifest.id == "2"


def test_one_that_was_copied_from_elsewhere_needs_no_record(workspace: Workspace) -> None:
    made(workspace, "1")
    workspace.storage.delete(record_document(workspace, JOB, "1").key)
    (found,) = savepoints(workspace, JOB)
    assert (found.verdict, found.record.state, found.record.by) == ("unverified", "complete", "test")
    label(workspace, JOB, "1", "brought here")
    assert find(workspace, JOB, "brought here").manifest.id == "1"
    assert housekeeping(workspace, JOB, RetentionSpec(), now=NOW)["removed_interrupted"] == []
    label(workspace, JOB, "1", "")
    made(workspace, "2")
    delete(workspace, JOB, "1")
    assert left(workspace, "1") == []


def test_what_lists_show_says_what_deleting_would_free(workspace: Workspace) -> None:
    made(workspace, "1")
    workspace.files.write("checkpoints/x", b"12345")
    workspace.files.copy("checkpoints/x", f"{savepoint_checkpoint_key(JOB, '1')}/shared")
    files = [FileEntry(path="metadata", size=1, sha256=""), FileEntry(path="shared", size=5, sha256="")]
    operators = [
        OperatorState(id=number, name="", partitions=4, stores=["default"], rows=rows, bytes=0, schema_sha256="")
        for number, rows in enumerate((3, 4))
    ]
    manifest_document(workspace, JOB, "1").write(manifest("1", files=files, operators=operators))
    said = describe(workspace, find(workspace, JOB, "1"))
    assert (said["bytes"], said["shared_bytes"], said["own_bytes"]) == (6, 5, 1)
    assert (said["rows"], said["partitions"], said["state"], said["origin"]) == (7, 4, "verified", "periodic")


def test_what_a_record_sums_up_is_not_parsed_again(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1", "2"):
        made(workspace, name)
        # As a label does, of a savepoint of an older version.
        use(workspace, find(workspace, JOB, name), "o")
    listed = [describe(workspace, one) for one in savepoints(workspace, JOB)]

    def parse(*_: object) -> None:
        raise AssertionError("parsed")

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "model_validate_json", parse)
        assert [describe(workspace, one) for one in savepoints(workspace, JOB)] == listed
        assert (find(workspace, JOB, LATEST).id, find(workspace, JOB, "1").id) == ("2", "1")
        housekeeping(workspace, JOB, RetentionSpec(), now=NOW)
    assert find(workspace, JOB, "1").manifest == manifest("1")


def test_a_summary_of_another_manifest_counts_for_nothing(workspace: Workspace) -> None:
    made(workspace, "1")
    use(workspace, find(workspace, JOB, "1"), "o")
    manifest_document(workspace, JOB, "1").write(manifest("1", batch=9))
    assert find(workspace, JOB, "1").summary.batch == 9
    put(workspace, manifest_document(workspace, JOB, "1").key, "")
    assert ids(workspace) == []
    with pytest.raises(StreamwardenError, match="SAVEPOINT_DAMAGED"):
        find(workspace, JOB, "1")


def test_where_no_file_has_two_names_no_folder_is_walked(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    made(workspace, "1")
    monkeypatch.setattr(workspace.files, "walk", lambda _: 1 / 0)
    assert describe(replace(workspace, s3=S3Location("bucket")), find(workspace, JOB, "1"))["own_bytes"] == 1


# -- protection and deletion -------------------------------------------------------------------------------------------


def test_the_newest_verified_one_goes_only_by_force(workspace: Workspace) -> None:
    made(workspace, "1")
    made(workspace, "2")
    made(workspace, "3", "unverified")
    with pytest.raises(StreamwardenError, match=r"SAVEPOINT_IN_USE.*newest verified"):
        delete(workspace, JOB, "2")
    with pytest.raises(StreamwardenError, match="newest verified"):
        delete(workspace, JOB, LATEST)
    delete(workspace, JOB, "1")
    delete(workspace, JOB, "3")
    delete(workspace, JOB, "2", force=True)
    assert ids(workspace) == []


def test_a_label_protects_until_it_is_taken_away(workspace: Workspace) -> None:
    made(workspace, "1")
    made(workspace, "2")
    label(workspace, JOB, "1", "good")
    with pytest.raises(StreamwardenError, match=r"SAVEPOINT_IN_USE.*'good'"):
        delete(workspace, JOB, "1")
    label(workspace, JOB, "good", "")
    delete(workspace, JOB, "1")
    made(workspace, "1")
    label(workspace, JOB, "1", "good")
    delete(workspace, JOB, "good", force=True)
    assert ids(workspace) == ["2"]


def test_a_label_that_another_gets_meanwhile_is_given_back(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(workspace, "1", record={"label": "before"})
    made(workspace, "2")
    update, raced = catalog._update, []

    def race(*args: Any) -> Record:
        if not raced:
            raced.append(True)
            label(workspace, JOB, "2", "good")
        return update(*args)

    monkeypatch.setattr(catalog, "_update", race)
    with pytest.raises(StreamwardenError, match="SAVEPOINT_LABEL_INVALID"):
        label(workspace, JOB, "1", "good")
    assert find(workspace, JOB, "good").id == "2"
    assert find(workspace, JOB, "1").record.label == "before"


def test_one_in_use_is_not_deleted_even_by_force(workspace: Workspace) -> None:
    made(workspace, "1")
    made(workspace, "2")
    found = find(workspace, JOB, "1")
    for operation in ("b", "a", "b"):
        use(workspace, found, operation)
    for force in (False, True):
        with pytest.raises(StreamwardenError, match="SAVEPOINT_IN_USE"):
            delete(workspace, JOB, "1", force=force)
    release(workspace, found, "a")
    release(workspace, found, "never used it")
    assert find(workspace, JOB, "1").record.in_use_by == ["b"]
    release(workspace, found, "b")
    delete(workspace, JOB, "1")
    with pytest.raises(StreamwardenError, match="SAVEPOINT_NOT_FOUND"):
        find(workspace, JOB, "1")


class Killed(BaseException):
    """As if the process were killed there."""


@pytest.mark.parametrize("at", ["manifest", "files", "record"])
def test_a_delete_that_is_killed_leaves_no_savepoint_and_is_finished_later(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    made(workspace, "1")
    made(workspace, "2")
    keys = {"manifest": manifest_document(workspace, JOB, "1").key, "record": record_document(workspace, JOB, "1").key}
    real_delete, real_tree = workspace.storage.delete, workspace.files.delete_tree

    def delete_document(key: str) -> None:
        if key == keys.get(at):
            raise Killed
        real_delete(key)

    def delete_tree(prefix: str) -> int:
        assert manifest_document(workspace, JOB, "1").read() is None, "its manifest goes first"
        if at == "files":
            raise Killed
        return real_tree(prefix)

    with monkeypatch.context() as patch:
        patch.setattr(workspace.storage, "delete", delete_document)
        patch.setattr(workspace.files, "delete_tree", delete_tree)
        with pytest.raises(Killed):
            delete(workspace, JOB, "1")
    assert ids(workspace) == ["2"]
    for word in ("1", "x"):
        with pytest.raises(StreamwardenError, match="SAVEPOINT_NOT_FOUND"):
            find(workspace, JOB, word)
    assert housekeeping(workspace, JOB, KEEP_ALL, now=NOW)["finished_deletes"] == ["1"]
    assert left(workspace, "1") == []
    assert not (workspace.root / savepoint_key(JOB, "1")).exists()


def test_one_that_is_being_deleted_can_be_neither_labelled_nor_used(workspace: Workspace) -> None:
    made(workspace, "1")
    found = find(workspace, JOB, "1")
    made(workspace, "1", record={"state": "deleting"})
    with pytest.raises(StreamwardenError, match="SAVEPOINT_NOT_FOUND"):
        use(workspace, found, "operation")
    with pytest.raises(StreamwardenError, match="SAVEPOINT_NOT_FOUND"):
        label(workspace, JOB, "1", "good")


def test_one_that_was_deleted_does_not_come_back_by_use(workspace: Workspace) -> None:
    made(workspace, "1")
    made(workspace, "2")
    found = find(workspace, JOB, "1")
    delete(workspace, JOB, "1")
    with pytest.raises(StreamwardenError, match="SAVEPOINT_NOT_FOUND"):
        use(workspace, found, "operation")
    release(workspace, found, "operation")
    assert left(workspace, "1") == []


@pytest.mark.parametrize("job", [JOB, "a_clone"])
@pytest.mark.parametrize(
    ("state", "process", "kept"),
    [
        ("running", current_process(), True),
        ("running", GONE, True),
        ("running", None, True),
        ("done", GONE, False),
        ("interrupted", GONE, False),
        (None, None, False),
    ],
)
def test_only_an_operation_that_may_go_on_keeps_what_it_uses(
    workspace: Workspace, job: str, state: str | None, process: ProcessRef | None, kept: bool
) -> None:
    made(workspace, "1", record={"in_use_by": ["1", "long ago"]})
    if state is not None:
        operation(workspace, state, process, job)
    housekeeping(workspace, JOB, KEEP_ALL, now=NOW)
    assert find(workspace, JOB, "1").record.in_use_by == (["1"] if kept else [])


# -- retention ---------------------------------------------------------------------------------------------------------


def test_of_each_origin_the_newest_are_kept(workspace: Workspace) -> None:
    for number in range(4):
        made(workspace, f"p{number}")
        made(workspace, f"r{number}", origin=Origin.PRE_RESTORE)
        made(workspace, f"m{number}", origin=Origin.MANUAL)
    made(workspace, "z")
    keep = RetentionSpec(periodic=KeepSpec(count=2), pre_restore=KeepSpec(count=1))
    assert housekeeping(workspace, JOB, keep, now=NOW)["expired"] == ["p0", "p1", "p2", "r0", "r1", "r2"]
    assert ids(workspace) == ["z", "r3", "p3", "m3", "m2", "m1", "m0"]
    assert housekeeping(workspace, JOB, keep, now=NOW)["expired"] == []


def test_old_ones_go_however_few_they_are(workspace: Workspace) -> None:
    for days in range(4):
        made(workspace, f"p{9 - days}", age=timedelta(days=days))
    keep = RetentionSpec(periodic=KeepSpec(age=timedelta(days=1)))
    assert housekeeping(workspace, JOB, keep, now=NOW)["expired"] == ["p6", "p7"]
    # Only the newest verified one outlives its time.
    assert housekeeping(workspace, JOB, keep, now=NOW + timedelta(days=9))["expired"] == ["p8"]
    assert ids(workspace) == ["p9"]


def test_damaged_ones_push_no_good_one_out(workspace: Workspace) -> None:
    made(workspace, "1")
    made(workspace, "2", "unverified")
    for number in range(3, 8):
        made(workspace, str(number), "damaged")
    keep = RetentionSpec(periodic=KeepSpec(count=2))
    assert housekeeping(workspace, JOB, keep, now=NOW)["expired"] == ["3", "4", "5"]


@dataclass(frozen=True)
class One:
    """A savepoint to be."""

    verdict: Verdict
    origin: Origin
    age: int
    labelled: bool
    used: bool


ONES = st.builds(
    One,
    verdict=st.sampled_from(["verified", "verified", "damaged", "unverified"]),
    origin=st.sampled_from(list(Origin)),
    age=st.integers(0, 10),
    labelled=st.integers(0, 5).map(lambda drawn: drawn == 0),
    used=st.integers(0, 5).map(lambda drawn: drawn == 0),
)
KEEPS = st.builds(
    KeepSpec,
    count=st.none() | st.integers(1, 3),
    age=st.none() | st.integers(1, 8).map(lambda days: timedelta(days=days)),
)
RETENTIONS = st.builds(
    RetentionSpec, manual=KEEPS, periodic=KEEPS, pre_rescale=KEEPS, pre_restore=KEEPS, pre_rollout=KEEPS, suspend=KEEPS
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ONES, max_size=9), RETENTIONS)
def test_retention_never_removes_what_is_needed_and_removes_all_else(ones: list[One], keep: RetentionSpec) -> None:
    ones = sorted(ones, key=lambda one: -one.age)
    names = [f"{number:02d}" for number in range(len(ones))]
    with TemporaryDirectory() as folder:
        workspace = opened(Path(folder))
        operation(workspace, "running", current_process())
        for name, one in zip(names, ones, strict=True):
            record = {"label": f"label {name}" if one.labelled else "", "in_use_by": ["1"] if one.used else []}
            made(workspace, name, one.verdict, origin=one.origin, age=timedelta(days=one.age), record=record)
        expired = housekeeping(workspace, JOB, keep, now=NOW)["expired"]
        assert ids(workspace) == sorted(set(names) - set(expired), reverse=True)
    verified = [name for name, one in zip(names, ones, strict=True) if one.verdict == "verified"]
    for number, (name, one) in enumerate(zip(names, ones, strict=True)):
        needed = one.labelled or one.used or name == max(verified, default=None)
        policy = keep.of(one.origin)
        newer = [
            other
            for other in ones[number + 1 :]
            if other.origin is one.origin and (other.verdict == "damaged") == (one.verdict == "damaged")
        ]
        beyond = (policy.count is not None and len(newer) >= policy.count) or (
            policy.age is not None and timedelta(days=one.age) > policy.age
        )
        assert (name in expired) == (beyond and not needed)


# -- what was interrupted ----------------------------------------------------------------------------------------------


def taking(workspace: Workspace, name: str, process: ProcessRef | None, *, seen: float = 0) -> None:
    workspace.files.write(f"{savepoint_checkpoint_key(JOB, name)}/metadata", b"x")
    at = utc_now() - timedelta(seconds=seen)
    record_document(workspace, JOB, name).write(
        Record(
            id=name,
            job=JOB,
            state="taking",
            origin=Origin.MANUAL,
            by="test",
            at=at,
            seen_at=at,
            process=process,
            done={"step": "copy"},
        )
    )


@pytest.mark.parametrize(
    ("process", "seen", "dead"),
    [
        (GONE, 0, True),
        (None, 0, True),
        (current_process(), 3600, False),
        (ELSEWHERE, 30, False),
        (ELSEWHERE, 90, True),
    ],
    ids=["died", "never said who", "lives, and is slow", "of another machine, heard of", "of another machine, silent"],
)
def test_the_files_of_a_take_go_when_its_process_is_gone(
    workspace: Workspace, process: ProcessRef | None, seen: float, dead: bool
) -> None:
    taking(workspace, "1", process, seen=seen)
    assert ids(workspace) == []
    for again in (True, False):
        assert housekeeping(workspace, JOB, KEEP_ALL)["removed_interrupted"] == (["1"] if dead and again else [])
        assert len(left(workspace, "1")) == (0 if dead else 2)


def test_a_take_that_was_killed_after_its_manifest_is_complete(workspace: Workspace) -> None:
    taking(workspace, "1", GONE)
    manifest_document(workspace, JOB, "1").write(manifest("1"))
    assert ids(workspace) == ["1"], "it exists when its manifest does"
    assert housekeeping(workspace, JOB, KEEP_ALL, now=NOW)["removed_interrupted"] == []
    record = find(workspace, JOB, "1").record
    assert (record.state, record.process, record.done) == ("complete", None, {})
    assert is_interrupted(record) is False


def _generations(workspace: Workspace, *numbers: int, current: int) -> Iterator[str]:
    for number in numbers:
        workspace.files.write(f"checkpoints/{JOB}/g{number:06d}/metadata", b"x")
        yield f"checkpoints/{JOB}/g{number:06d}"
    JobDocuments(workspace.storage, JOB).checkpoint.write(
        CheckpointRef(
            job=JOB, generation=current, path=f"checkpoints/{JOB}/g{current:06d}", since=NOW, reason="for the test"
        )
    )


@pytest.mark.parametrize("state", ["running", "done", "failed", "rolled back", "interrupted", None])
@pytest.mark.parametrize("process", [GONE, None], ids=["died", "let go"])
def test_old_checkpoints_go_only_when_no_operation_may_go_back_to_one(
    workspace: Workspace, state: str | None, process: ProcessRef | None
) -> None:
    paths = list(_generations(workspace, 1, 2, 3, current=2))
    documents = JobDocuments(workspace.storage, JOB)
    for generation in (1, 2, 3):
        documents.totals(generation).write(Totals(generation=generation))
    if state is not None:
        operation(workspace, state, process)
    removed = housekeeping(workspace, JOB, KEEP_ALL)["old_checkpoints"]
    assert removed == ([] if state == "running" else [paths[0], paths[2]])
    assert workspace.files.folders(f"checkpoints/{JOB}") == (
        ["g000001", "g000002", "g000003"] if state == "running" else ["g000002"]
    )
    counted = [generation for generation in (1, 2, 3) if documents.totals(generation).read()]
    assert counted == ([1, 2, 3] if state == "running" else [2])


def test_checkpoints_of_a_job_that_never_ran_are_left_alone(workspace: Workspace) -> None:
    workspace.files.write(f"checkpoints/{JOB}/g000001/metadata", b"x")
    assert housekeeping(workspace, JOB, KEEP_ALL)["old_checkpoints"] == []


def test_a_savepoint_outlives_the_checkpoint_that_it_shares_its_files_with(workspace: Workspace) -> None:
    list(_generations(workspace, 1, 2, current=2))
    made(workspace, "1")
    workspace.files.copy(f"checkpoints/{JOB}/g000001/metadata", f"{savepoint_checkpoint_key(JOB, '1')}/metadata")
    assert housekeeping(workspace, JOB, KEEP_ALL)["old_checkpoints"] == [f"checkpoints/{JOB}/g000001"]
    assert workspace.files.read(f"{savepoint_checkpoint_key(JOB, '1')}/metadata") == b"x"


def test_one_that_is_deleted_while_it_is_looked_through_stays_deleted(workspace: Workspace) -> None:
    made(workspace, "1")
    found = find(workspace, JOB, "1")
    delete(workspace, JOB, "1", force=True)
    assert verify(workspace, [found], by="test", state=False) == {}
    assert left(workspace, "1") == []


def test_looking_through_the_files_alone_finds_what_is_wrong_with_them(workspace: Workspace) -> None:
    made(workspace, "1", "unverified")
    content = [("metadata", b"x"), ("offsets/0", b"abc"), ("offsets/1", b"abc"), ("gone", b"")]
    files = [FileEntry(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest()) for path, data in content]
    manifest_document(workspace, JOB, "1").write(manifest("1", files=files))
    for path, data in (("offsets/0", b"abd"), ("offsets/1", b"ab"), ("more/.crc", b"")):
        workspace.files.write(f"{savepoint_checkpoint_key(JOB, '1')}/{path}", data)
    found = verify(workspace, [find(workspace, JOB, "1")], by="test", state=False)["1"]
    assert (found.verdict, find(workspace, JOB, "1").verdict) == ("damaged", "damaged")
    assert found.problems == [
        "gone: missing",
        "more/.crc: not in the manifest",
        "offsets/1: 2 bytes, not 3",
        "offsets/0: its SHA-256 is not the manifest's",
    ]


def test_an_outage_during_the_read_of_a_state_is_no_damage(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1", "2", "3"):
        made(workspace, name)
        counted = OperatorState(
            id=0, name="stateStoreSave", partitions=1, stores=[], rows=12, bytes=1, schema_sha256=""
        )
        manifest_document(workspace, JOB, name).write(manifest(name, operators=[counted]))
    away = {"error": "(Service: S3, Status Code: 503)", "code": "S3_THROTTLED"}
    answers: dict[str, Any] = {"1": away, "2": {"error": "Stream is corrupted", "code": "CHECKPOINT_DAMAGED"}}
    answers["3"] = {"rows": {"0": 12}, "keys": {}}
    monkeypatch.setattr(verify_module, "read_state", lambda *_, **__: answers)
    monkeypatch.setattr(verify_module, "_files", lambda *_: [])
    before = find(workspace, JOB, "1").record
    with pytest.raises(StreamwardenError, match="lamp 1: S3_THROTTLED") as raised:
        verify(workspace, savepoints(workspace, JOB), by="test")
    assert raised.value.code == "SAVEPOINT_VERIFY_FAILED" and raised.value.retryable
    assert find(workspace, JOB, "1").record == before
    assert [find(workspace, JOB, name).verdict for name in ("2", "3")] == ["damaged", "verified"]
    # Another version of Spark may read what one could not.
    answers["2"] = answers["3"]
    verify(workspace, [find(workspace, JOB, "2")], by="test")
    assert find(workspace, JOB, "2").verdict == "verified"
