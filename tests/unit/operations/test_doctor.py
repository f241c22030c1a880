"""`streamwarden doctor`: what is whole, what is not, and commands that exist. It writes nothing."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import shlex
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, Transaction, write_deltalake
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.formats.delta_fence import fence
from streamwarden.formats.delta_log import application_id
from streamwarden.model.gate import GateRecord, Trouble
from streamwarden.model.hosting import DriverHost, DriverStart
from streamwarden.model.progress import BatchProgress, Progress
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef
from streamwarden.operations.doctor import Finding, Verdict, examine, in_order
from streamwarden.operations.doctor.findings import broken
from streamwarden.operations.repair import repair
from streamwarden.quality.gate_state import gate_document
from streamwarden.runtime.launchers.hosts import host_document, start_document
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints import catalog
from streamwarden.savepoints.documents import record_document
from streamwarden.storage import Conflict, Entry, LocalStorage, S3Location
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.unit.cli.test_savepoints import JOB, run, taken, workspace
from tests.unit.operations.test_repair import job
from tests.unit.quality.gate_place import Place as GatePlace

__all__ = ["job", "workspace"]

pytestmark = pytest.mark.unit

TABLE = "trips"
NEWEST = 2
"""The newest batch of the fixture's checkpoint."""


def wrote(workspace: Workspace, batch: int, generation: int = 1, table: str = TABLE) -> None:
    write_deltalake(
        workspace.table(table),
        pa.table({"batch": [batch]}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(application_id(JOB, generation), batch)]),
    )


@pytest.fixture
def whole(workspace: Workspace, job: JobDocuments) -> Workspace:
    """A stopped job with all documents, three batches in its table, a savepoint of the last."""
    for batch in range(NEWEST + 1):
        wrote(workspace, batch)
        workspace.files.write(f"checkpoints/{JOB}/g000001/sources/0/{batch}", b"v1\n{}")
    # Anew: the fixture's savepoint is from before the table.
    (first,) = catalog.savepoints(workspace, JOB)
    catalog.delete(workspace, JOB, first.id, force=True)
    reported(job, *range(NEWEST + 1))
    taken("--note", "whole")
    return workspace


def reported(job: JobDocuments, *batches: int) -> None:
    done = [BatchProgress(batch=one, at=utc_now(), duration_ms=1, rows_in=1, rows_out=1) for one in batches]
    name = job.incarnations()[-1]
    job.progress(name).write(Progress(incarnation=name, at=utc_now(), last=done[-1], recent=done))


def parses(command: str) -> None:
    program, *words = shlex.split(command)
    # The rest of the command line is parsed before the help is shown.
    found = CliRunner().invoke(app, [*words, "--help"])
    assert program == "streamwarden" and found.exit_code == 0, (command, found.output)


def examined(workspace: Workspace, *jobs: str, deep: bool = False) -> list[Finding]:
    """Examine, and see that nothing was written and that every command exists."""
    before = content(workspace.root)
    found = examine(workspace, jobs, deep=deep)
    assert content(workspace.root) == before
    for one in found:
        for command in one.commands:
            parses(command)
        assert one.verdict is not Verdict.BROKEN or (one.code and (one.commands or one.remedy)), one
    return found


def content(root: Path) -> dict[str, str]:
    # The lock files of documents are empty, and say nothing.
    files = (path for path in root.rglob("*") if path.is_file() and ".locks" not in path.parts)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def wrong(found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.about, one.code) for one in found if one.verdict is Verdict.BROKEN]


def test_a_whole_place_is_whole(whole: Workspace) -> None:
    found = examined(whole)
    assert wrong(found) == [] and in_order(found) == []
    abouts = {one.about for one in found if one.job == JOB and one.verdict is Verdict.WHOLE}
    assert {"documents", "checkpoint", f"table {TABLE}", "tables", "savepoints", "driver"} <= abouts
    assert "whole  ingest_trips: checkpoint: checkpoints/ingest_trips/g000001: batch 2" in run("doctor")
    assert json.loads(run("doctor", JOB, "--json", "--deep"))["commands"] == []


def test_an_unknown_job_is_an_error(whole: Workspace) -> None:
    assert "[JOB_UNKNOWN]" in run("doctor", "nobody", code=2)


@pytest.mark.parametrize("name", ["desired.json", "checkpoint.json", "lease.json", "operation.json"])
def test_a_damaged_document_is_named_and_its_commands_mend_it(whole: Workspace, name: str) -> None:
    (whole.root / "control" / JOB / name).write_bytes(b"")
    found = examined(whole, JOB)
    assert wrong(found)[0] == ("documents", "DOCUMENT_INVALID")
    first = in_order(found)[0]
    assert first == f"streamwarden repair {JOB} --yes"
    assert f"control/{JOB}/{name}" in run("doctor", code=1)
    run(*shlex.split(first)[1:])
    assert wrong(examined(whole, JOB)) == []


def test_lost_control_documents_are_adopted(whole: Workspace, job: JobDocuments) -> None:
    before = job.checkpoint.read()
    lease = job.lease.read()
    shutil.rmtree(whole.root / "control" / JOB)
    found = examined(whole)
    assert in_order(found) == [f"streamwarden repair {JOB} --yes", f"streamwarden deploy {JOB}"]
    run("repair", JOB, "--yes")
    now, desired, leased = job.checkpoint.read(), job.desired.read(), job.lease.read()
    assert before is not None and now is not None and desired is not None and leased is not None and lease is not None
    assert (now.generation, now.path) == (before.generation, before.path) and now.highest > before.highest
    assert desired.state == "suspended" and desired.spec == whole.job(JOB)
    assert leased.released and leased.epoch > lease.epoch
    (kept,) = catalog.savepoints(whole, JOB)
    assert kept.record.label == catalog.LOST, "retention removes none: a lost label may have protected it"
    assert wrong(examined(whole)) == []
    assert repair(whole, JOB, by="test") == []


def test_of_several_generations_the_tables_show_which_ran_last(whole: Workspace, job: JobDocuments) -> None:
    second = CheckpointRef(
        job=JOB, generation=2, path=f"checkpoints/{JOB}/g000002", since=utc_now(), reason="", highest=2
    )
    for info in list(whole.files.walk(f"checkpoints/{JOB}/g000001")):
        whole.files.copy(info.key, info.key.replace("g000001", "g000002"))
    fence(whole, TABLE, second)
    shutil.rmtree(whole.root / "control" / JOB)
    # The newest commit is a fence: which tables are still to be put back, nobody knows.
    found = examined(whole, JOB)
    assert wrong(found)[0] == ("documents", "REPAIR_IMPOSSIBLE")
    (savepoint,) = catalog.savepoints(whole, JOB)
    assert in_order(found) == [f"streamwarden restore {JOB} --savepoint {savepoint.id}"]
    wrote(whole, NEWEST + 1, generation=2)
    assert in_order(examined(whole, JOB))[0] == f"streamwarden repair {JOB} --yes"
    repair(whole, JOB, by="test")
    now = job.checkpoint.read()
    assert now is not None and (now.generation, now.highest) == (2, 3)


def test_a_table_that_only_one_generation_has_reached_shows_nothing(whole: Workspace) -> None:
    wrote(whole, 0, table="trips_quarantine")
    (whole.root / "checkpoints" / JOB / "g000002").mkdir()
    wrote(whole, 1, generation=2)
    shutil.rmtree(whole.root / "control" / JOB)
    assert wrong(examined(whole, JOB))[0] == ("documents", "REPAIR_IMPOSSIBLE")


def test_without_records_a_damaged_document_is_moved_away(whole: Workspace, job: JobDocuments) -> None:
    for name in ("checkpoint.json", "operation.json"):
        (whole.root / "control" / JOB / name).write_bytes(b"")
    (found, *_) = [one for one in examined(whole, JOB) if one.verdict is Verdict.BROKEN]
    assert found.code == "REPAIR_IMPOSSIBLE" and f"Move the folder control/{JOB} away" in found.remedy
    (whole.root / "control" / JOB).rename(whole.root / "away")
    assert in_order(examined(whole, JOB))[0] == f"streamwarden repair {JOB} --yes"


def test_a_rescale_that_came_after_the_newest_savepoint_is_kept(whole: Workspace, job: JobDocuments) -> None:
    planned = json.dumps({"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": "7"}})
    for batch in range(NEWEST + 1):
        source = json.dumps({"logOffset": batch})
        whole.files.write(f"checkpoints/{JOB}/g000001/offsets/{batch}", f"v1\n{planned}\n{source}".encode())
    whole.files.write(f"checkpoints/{JOB}/g000001/state/0/_metadata/metadata", b"v1\n{}")
    shutil.rmtree(whole.root / "control" / JOB)
    repair(whole, JOB, by="test")
    desired, parallelism = job.desired.read(), job.parallelism.read()
    assert desired is not None and desired.spec.state.partitions == 7
    assert parallelism is not None and parallelism.now.partitions == 7, "so that the next deploy is no rescale"


def unlinked(workspace: Workspace) -> None:
    """Give a savepoint's files bytes of their own: they are hard links of the checkpoint's."""
    shutil.copytree(workspace.root / "savepoints", workspace.root / "copied")
    shutil.rmtree(workspace.root / "savepoints")
    (workspace.root / "copied").rename(workspace.root / "savepoints")


def _checkpoint_cut(workspace: Workspace) -> None:
    (workspace.root / f"checkpoints/{JOB}/g000001/offsets/{NEWEST}").write_bytes(b"v1")


def _checkpoint_gone(workspace: Workspace) -> None:
    shutil.rmtree(workspace.root / f"checkpoints/{JOB}/g000001")


def _table_behind(workspace: Workspace) -> None:
    shutil.rmtree(workspace.root / "tables" / TABLE)
    for batch in range(NEWEST):
        wrote(workspace, batch)


def _table_ahead(workspace: Workspace) -> None:
    wrote(workspace, NEWEST + 1)


@pytest.mark.parametrize(
    ("damage", "expected", "restores"),
    [
        (_checkpoint_cut, ("checkpoint", "CHECKPOINT_DAMAGED"), True),
        (_checkpoint_gone, ("tables", "CHECKPOINT_BEHIND"), True),
        (_table_ahead, ("tables", "CHECKPOINT_BEHIND"), True),
        # The savepoint is of the newest batch: the older copy of the table does not have it.
        (_table_behind, ("tables", "OUTPUT_BEHIND"), False),
    ],
)
def test_an_older_copy_is_named_with_the_savepoint_to_restore(
    whole: Workspace, damage: Callable[[Workspace], None], expected: tuple[str, str], restores: bool
) -> None:
    (savepoint,) = catalog.savepoints(whole, JOB)
    unlinked(whole)
    damage(whole)
    found = examined(whole, JOB)
    assert expected in wrong(found)
    restore = f"streamwarden restore {JOB} --savepoint {savepoint.id}"
    assert (restore in in_order(found)) == restores
    if not restores:
        assert (f"savepoint {savepoint.id}", "RESTORE_OUTPUT_GONE") in wrong(found)
        assert in_order(found) == [f"streamwarden savepoints delete {JOB} {savepoint.id} --force"]
        run(*shlex.split(in_order(found)[0])[1:])
        assert catalog.savepoints(whole, JOB) == []


def test_a_table_that_is_gone_and_a_table_with_a_damaged_log(whole: Workspace, job: JobDocuments) -> None:
    log = whole.root / "tables" / TABLE / "_delta_log"
    newest = log / f"{NEWEST:020}.json"
    kept = newest.read_bytes()
    newest.write_bytes(b"")
    assert (f"table {TABLE}", "TABLE_DAMAGED") in wrong(examined(whole, JOB))
    newest.write_bytes(kept)
    job.checkpoint.update(lambda was: was.model_copy(update={"tables": [TABLE]}))  # type: ignore[union-attr]
    shutil.rmtree(whole.root / "tables" / TABLE)
    found = examined(whole, JOB)
    assert (f"table {TABLE}", "OUTPUT_GONE") in wrong(found)
    assert f"streamwarden restore {JOB} --outputs leave" in in_order(found)


def test_a_lost_data_file_is_found_by_a_deep_look(whole: Workspace) -> None:
    next((whole.root / "tables" / TABLE).glob("*.parquet")).unlink()
    assert wrong(examined(whole, JOB)) == []
    assert wrong(examined(whole, JOB, deep=True)) == [(f"table {TABLE}", "OUTPUT_DATA_GONE")]


def test_damaged_savepoints_are_named_and_never_chosen(whole: Workspace) -> None:
    second, third = taken()["id"], taken()["id"]
    folder = whole.root / "savepoints" / JOB
    (folder / third / "checkpoint" / "metadata").unlink()
    changed = folder / second / "checkpoint" / "metadata"
    data = changed.read_bytes()
    changed.unlink()
    changed.write_bytes(data[::-1])
    assert wrong(examined(whole, JOB)) == [(f"savepoint {third}", "SAVEPOINT_DAMAGED")]
    found = examined(whole, JOB, deep=True)
    assert wrong(found) == [(f"savepoint {one}", "SAVEPOINT_DAMAGED") for one in (third, second)]
    for command in in_order(found):
        run(*shlex.split(command)[1:])
    assert wrong(examined(whole, JOB, deep=True)) == []


def test_an_interrupted_operation_is_repeated(whole: Workspace, job: JobDocuments) -> None:
    for kind, params, expected in (
        ("rescale", {}, f"streamwarden rescale {JOB} --resume"),
        ("rollout", {}, f"streamwarden deploy {JOB}"),
        (
            "restore",
            {"savepoint": "a", "of": None, "outputs": "rewind", "suspended": True, "reason": "it's late"},
            f"streamwarden restore {JOB} --savepoint a --outputs rewind --suspended --reason 'it'\"'\"'s late'",
        ),
    ):
        update: dict[str, Any] = {"kind": kind, "params": params, "state": "running", "process": None}
        job.operation.update(lambda was, update=update: was.model_copy(update=update))  # type: ignore[misc,union-attr]
        found = examined(whole, JOB)
        assert wrong(found) == [("operation", "OPERATION_UNFINISHED")] and in_order(found) == [expected]


def test_a_dead_driver_is_deployed_again(whole: Workspace, job: JobDocuments) -> None:
    job.desired.update(lambda was: was.model_copy(update={"state": "running"}))  # type: ignore[union-attr]
    job.exit(job.incarnations()[-1]).delete()
    found = examined(whole, JOB)
    assert wrong(found) == [("driver", "DRIVER_DIED")]
    assert in_order(found)[-1] == f"streamwarden logs {JOB} --source spark"
    assert f"streamwarden deploy {JOB}" in in_order(found)
    unlinked(whole)
    _checkpoint_cut(whole)
    (driver,) = [one for one in examined(whole, JOB) if one.about == "driver"]
    assert driver.commands == ()


def test_leftovers_are_a_note(whole: Workspace) -> None:
    folder = whole.scratch_dir(JOB, "gone")
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    lives = whole.scratch_dir(JOB, "lives")
    lives.mkdir(parents=True)
    with (lives / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (one,) = catalog.savepoints(whole, JOB)
        interrupted = one.record.model_copy(update={"id": "i", "state": "taking", "process": None})
        record_document(whole, JOB, "i").write(interrupted)
        found = [one for one in examined(whole, JOB) if one.verdict is Verdict.NOTE]
        assert [one.commands for one in found] == [(f"streamwarden housekeeping {JOB}",)] * 2
        assert "gone" in found[0].what and "lives" not in found[0].what and found[1].what.endswith(": i")
        run("housekeeping", JOB)
        assert not [one for one in examined(whole, JOB) if one.verdict is Verdict.NOTE]


def test_documents_of_a_later_version_are_named(whole: Workspace, job: JobDocuments) -> None:
    name = job.incarnations()[-1]
    versions = {"versions": {"streamwarden": "99.0.1"}}
    job.heartbeat(name).update(lambda was: was.model_copy(update=versions))  # type: ignore[union-attr]
    (found,) = [one for one in examined(whole, JOB) if one.verdict is Verdict.NOTE]
    assert "Streamwarden 99.0.1 wrote them" in found.what


def test_driver_hosts(whole: Workspace) -> None:
    (whole.config / "profiles" / "test.yaml").write_text(
        yaml.safe_dump({"name": "test", "root": "root", "launcher": "host"})
    )
    place = open_workspace("test", config=whole.config)
    assert in_order(examined(place)) == ["streamwarden host"]
    now = utc_now()
    host_document(place, "a").write(DriverHost(name="a", process=current_process(), since=now, at=now))
    assert wrong(examined(place)) == []
    start_document(place, "i").write(DriverStart(job=JOB, incarnation="i", at=now - timedelta(minutes=2)))
    found = examined(place)
    assert wrong(found) == [("driver hosts", "DRIVER_DID_NOT_START")] and "no host took it" in str(found)


@pytest.fixture
def gated(tmp_path: Path) -> GatePlace:
    place = GatePlace(tmp_path)
    place.write(1, 2)
    place.decide()
    place.write(3, hour=1)
    place.decide()
    return place


def about_windows(place: GatePlace, *, deep: bool = False) -> Finding:
    (found,) = [one for one in examined(place.workspace, deep=deep) if one.about == "published windows"]
    return found


def test_published_versions_stand_to_their_table(gated: GatePlace) -> None:
    assert about_windows(gated, deep=True).verdict is Verdict.WHOLE
    root = gated.workspace.root
    newest = root / "tables/windows/_delta_log/00000000000000000001.json"
    kept = newest.read_bytes()
    newest.unlink()
    found = about_windows(gated)
    assert (found.code, found.commands) == ("PUBLISHED_TABLE_REPLACED", ("streamwarden gate check windows --anew",))
    newest.write_bytes(kept)
    (root / "published/windows/_delta_log/00000000000000000001.json").write_bytes(b"{")
    found = about_windows(gated)
    assert (found.code, found.commands) == ("PUBLISHED_LOG_DAMAGED", ("streamwarden gate repair windows",))
    run(*shlex.split(found.commands[0])[1:], "--root", str(root), "--profile", "local")
    assert about_windows(gated).verdict is Verdict.WHOLE
    for path in (root / "tables/windows").glob("*.parquet"):
        path.unlink()
    assert about_windows(gated, deep=True).code == "PUBLISHED_FILES_GONE"


def test_the_gates_document(gated: GatePlace) -> None:
    path = gated.workspace.root / "gate" / "windows.json"
    path.write_bytes(b"")
    found = about_windows(gated)
    assert (found.code, found.commands) == ("DOCUMENT_INVALID", ("streamwarden gate repair windows",))
    place = ("--root", str(gated.workspace.root), "--profile", "local")
    assert "removed the damaged gate/windows.json" in run(*shlex.split(found.commands[0])[1:], *place)
    assert about_windows(gated).verdict is Verdict.WHOLE
    gated.write(300, hour=2)
    gated.decide()
    found = about_windows(gated)
    assert found.verdict is Verdict.NOTE and "held since" in found.what
    trouble = Trouble(since=utc_now(), at=utc_now(), code="GATE_LOG_GONE", what="version 1")
    gate_document(gated.workspace, "windows").write(GateRecord(table="windows", trouble=trouble))
    found = about_windows(gated)
    assert (found.code, found.commands) == ("GATE_LOG_GONE", ("streamwarden gate check windows --anew",))


class Careless(LocalStorage):
    """A store that ignores the conditions of writes."""

    def create(self, key: str, data: bytes) -> str:
        return self.write(key, data)

    def replace(self, key: str, data: bytes, etag: str) -> str:
        return self.write(key, data)


class Careful(LocalStorage):
    """Refuses without a word what must be refused, and never writes."""

    def write(self, key: str, data: bytes) -> str:
        raise AssertionError(key)

    def create(self, key: str, data: bytes) -> str:
        assert self.read(key) is not None
        raise Conflict(key)

    def replace(self, key: str, data: bytes, etag: str) -> str:
        found = self.read(key)
        assert isinstance(found, Entry) and found.etag != etag
        raise Conflict(key)


@pytest.mark.parametrize(("store", "held"), [(Careless, False), (Careful, True)])
def test_a_store_without_conditional_writes_is_found(whole: Workspace, store: type[LocalStorage], held: bool) -> None:
    place = dataclasses.replace(whole, s3=S3Location("bucket"), storage=store(whole.root))
    before = content(whole.root)
    found = examine(place, [JOB])[0]
    assert found.verdict is (Verdict.WHOLE if held else Verdict.BROKEN), found
    assert ("conditional writes hold" in found.what) == held
    # A careless store has got the same bytes once more.
    assert content(whole.root) == before


def test_commands_come_in_the_order_in_which_they_are_needed() -> None:
    def one(*commands: str) -> Finding:
        return broken("a", "x", "DRIVER_DIED", "w", commands)

    found = [
        one("streamwarden repair a --yes", "streamwarden deploy a", "streamwarden deploy b"),
        one("streamwarden restore a --savepoint s"),
        one("streamwarden gate check t --anew", "streamwarden savepoints delete a x --force"),
        one("streamwarden restore a --savepoint s"),
    ]
    assert in_order(found) == [
        "streamwarden repair a --yes",
        "streamwarden savepoints delete a x --force",
        "streamwarden restore a --savepoint s",
        "streamwarden deploy b",
        "streamwarden gate check t --anew",
    ]
