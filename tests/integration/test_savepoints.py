"""Savepoints of real drivers: taken hot and with a stop, verified, restored, rolled back; and the traps they avoid."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.restore import restore
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.savepoints.with_stop import savepoint_and_stop
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.integration.conftest import BY, Place

pytestmark = pytest.mark.integration


def _batch(place: Place, number: int) -> None:
    def there(seen: Observation) -> bool:
        newest = seen.heartbeat.batch if seen.heartbeat else None
        return newest is not None and newest >= number

    place.wait("numbers", there, f"batch {number}")


def _idle(place: Place) -> None:
    place.wait("numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.idle), "an idle query")


def _files(place: Place) -> list[str]:
    return sorted(row["file"] for row in place.rows("numbers"))


def _take(place: Place) -> Manifest:
    return take(place.workspace, "numbers", origin=Origin.MANUAL, by=BY)


@pytest.fixture
def running(place: Place) -> Place:
    place.numbers()
    for name in ("a.txt", "b.txt"):
        place.land(name)
    deploy_job(place.workspace, "numbers", by=BY)
    _batch(place, 1)
    return place


@pytest.mark.long
@pytest.mark.ci
def test_rows_written_after_a_savepoint_are_replayed_once(running: Place) -> None:
    place = running
    made = _take(place)
    assert (made.batch, made.sinks[0].transaction) == (1, 1)
    assert observe(place.workspace, "numbers").phase is Phase.RUNNING, "a hot savepoint stops nothing"
    for name in ("c.txt", "d.txt"):
        place.land(name)
    _batch(place, 3)
    done = restore(place.workspace, "numbers", savepoint=made.id, by=BY)
    assert done.state == "done"
    assert [step.name for step in done.steps] == [
        "precheck",
        "stop",
        "pre-restore savepoint",
        "fresh checkpoint",
        "switch",
        "start",
        "wait for health",
    ]
    place.land("e.txt")
    _batch(place, 4)
    assert _files(place) == ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"]
    reference = place.documents("numbers").checkpoint.read()
    assert reference is not None and (reference.generation, reference.savepoint) == (2, made.id)
    before = catalog.savepoints(place.workspace, "numbers")[0]
    assert (before.manifest.origin, before.manifest.batch) == (Origin.PRE_RESTORE, 3)
    assert catalog.find(place.workspace, "numbers", made.id).record.in_use_by == []


@pytest.mark.long
def test_under_the_old_transaction_id_a_rewound_job_loses_rows(running: Place) -> None:
    """Proof of need: the same restore, but for the generation in the sinks' application id."""
    place = running
    made = _take(place)
    for name in ("c.txt", "d.txt"):
        place.land(name)
    _batch(place, 3)
    driver_control.stop(place.workspace, "numbers", by=BY)
    files, old = place.workspace.files, place.documents("numbers").checkpoint.read()
    assert old is not None
    for entry in made.files:
        source = f"{savepoint_checkpoint_key('numbers', made.id)}/{entry.path}"
        files.copy(source, f"checkpoints/numbers/naive/{entry.path}")
    from deltalake import DeltaTable

    DeltaTable(place.workspace.table("numbers")).restore(made.sinks[0].version)
    assert _files(place) == ["a.txt", "b.txt"]
    place.documents("numbers").checkpoint.write(old.model_copy(update={"path": "checkpoints/numbers/naive"}))
    driver_control.start(place.workspace, "numbers", by=BY)
    place.land("e.txt")
    _batch(place, 4)
    assert _files(place) == ["a.txt", "b.txt", "e.txt"], "batches 2 and 3 were passed over as known"


@pytest.mark.long
def test_a_savepoint_with_a_stop_in_mid_batch_leaves_no_row_behind_it(place: Place) -> None:
    place.numbers(options={"slow": 10.0})
    place.land("a.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    _batch(place, 0)
    for name in ("b.txt", "c.txt", "d.txt"):
        place.land(name)
    reference = place.documents("numbers").checkpoint.read()
    assert reference is not None
    checkpoint = CheckpointReader(place.workspace.storage, reference.path)
    while checkpoint.last_offset() != 1:
        time.sleep(0.02)
    made = savepoint_and_stop(place.workspace, "numbers", by=BY, note="for the test")
    assert checkpoint.last_offset() == checkpoint.last_commit() == made.batch
    assert made.origin is Origin.SUSPEND
    assert len(_files(place)) == made.batch + 1
    desired = place.documents("numbers").desired.read()
    assert desired is not None and desired.state == "suspended"
    assert made.sinks[0].transaction == made.batch
    place.numbers()
    restore(place.workspace, "numbers", savepoint=made.id, by=BY)
    # Not batch 3: Spark's file source may have noted a file for a batch that the stop came before; the next takes two.
    place.wait("numbers", lambda _: len(_files(place)) >= 4, "all files")
    assert _files(place) == ["a.txt", "b.txt", "c.txt", "d.txt"]


@pytest.mark.long
def test_an_unhealthy_restore_goes_back_by_itself(place: Place, tmp_path: Path) -> None:
    marker = tmp_path / "fail"
    place.numbers(options={"fail_while": str(marker)}, failures={"tolerable_consecutive": 0})
    for name in ("a.txt", "b.txt"):
        place.land(name)
    deploy_job(place.workspace, "numbers", by=BY)
    _batch(place, 1)
    made = _take(place)
    place.land("c.txt")
    _batch(place, 2)
    _idle(place)
    marker.touch()
    with pytest.raises(StreamwardenError, match="JOB_CODE_FAILED") as raised:
        restore(place.workspace, "numbers", savepoint=made.id, by=BY)
    assert raised.value.code == "RESTORE_UNHEALTHY"
    operation = place.documents("numbers").operation.read()
    assert operation is not None and operation.state == "rolled back"
    assert operation.error is not None and operation.error.code == "JOB_CODE_FAILED"
    reference = place.documents("numbers").checkpoint.read()
    assert reference is not None and (reference.generation, reference.highest) == (1, 2)
    marker.unlink()
    place.land("d.txt")
    _batch(place, 3)
    assert _files(place) == ["a.txt", "b.txt", "c.txt", "d.txt"]
    restore(place.workspace, "numbers", savepoint=made.id, by=BY)
    place.land("e.txt")
    _batch(place, 4)
    assert _files(place) == ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"]
    reference = place.documents("numbers").checkpoint.read()
    assert reference is not None and reference.generation == 3, "the number of the failed one does not return"


@pytest.mark.long
def test_a_clone_starts_with_a_copy_of_the_outputs(running: Place) -> None:
    place = running
    made = _take(place)
    place.land("c.txt")
    _batch(place, 2)
    place.job(
        "what_if",
        module="tests.integration.jobs.numbers",
        source={"kind": "files", "path": "landing", "max_files_per_batch": 1},
        sinks=[{"table": "what_if", "mode": "append"}],
    )
    with pytest.raises(StreamwardenError, match="RESTORE_OUTPUT_TAKEN"):
        place.job("what_if", sinks=[{"table": "numbers", "mode": "append"}])
        restore(place.workspace, "what_if", of="numbers", savepoint=made.id, by=BY)
    place.job("what_if", sinks=[{"table": "what_if", "mode": "append"}])
    # As docs/renaming.md has it for a job that is renamed, though its file is gone already.
    (place.config / "jobs" / "numbers.yaml").unlink()
    _command(place, "savepoints", "verify", "numbers", made.id)
    _command(place, "restore", "what_if", "--of", "numbers", "--savepoint", "latest")
    place.wait("what_if", lambda seen: bool(seen.heartbeat and (seen.heartbeat.batch or 0) >= 2), "batch 2")
    assert sorted(row["file"] for row in place.rows("what_if")) == ["a.txt", "b.txt", "c.txt"]
    assert _files(place) == ["a.txt", "b.txt", "c.txt"]
    place.land("d.txt")
    place.wait("what_if", lambda seen: bool(seen.heartbeat and (seen.heartbeat.batch or 0) >= 3), "batch 3")
    _batch(place, 3)
    assert _files(place) == sorted(row["file"] for row in place.rows("what_if"))
    # Once more: what it wrote in its first life is not there twice.
    restore(place.workspace, "what_if", of="numbers", savepoint=made.id, by=BY)
    place.wait("what_if", lambda seen: bool(seen.heartbeat and (seen.heartbeat.batch or 0) >= 3), "batch 3 again")
    assert _files(place) == sorted(row["file"] for row in place.rows("what_if"))

    assert "not described any more" in _command(place, "status")
    _command(place, "housekeeping")
    _command(place, "savepoint", "numbers")
    _command(place, "stop", "numbers")
    assert observe(place.workspace, "numbers").phase is Phase.STOPPED


def _command(place: Place, *words: str) -> str:
    done = CliRunner().invoke(
        app, list(words), env={"STREAMWARDEN_CONFIG": str(place.config), "STREAMWARDEN_PROFILE": "test"}
    )
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.long
def test_verification_names_what_is_damaged(running: Place) -> None:
    place = running
    first = _take(place)
    place.land("c.txt")
    _batch(place, 2)
    second = _take(place)
    folder = place.workspace.root / savepoint_checkpoint_key("numbers", second.id)
    (folder / "offsets" / "1").unlink()
    (folder / "commits" / "2").unlink()
    (folder / "commits" / "2").write_text("v1\n{}?")
    (folder / "stray").write_text("")
    chosen = catalog.savepoints(place.workspace, "numbers")
    found = verify(place.workspace, chosen, by=BY)
    assert found[first.id].verdict == "verified"
    assert found[second.id].verdict == "damaged"
    words = "\n".join(found[second.id].problems)
    assert "offsets/1: missing" in words and "commits/2: " in words and "stray: not in the manifest" in words
    assert catalog.find(place.workspace, "numbers", catalog.LATEST).manifest.id == first.id
    with pytest.raises(StreamwardenError, match="SAVEPOINT_DAMAGED"):
        restore(place.workspace, "numbers", savepoint=second.id, by=BY)
    assert observe(place.workspace, "numbers").phase is Phase.RUNNING, "refused before anything was stopped"


@pytest.mark.long
def test_source_files_that_are_gone_are_found_before_anything_stops(running: Place) -> None:
    place = running
    made = _take(place)
    place.land("c.txt")
    _batch(place, 2)
    (place.workspace.root / "landing" / "c.txt").unlink()
    with pytest.raises(StreamwardenError, match="RESTORE_SOURCE_GONE") as raised:
        restore(place.workspace, "numbers", savepoint=made.id, by=BY)
    assert "c.txt" in raised.value.what
    assert observe(place.workspace, "numbers").phase is Phase.RUNNING
    manifest = place.workspace.root / "savepoints" / "numbers" / made.id / "manifest.json"
    assert json.loads(manifest.read_text())["batch"] == 1
