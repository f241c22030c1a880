"""Savepoints' DAGs and operators, with drivers that are stand-ins: of a stateless job, so no JVM is needed."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
    ParamValidationError,
)

from streamwarden.airflow.describe import periodic_savepoints
from streamwarden.airflow.form_options import chosen_savepoint, offered_savepoints
from streamwarden.airflow.operators import savepoint as saving
from streamwarden.airflow.operators.ensure_supervised import EnsureSupervisedAfterSavepointOperator
from streamwarden.airflow.operators.housekeeping import HousekeepingOperator
from streamwarden.airflow.operators.savepoint import PeriodicSavepointOperator, SavepointOperator
from streamwarden.airflow.operators.verify import VerifyOperator
from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.model.operation import OperationState
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.operation_lock import begin
from streamwarden.savepoints import catalog, with_stop
from streamwarden.savepoints import take as taking
from streamwarden.savepoints.schedule import reason_to_skip
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import savepoint_checkpoint_key, savepoint_key
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase
from tests.airflow.conftest import REPOSITORY, Place, Run
from tests.airflow.test_dags import load
from tests.batches import made_batch

pytestmark = pytest.mark.airflow

DAGS = REPOSITORY / "dags"


def states(run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def taken(place: Place, origin: Origin = Origin.MANUAL) -> Manifest:
    return take(place.workspace, "lamp", origin=origin, by="test")


def damage(place: Place, made: Manifest, name: str = "offsets/0") -> None:
    path = place.workspace.root / savepoint_checkpoint_key("lamp", made.id) / name
    # A new file: the old one is shared with the checkpoint.
    path.unlink()
    path.write_text("something else")


def operator(kind: Any, place: Place, **kwargs: Any) -> Any:
    return kind(task_id="task", **kwargs, **place.place())


def test_forms_take_what_they_should(place: Place, airflow_database: None) -> None:
    place.write_job("other")
    bag = load(DAGS)
    assert not bag.import_errors
    form = bag.dags["savepoint"].params
    assert form.get_param("job").schema["enum"] == ["lamp", "other"] and not form.get_param("job").has_value
    assert (form["stop"], form["verify"], form["note"]) == (False, True, "")
    restore = bag.dags["restore"].params
    assert not restore.get_param("job").has_value and restore["savepoint"] == "latest"
    outputs = restore.get_param("outputs").schema
    assert set(outputs["values_display"]) == set(outputs["enum"]) == {"default", "rewind", "leave"}
    for param, wrong in (("job", "nobody"), ("outputs", "burn"), ("health_timeout", 0), ("savepoint", "")):
        with pytest.raises(ParamValidationError):
            restore.get_param(param).resolve(wrong)
    restore.get_param("savepoint").resolve("an id that came after the parse")
    assert bag.dags["verify_savepoints"].params.get_param("job").schema["enum"] == ["all", "lamp", "other"]


def test_savepoint_of_a_running_job_is_taken_and_verified(place: Place, airflow_database: None) -> None:
    first = place.deploy()
    dag = load(DAGS / "savepoints.py").dags["savepoint"]
    run = dag.test(run_conf={"job": "lamp", "note": "before lunch"})
    assert states(run) == {"take": "success", "verify": "success", "supervise": "success"}
    [found] = catalog.savepoints(place.workspace, "lamp")
    assert (found.verdict, found.manifest.origin, found.record.note) == ("verified", Origin.MANUAL, "before lunch")
    assert found.manifest.by.startswith("airflow:savepoint/")
    assert place.seen().incarnation == first.incarnation and place.seen().phase is Phase.RUNNING


def test_savepoint_with_a_stop_and_unverified(place: Place, airflow_database: None) -> None:
    place.deploy()
    dag = load(DAGS / "savepoints.py").dags["savepoint"]
    run = dag.test(run_conf={"job": "lamp", "stop": True, "verify": False})
    assert states(run) == {"take": "success", "verify": "skipped", "supervise": "success"}
    seen = place.seen()
    assert seen.phase is Phase.STOPPED and seen.desired is not None and seen.desired.state == "suspended"
    [found] = catalog.savepoints(place.workspace, "lamp")
    assert seen.exit is not None and found.manifest.batch == seen.exit.batch
    assert (found.verdict, found.manifest.origin) == ("unverified", Origin.SUSPEND)


def test_a_stop_whose_savepoint_fails_is_undone_and_the_job_gets_a_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place.deploy()
    task = operator(SavepointOperator, place, job="lamp", stop=True)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(taking._Take, "_copy", full)
    with pytest.raises(AirflowException, match="No space left"):
        task.execute(Run(dag_id="savepoint").context("take"))
    second = place.until(lambda seen: seen.phase is Phase.RUNNING)
    assert second.incarnation != first.incarnation

    def ensure(state: str, *, stopped: str = "True", **run: Any) -> str | None:
        made: EnsureSupervisedAfterSavepointOperator = operator(
            EnsureSupervisedAfterSavepointOperator, place, job="lamp", operation_task_id="take", stopped=stopped
        )
        found: str | None = made.execute(Run(dag_id="savepoint", states={"take": state}, **run).context("supervise"))
        return found

    # The run that watched it has seen it stop, and has ended.
    with pytest.raises(DagRunTriggerException) as raised:
        ensure("failed")
    assert raised.value.dag_run_id == "savepoint__manual__1__1", "not one that a restore of that run id has triggered"
    assert ensure("failed", runs_of_job=1) == "job_lamp", "it has not: it goes on with the new driver"
    # Neither took anything away: a job that a person runs by hand stays so.
    assert ensure("failed", stopped="False") is None
    assert ensure("success") is None


def test_a_killed_tries_stop_is_undone_by_the_next_and_a_persons_is_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy()
    by = {"by": "airflow:savepoint/manual__1", "note": "before lunch"}

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    def full(*_: Any, **__: Any) -> None:
        raise StreamwardenError("SAVEPOINT_FAILED", "no space left")

    with monkeypatch.context() as patch:
        # As SIGKILL would: nothing is tidied up.
        patch.setattr(with_stop, "take", killed)
        patch.setattr(with_stop.driver_control, "start", killed)
        with pytest.raises(Killed):
            with_stop.savepoint_and_stop(place.workspace, "lamp", **by)
    assert place.seen().phase is Phase.STOPPED
    monkeypatch.setattr(with_stop, "take", full)
    with pytest.raises(StreamwardenError, match="SAVEPOINT_FAILED"):
        with_stop.savepoint_and_stop(place.workspace, "lamp", **by)
    place.until(lambda seen: seen.phase is Phase.RUNNING)
    # Stopped by a person while the files are copied: it is not for this to start it again.

    def stopped_meanwhile(*_: Any, **__: Any) -> None:
        driver_control.stop(place.workspace, "lamp", by="somebody")
        full()

    monkeypatch.setattr(with_stop, "take", stopped_meanwhile)
    with pytest.raises(StreamwardenError, match="SAVEPOINT_FAILED"):
        with_stop.savepoint_and_stop(place.workspace, "lamp", **by)
    assert place.seen().phase is Phase.STOPPED


def test_take_returns_what_it_took_and_logs_it(place: Place) -> None:
    place.deploy()
    take_it = operator(SavepointOperator, place, job="lamp", stop="False")
    said: list[str] = []
    take_it.log.info = lambda text, *args: said.append(text % args)
    done = take_it.execute(Run(dag_id="savepoint").context("take"))
    [found] = catalog.savepoints(place.workspace, "lamp")
    assert done["id"] == found.manifest.id and done["batch"] == found.manifest.batch
    assert done["bytes"] > 0 and done["rows"] == 0 and done["took_s"] >= 0
    assert any(line.startswith("copy: ") for line in said) and any(f"savepoint {done['id']}" in line for line in said)


def test_nothing_to_take_is_final_and_what_may_pass_is_not(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AirflowFailException, match=r"NOT_DEPLOYED(?s:.)*What to do"):
        operator(SavepointOperator, place, job="lamp").execute(Run().context("take"))

    def outrun(*_: Any, **__: Any) -> None:
        raise StreamwardenError("SAVEPOINT_OUTRUN", "lamp: 5 tries")

    monkeypatch.setattr(saving, "take", outrun)
    with pytest.raises(AirflowException, match="SAVEPOINT_OUTRUN") as raised:
        operator(SavepointOperator, place, job="lamp").execute(Run().context("take"))
    assert not isinstance(raised.value, AirflowFailException)


def test_ended_by_hand_leaves_nothing_and_the_job_runs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    task = operator(SavepointOperator, place, job="lamp", stop=True)
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    real = taking._Take._sinks

    def ended_here(self: Any, batch: int) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(self, batch)

    monkeypatch.setattr(taking._Take, "_sinks", ended_here)
    try:
        with pytest.raises(AirflowException, match="ended from outside"):
            task.execute(Run(dag_id="savepoint").context("take"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not place.workspace.files.folders("savepoints/lamp")
    assert not list((place.workspace.root / "control" / "lamp" / "savepoints").glob("*"))
    place.until(lambda seen: seen.phase is Phase.RUNNING)
    # Without running work it does nothing: Airflow also calls it after a timeout has ended the work.
    task.on_kill()


def test_verify_names_each_damaged_savepoint_with_its_file(place: Place) -> None:
    place.deploy()
    first, good, last = taken(place), taken(place), taken(place)
    damage(place, first)
    (place.workspace.root / savepoint_checkpoint_key("lamp", last.id) / "metadata").unlink()
    with pytest.raises(AirflowFailException) as raised:
        operator(VerifyOperator, place, job="all", savepoint="all").execute(Run().context("verify"))
    text = str(raised.value)
    assert "SAVEPOINT_DAMAGED" in text and good.id not in text
    assert f"lamp {first.id}: offsets/0: 14 bytes" in text and f"lamp {last.id}: metadata: missing" in text
    verdicts = {one.manifest.id: one.verdict for one in catalog.savepoints(place.workspace, "lamp")}
    assert verdicts == {first.id: "damaged", good.id: "verified", last.id: "damaged"}
    one = operator(VerifyOperator, place, job="lamp", savepoint="latest").execute(Run().context("verify"))
    assert one == {"verified": [good.id]}


def test_verify_finds_by_label_over_all_jobs(place: Place) -> None:
    with pytest.raises(AirflowSkipException, match="no savepoints"):
        operator(VerifyOperator, place, job="all").execute(Run().context("verify"))
    place.deploy()
    made = taken(place)
    catalog.label(place.workspace, "lamp", made.id, "golden")
    found = operator(VerifyOperator, place, job="all", savepoint="golden").execute(Run().context("verify"))
    assert found == {"verified": [made.id]}
    with pytest.raises(AirflowFailException, match="SAVEPOINT_NOT_FOUND"):
        operator(VerifyOperator, place, job="all", savepoint="nothing").execute(Run().context("verify"))
    with pytest.raises(AirflowSkipException, match="not requested"):
        operator(VerifyOperator, place, job="lamp", wanted="False").execute(Run().context("verify"))


def test_verify_dag_runs(place: Place, airflow_database: None) -> None:
    place.deploy()
    damage(place, taken(place))
    run = load(DAGS / "savepoints.py").dags["verify_savepoints"].test()
    assert states(run) == {"verify": "failed"}


def test_periodic_dags_follow_the_yaml(place: Place, airflow_database: None) -> None:
    place.write_job("six", savepoints={"every": "6h"})
    place.write_job("night", savepoints={"cron": "0 3 * * *", "verify": False})
    place.write_job("wrong", savepoints={"cron": "at night"})
    place.write_job("both", savepoints={"every": "6h", "cron": "0 3 * * *"})
    (place.config / "jobs" / "torn.yaml").write_text("name: [")
    (place.config / "jobs" / "text.yaml").write_text("just text")
    (place.config / "jobs" / "odd name!.yaml").write_text("savepoints: {every: 1h}")
    bag = load(DAGS / "savepoints.py")
    assert not bag.import_errors
    periodic = {name: dag for name, dag in bag.dags.items() if name.startswith("savepoint_")}
    assert set(periodic) == {"savepoint_six", "savepoint_night", "savepoint_odd_name_"}
    assert periodic["savepoint_six"].schedule == timedelta(hours=6)
    night = periodic["savepoint_night"]
    assert night.schedule == "0 3 * * *" and str(night.timezone) == "UTC"
    assert all(dag.catchup is False and dag.max_active_runs == 1 for dag in periodic.values())
    assert "cron 0 3 * * *" in night.doc_md
    assert periodic_savepoints("wrong") is None and periodic_savepoints("no such file") is None


def test_periodic_take_is_verified_as_deployed(place: Place, airflow_database: None) -> None:
    place.write_job(savepoints={"every": "1h"})
    place.deploy()
    run = load(DAGS / "savepoints.py").dags["savepoint_lamp"].test()
    assert states(run) == {"take": "success", "verify": "success"}
    [found] = catalog.savepoints(place.workspace, "lamp")
    assert (found.manifest.origin, found.verdict) == (Origin.PERIODIC, "verified")


def test_periodic_take_is_skipped_with_its_reason(place: Place) -> None:
    place.write_job(savepoints={"every": "1h"}, standin_idle=3)
    task = operator(PeriodicSavepointOperator, place, job="lamp", planned="every 1h")
    context = Run(dag_id="savepoint_lamp", run_type="scheduled").context("take")

    def skipped() -> str:
        with pytest.raises(AirflowSkipException) as raised:
            task.execute(context)
        return str(raised.value)

    assert skipped() == "lamp is not deployed"
    place.deploy()
    place.until(lambda seen: bool(seen.heartbeat and seen.heartbeat.idle))
    with begin(place.workspace, "lamp", "restore", by="test", params={}) as handle:
        assert f"restore {handle.id} is working on lamp" in skipped()
        handle.end(OperationState.DONE)
    made = task.execute(context)
    assert made["verify"] is True
    assert skipped() == f"lamp has no new batch since savepoint {made['id']} (batch 2)"
    damage(place, catalog.find(place.workspace, "lamp", made["id"]).manifest)
    verify(place.workspace, catalog.savepoints(place.workspace, "lamp"), by="test")
    assert reason_to_skip(place.workspace, "lamp") is None, "a damaged one is no reason"
    driver_control.stop(place.workspace, "lamp", by="somebody")
    assert "lamp was suspended by somebody" in skipped()


def test_what_is_deployed_decides_over_a_changed_yaml(place: Place) -> None:
    place.write_job(savepoints={"every": "6h"})
    place.deploy()
    context = Run(dag_id="savepoint_lamp", run_type="scheduled").context("take")
    task = operator(PeriodicSavepointOperator, place, job="lamp", planned="every 1h")
    said: list[str] = []
    task.log.warning = lambda text, *args: said.append(text % args)
    made = task.execute(context)
    assert "deployed schedule: every 6h; this DAG's schedule, from the YAML: every 1h. The deployed one counts" in said
    place.batch(made["batch"] + 1)
    with pytest.raises(
        AirflowSkipException, match=r"by the deployed schedule \(every 6h; YAML: every 1h\) the next one is"
    ):
        task.execute(context)
    later = catalog.find(place.workspace, "lamp", made["id"]).manifest.taken_at + timedelta(hours=6)
    assert reason_to_skip(place.workspace, "lamp", planned="every 1h", now=later) is None
    by_hand = Run(dag_id="savepoint_lamp", run_type="manual").context("take")
    assert task.execute(by_hand)["batch"] > made["batch"], "a person doesn't wait for the clock"

    def deployed(**savepoints: Any) -> None:
        place.write_job(savepoints=savepoints)
        deploy_job(place.workspace, "lamp", by="test")
        place.until(lambda seen: seen.phase is Phase.RUNNING)

    deployed(cron="0 0 1 1 *")
    reason = reason_to_skip(place.workspace, "lamp", planned="every 1h")
    assert reason is not None and "-01-01 00:00:00 UTC" in reason
    deployed()
    reason = reason_to_skip(place.workspace, "lamp", planned="every 1h")
    assert reason is not None and "takes no periodic savepoints" in reason


def test_housekeeping_removes_and_protects(place: Place, airflow_database: None) -> None:
    place.write_job(savepoints={"keep": {"periodic": {"count": 1}}})
    place.deploy()
    labelled, old, newest = (taken(place, Origin.PERIODIC) for _ in range(3))
    catalog.label(place.workspace, "lamp", labelled.id, "golden")
    manual = taken(place)
    # What a killed take leaves: a record of a process that is gone, and files without a manifest.
    folder = place.workspace.root / savepoint_key("lamp", "20200101T000000000z0000")
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "metadata").write_text("half")
    record = catalog.find(place.workspace, "lamp", old.id).record
    from streamwarden.savepoints.documents import record_document

    record_document(place.workspace, "lamp", folder.name).write(
        record.model_copy(update={"id": folder.name, "state": "taking", "process": None})
    )
    removed = operator(HousekeepingOperator, place).execute(Run(dag_id="housekeeping").context("housekeeping"))
    assert removed == {"lamp": {"removed_interrupted": [folder.name], "expired": [old.id]}}
    assert not folder.exists()
    left = [one.manifest.id for one in catalog.savepoints(place.workspace, "lamp")]
    assert left == [manual.id, newest.id, labelled.id]
    dag = load(DAGS / "savepoints.py").dags["housekeeping"]
    assert dag.schedule == "@hourly" and states(dag.test()) == {"housekeeping": "success"}


def test_housekeeping_of_one_job_does_not_wait_for_another(place: Place) -> None:
    place.write_job(savepoints={"keep": {"periodic": {"count": 1}}})
    place.deploy()
    old, _ = taken(place, Origin.PERIODIC), taken(place, Origin.PERIODIC)
    JobDocuments(place.workspace.storage, "broken").desired.storage.write("control/broken/desired.json", b"{")
    with pytest.raises(AirflowException, match="DOCUMENT_INVALID"):
        operator(HousekeepingOperator, place).execute(Run(dag_id="housekeeping").context("housekeeping"))
    assert old.id not in [one.manifest.id for one in catalog.savepoints(place.workspace, "lamp")]


def test_housekeeping_looks_after_the_table_of_batches_once_a_day(place: Place) -> None:
    table = ProgressTable(place.workspace)
    for number in range(3):
        table.append("lamp", "i1", 1, [made_batch(number, at=utc_now())])
    keeper = operator(HousekeepingOperator, place)
    removed = keeper.execute(Run(dag_id="housekeeping").context("housekeeping"))
    assert removed == {"job_progress": {"rows_deleted": 0, "files_joined": 3, "files_removed": 0}}
    assert keeper.execute(Run(dag_id="housekeeping").context("housekeeping")) == {}
    # Its trouble is the task's.
    shutil.rmtree(place.workspace.root / "tables" / "job_progress")
    (place.workspace.root / "tables" / "job_progress").write_text("in the way")
    with pytest.raises(AirflowException, match="PROGRESS_TABLE_FAILED"):
        keeper.execute(Run(dag_id="housekeeping").context("housekeeping"))


def test_restore_form_offers_the_savepoints_with_their_words(
    place: Place, airflow_database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine half a second may be too short for all of them.
    monkeypatch.setitem(offered_savepoints.__kwdefaults__, "patience", 60)
    place.deploy()
    first, torn, bad, last = (taken(place) for _ in range(4))
    catalog.label(place.workspace, "lamp", first.id, "before the  upgrade")
    damage(place, bad)
    verify(place.workspace, [catalog.find(place.workspace, "lamp", one.id) for one in (first, bad)], by="test")
    (place.workspace.root / savepoint_key("lamp", torn.id) / "manifest.json").unlink()
    offered = load(DAGS / "operations.py").dags["restore"].params.get_param("savepoint").schema["examples"]
    when = f"{first.taken_at:%Y-%m-%d %H:%M} UTC"
    assert offered == [
        "latest",
        f"{last.id} · lamp · {last.taken_at:%Y-%m-%d %H:%M} UTC · batch {last.batch} · manual · unverified",
        f"{first.id} · lamp · {when} · batch {first.batch} · manual · verified · “before the upgrade”",
    ]
    assert [chosen_savepoint(text) for text in offered] == ["latest", last.id, first.id]
    assert offered_savepoints(["lamp"], limit=1) == offered[:2]


def test_no_trouble_with_the_place_is_a_trouble_of_the_parse(
    place: Place, airflow_database: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("STREAMWARDEN_ROOT", str(tmp_path / "file" / "below"))
    assert offered_savepoints(["lamp"]) == ["latest"]
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "nowhere")
    assert offered_savepoints(["lamp"]) == ["latest"]
    bucket = {"name": "bucket", "root": str(tmp_path), "s3": {"bucket": "b-1", "endpoint": "http://127.0.0.1:9"}}
    import yaml

    (place.config / "profiles" / "bucket.yaml").write_text(yaml.safe_dump(bucket))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "bucket")
    assert offered_savepoints(["lamp"]) == ["latest"]
    bag = load(DAGS)
    assert not bag.import_errors and "restore" in bag.dags

    hangs = threading.Event()
    monkeypatch.setattr("streamwarden.airflow.form_options.open_workspace", lambda: hangs.wait(30))
    assert offered_savepoints(["lamp"], patience=0.1) == ["latest"]
    hangs.set()
