"""Files of a checkpoint and of Delta logs damaged under a stopped job: each is named, and a restore brings it back."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from streamwarden.driver.logs import RecordContext
from streamwarden.driver.runner import Driver
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.savepoint import Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.restore import restore
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.store.ids import new_id
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.integration.conftest import BY, REPOSITORY, Place

pytestmark = pytest.mark.integration

JOB = "numbers"
CHECKPOINT = f"checkpoints/{JOB}/g000001"
NEWEST = 3
"""The newest batch of the stopped job; its savepoint is of batch 1, and batch N wrote version N + 1 of the table."""

Damage = Callable[[Path], None]


def _empty(path: Path) -> None:
    path.write_bytes(b"")
    _forget_checksum(path)


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    _forget_checksum(path)


def _remove(path: Path) -> None:
    path.unlink()
    _forget_checksum(path)


def _forget_checksum(path: Path) -> None:
    # Hadoop's: it lies beside, and was written no less in vain.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _commit(version: int) -> str:
    return f"tables/numbers/_delta_log/{version:020}.json"


def _committed(place: Place, batch: int) -> None:
    def reached(seen: Observation) -> bool:
        assert seen.phase.alive, seen.error
        return bool(seen.heartbeat and (seen.heartbeat.batch or -1) >= batch)

    place.wait(JOB, reached, f"batch {batch}", timeout=400)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, str]]:
    """A job that was stopped after its fourth batch, and its verified savepoint of the second."""
    folder = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        place = Place(folder)
        place.numbers(resources={"cores": 1, "memory": "512m"}, failures={"tolerable_consecutive": 0})
        for name in ("a.txt", "b.txt"):
            place.land(name)
        deploy_job(place.workspace, JOB, by=BY)
        try:
            _committed(place, 1)
            made = take(place.workspace, JOB, origin=Origin.MANUAL, by=BY)
            for name in ("c.txt", "d.txt"):
                place.land(name)
            _committed(place, NEWEST)
            assert driver_control.stop(place.workspace, JOB, by=BY).phase is Phase.STOPPED
        finally:
            place.kill_all()
        found = catalog.find(place.workspace, JOB, made.id)
        assert verify(place.workspace, [found], by=BY, state=False)[made.id].verdict == "verified"
        # By bytes: the savepoint's files are hard links of the checkpoint's, and must not be damaged with it.
        shutil.copytree(place.workspace.root, folder / "kept")
        yield place, made.id


@pytest.fixture
def stopped(ran: tuple[Place, str]) -> Iterator[Place]:
    """The job as it was stopped, in the same place: a file source's log names its files by absolute paths."""
    place = ran[0]
    root = place.workspace.root
    shutil.rmtree(root)
    shutil.copytree(root.parent / "kept", root)
    yield place
    place.kill_all()
    for log in root.glob("logs/*/*/driver.log"):
        sys.stdout.write(f"--- {log}\n{log.read_text()[-2000:]}\n")


DAMAGED: list[tuple[str, Damage, str]] = [
    *[(f"{CHECKPOINT}/offsets/{NEWEST}", damage, "CHECKPOINT_DAMAGED") for damage in (_empty, _cut, _remove)],
    *[(f"{CHECKPOINT}/offsets/{NEWEST - 1}", damage, "CHECKPOINT_DAMAGED") for damage in (_empty, _remove)],
    *[(f"{CHECKPOINT}/commits/{NEWEST}", damage, "CHECKPOINT_DAMAGED") for damage in (_empty, _cut)],
    *[(f"{CHECKPOINT}/metadata", damage, "CHECKPOINT_DAMAGED") for damage in (_empty, _remove)],
    *[(f"{CHECKPOINT}/sources/0/{NEWEST}", damage, "CHECKPOINT_DAMAGED") for damage in (_empty, _cut, _remove)],
    *[(_commit(NEWEST + 1), damage, "TABLE_DAMAGED") for damage in (_empty, _cut, _remove)],
    *[(_commit(NEWEST), damage, "TABLE_DAMAGED") for damage in (_empty, _remove)],
]
IDS = [f"{'/'.join(name.split('/')[-2:])}{damage.__name__}" for name, damage, _ in DAMAGED]


@pytest.mark.parametrize(("name", "damage", "code"), DAMAGED, ids=IDS)
def test_a_driver_names_the_damage_before_it_starts_spark(
    stopped: Place, ran: tuple[Place, str], monkeypatch: pytest.MonkeyPatch, name: str, damage: Damage, code: str
) -> None:
    """Without a process of its own: a driver that comes as far as Spark would fail this test."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("streamwarden.driver.runner.start_session", lambda *_: pytest.fail("Spark was started"))
    damage(stopped.workspace.root / name)
    documents, incarnation = stopped.documents(JOB), new_id()
    documents.desired.update(lambda was: was.model_copy(update={"state": "running"}))  # type: ignore[union-attr]
    assert Driver(stopped.workspace, JOB, incarnation, RecordContext(JOB, incarnation)).run() == 1
    ended = documents.exit(incarnation).read()
    assert ended is not None and ended.error is not None, ended
    assert (ended.error.code, ended.error.retryable) == (code, False), ended.error
    assert name.removeprefix(f"{CHECKPOINT}/") in ended.error.what
    assert f"`streamwarden restore {JOB} --savepoint {ran[1]}`" in ended.error.remedy


def _comes_back(place: Place, savepoint: str) -> None:
    """Do what the error says, and see that what is in the table then is what a batch would have put there."""
    done = restore(place.workspace, JOB, savepoint=savepoint, by=BY)
    assert done.state == "done", done.error
    place.land("e.txt")
    _committed(place, NEWEST + 1)
    files = sorted(row["file"] for row in place.rows("numbers"))
    assert files == ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"]


@pytest.mark.long
def test_a_restore_brings_a_job_back_over_a_damaged_checkpoint_and_a_damaged_table(
    stopped: Place, ran: tuple[Place, str]
) -> None:
    for name in (f"{CHECKPOINT}/offsets/{NEWEST}", f"{CHECKPOINT}/sources/0/{NEWEST}", f"{CHECKPOINT}/metadata"):
        _empty(stopped.workspace.root / name)
    _cut(stopped.workspace.root / _commit(NEWEST + 1))
    _comes_back(stopped, ran[1])
    operation = stopped.documents(JOB).operation.read()
    assert operation is not None
    steps = {step.name: step.detail for step in operation.steps}
    assert steps["pre-restore savepoint"].startswith("none: CHECKPOINT_DAMAGED: ")
    assert steps["cut the log"] == f"numbers: from version {NEWEST + 1} on, which is damaged"


@pytest.mark.long
@pytest.mark.parametrize(("name", "damage", "code"), DAMAGED, ids=IDS)
def test_a_restore_brings_a_job_back_over_each_damage(
    stopped: Place, ran: tuple[Place, str], name: str, damage: Damage, code: str
) -> None:
    damage(stopped.workspace.root / name)
    _comes_back(stopped, ran[1])


def _gone(place: Place) -> None:
    shutil.rmtree(place.workspace.root / "tables" / "numbers")


def test_a_driver_names_an_output_that_is_gone(stopped: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta would create it anew, and the rows that the checkpoint counts as written would be in no table."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("streamwarden.driver.runner.start_session", lambda *_: pytest.fail("Spark was started"))
    _gone(stopped)
    documents, incarnation = stopped.documents(JOB), new_id()
    documents.desired.update(lambda was: was.model_copy(update={"state": "running"}))  # type: ignore[union-attr]
    assert Driver(stopped.workspace, JOB, incarnation, RecordContext(JOB, incarnation)).run() == 1
    ended = documents.exit(incarnation).read()
    assert ended is not None and ended.error is not None, ended
    assert (ended.error.code, ended.error.retryable) == ("OUTPUT_GONE", False), ended.error


@pytest.mark.long
def test_a_job_whose_output_is_gone_continues_with_an_empty_one(stopped: Place, ran: tuple[Place, str]) -> None:
    _gone(stopped)
    done = restore(stopped.workspace, JOB, savepoint=ran[1], outputs="leave", by=BY)
    assert done.state == "done", done.error
    stopped.land("e.txt")
    _committed(stopped, NEWEST + 1)
    assert sorted(row["file"] for row in stopped.rows("numbers")) == ["c.txt", "d.txt", "e.txt"]


@pytest.mark.long
def test_rows_that_another_program_deletes_are_told_at_the_next_start(stopped: Place) -> None:
    DeltaTable(stopped.workspace.table("numbers")).delete("file = 'a.txt'")
    stopped.land("e.txt")
    deploy_job(stopped.workspace, JOB, by=BY)
    _committed(stopped, NEWEST + 1)
    heartbeat = stopped.documents(JOB).heartbeat(observe(stopped.workspace, JOB).incarnation or "").read()
    assert heartbeat is not None
    assert heartbeat.notes == [
        f"table numbers: version {NEWEST + 2}, by another writer, deleted or updated rows (DELETE); the job does not"
        " write these rows again"
    ]


@pytest.mark.long
def test_a_damaged_table_that_another_job_has_read_comes_back_with_its_reader(place: Place) -> None:
    small = {"cores": 1, "memory": "512m"}
    place.numbers(resources=small)
    place.job("numbers", sinks=[{"table": "numbers", "mode": "append", "keys": ["file"]}])
    place.job(
        "sizes",
        module="tests.integration.jobs.sizes",
        source={"kind": "delta", "table": "numbers"},
        sinks=[{"table": "sizes", "mode": "upsert", "keys": ["bytes"]}],
        resources=small,
    )

    def counted(files: int) -> None:
        def reached(seen: Observation) -> bool:
            assert seen.phase.alive, seen.error
            committed = seen.heartbeat is not None and seen.heartbeat.batch is not None
            there = committed and DeltaTable.is_deltatable(place.workspace.table("sizes"))
            return there and sum(row["files"] for row in place.rows("sizes")) == files

        place.wait("sizes", reached, f"{files} files counted", timeout=400)

    place.land("a.txt")
    place.land("b.txt", b"xx")
    deploy_job(place.workspace, JOB, by=BY)
    _committed(place, 1)
    deploy_job(place.workspace, "sizes", by=BY)
    counted(2)
    made = {job: take(place.workspace, job, origin=Origin.MANUAL, by=BY).id for job in (JOB, "sizes")}
    for job, savepoint in made.items():
        verify(place.workspace, [catalog.find(place.workspace, job, savepoint)], by=BY, state=False)
    place.land("c.txt", b"xx")
    place.land("d.txt", b"xxx")
    counted(4)
    for job in ("sizes", JOB):
        assert driver_control.stop(place.workspace, job, by=BY).phase is Phase.STOPPED
    _empty(place.workspace.root / _commit(NEWEST + 1))

    with pytest.raises(StreamwardenError) as refused:
        restore(place.workspace, JOB, savepoint=made[JOB], by=BY)
    assert refused.value.code == "RESTORE_BREAKS_READERS"
    commands = re.findall(r"`streamwarden (.*?)`", refused.value.remedy)
    assert commands == [
        f"restore sizes --savepoint {made['sizes']} --suspended",
        f"restore numbers --savepoint {made[JOB]}",
        "deploy sizes",
    ]

    done = restore(place.workspace, "sizes", savepoint=made["sizes"], suspended=True, by=BY)
    assert done.state == "done" and observe(place.workspace, "sizes").phase is Phase.STOPPED
    assert restore(place.workspace, JOB, savepoint=made[JOB], by=BY).state == "done"
    place.land("e.txt")
    _committed(place, NEWEST + 1)
    deploy_job(place.workspace, "sizes", by=BY)
    counted(5)
    assert {row["bytes"]: row["files"] for row in place.rows("sizes")} == {1: 2, 2: 2, 3: 1}
    assert sorted(row["file"] for row in place.rows("numbers")) == ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"]

    # What counts on the removed version is no longer a place to start from: the reader's pre-restore savepoint.
    after = [one for one in catalog.savepoints(place.workspace, "sizes") if one.manifest.origin is Origin.PRE_RESTORE]
    assert [one.verdict for one in after] == ["damaged"]
    with pytest.raises(StreamwardenError, match="numbers was cut off at version 4") as refused:
        restore(place.workspace, "sizes", savepoint=after[0].manifest.id, by=BY)
    assert refused.value.code == "SAVEPOINT_DAMAGED"


@pytest.mark.long
def test_a_commit_that_is_missing_is_a_batch_that_is_finished(stopped: Place) -> None:
    _remove(stopped.workspace.root / CHECKPOINT / "commits" / str(NEWEST))
    assert CheckpointReader(stopped.workspace.storage, CHECKPOINT).last_commit() == NEWEST - 1
    stopped.land("e.txt")
    deploy_job(stopped.workspace, JOB, by=BY)
    _committed(stopped, NEWEST + 1)
    files = sorted(row["file"] for row in stopped.rows("numbers"))
    assert files == ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"]
