"""Write a small place as this version writes it: `python -m tests.unit.upgrades.make_place 0.2`, with real drivers.

It is kept for ever: each later version must read it (test_upgrades.py). Make one before each release, and change none.
Most of it is of real drivers, operations and a gate. Operations in states that are rare, and documents of people and
hosts, are written from the models. Parquet files are left out: no data is committed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.model.gate import AcceptedRow, GateEvents, Trouble
from streamwarden.model.hosting import DriverHost, DriverStart
from streamwarden.model.operation import Cancel, OperationState
from streamwarden.model.progress import SourceProgress
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.savepoint import Verification
from streamwarden.model.status import LandingState, Reread
from streamwarden.model.supervision import Decision, Ending, HealthChange, HealthRecord, Refused, Restart, RuleState
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.restore import restore
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_document
from streamwarden.runtime.launchers.hosts import host_document, start_document
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints import catalog
from streamwarden.savepoints.documents import record_document
from streamwarden.store.documents import Document
from streamwarden.store.effective_spec import decide, parallelism_of
from streamwarden.store.layout import gate_events_key
from streamwarden.supervision import driver_control
from streamwarden.supervision.claim import Claim, claim
from streamwarden.supervision.observe import Observation
from tests.integration.conftest import BY, REPOSITORY, Place
from tests.unit.upgrades import JOB, PLACES
from tests.unit.upgrades.fields import models

SOURCE, MODULE = "arrived", "tests.integration.jobs.counts_and_rows"
SUITE = {
    "name": "rows",
    "meta": {"keys": ["id"]},
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "key", "min_value": 0, "max_value": 99},
            "severity": "critical",
            "meta": {"id": "rows.key"},
        }
    ],
}


def main(name: str) -> None:
    """Write ``places/NAME``."""
    target = PLACES / name
    if target.exists():
        raise SystemExit(f"{target} exists, and is never changed")
    folder = Path(tempfile.mkdtemp(prefix="place"))
    os.environ |= {
        "PYTHONPATH": str(REPOSITORY),
        "STREAMWARDEN_CONFIG": str(folder / "config"),
        "STREAMWARDEN_PROFILE": "test",
    }
    place = Place(folder)
    place.profile(root="root")
    try:
        _run(place)
    finally:
        place.kill_all()
    _gate(place, folder)
    _rare(place)
    _keep(folder, target)


def _run(place: Place) -> None:
    """Deploy, savepoint, rollout, restore, stop: all of it real."""
    place.job(
        JOB,
        module=MODULE,
        source={"kind": "delta", "table": SOURCE},
        sinks=[
            {"table": "counts", "mode": "upsert", "keys": ["key"]},
            {"table": "rows", "output": "rows", "mode": "append"},
        ],
        resources={"cores": 1, "memory": "512m"},
    )
    _arrive(place, 1, 10)
    deploy_job(place.workspace, JOB, by=BY, note="first")
    _await(place, rows=1)
    done = CliRunner().invoke(app, ["savepoint", JOB, "--note", "kept", "--json"])
    assert done.exit_code == 0, done.output
    first = json.loads(done.stdout)["id"]
    catalog.label(place.workspace, JOB, first, "kept")
    _arrive(place, 2, 11)
    _await(place, rows=2)
    place.job(JOB, failures={"tolerable_consecutive": 2})
    deploy_job(place.workspace, JOB, by=BY, note="patient", stop_timeout=900, health_timeout=900)
    restore(place.workspace, JOB, savepoint=first, by=BY, reason="to keep one", stop_timeout=900, health_timeout=900)
    _arrive(place, 300, 12)
    _await(place, rows=3)
    driver_control.stop(place.workspace, JOB, by=BY, reason="for the copy", timeout=900)


def _arrive(place: Place, key: int, number: int) -> None:
    write_deltalake(place.workspace.table(SOURCE), pa.table({"key": [key], "id": [number]}), mode="append")


def _await(place: Place, *, rows: int) -> None:
    def there(seen: Observation) -> bool:
        assert seen.phase.alive, seen.error
        if seen.heartbeat is None or seen.heartbeat.batch is None:
            return False
        return len(place.rows("rows")) == rows and len(place.rows("counts")) == rows

    place.wait(JOB, there, f"{rows} rows", timeout=1800)


def _gate(place: Place, folder: Path) -> None:
    suites = folder / "expectations"
    suites.mkdir()
    (suites / "rows.json").write_text(json.dumps(SUITE))
    gate = Gate(place.workspace, suites)
    decision = gate.decide("rows")
    # The last row breaks the rule.
    assert decision is not None and decision.verdict == "held", decision
    gate.accept("rows", by=BY, note="one is allowed")
    _arrive(place, 301, 13)
    write_deltalake(place.workspace.table("rows"), pa.table({"key": [301], "id": [13]}), mode="append")
    decision = gate.decide("rows")
    assert decision is not None and decision.verdict == "held", decision
    trouble = Trouble(since=utc_now(), at=utc_now(), code="S3_UNREACHABLE", what="for a while")
    accepted = [AcceptedRow(expectation="rows.key", row={"id": 12})]
    change: dict[str, Any] = {"trouble": trouble, "accepted": accepted}
    gate_document(place.workspace, "rows").update(lambda now: now.model_copy(update=change))  # type: ignore[union-attr]
    key = gate_events_key("rows")
    Document(place.workspace.storage, key, GateEvents).write(GateEvents(through=decision.at))


def _rare(place: Place) -> None:
    """Write documents that no short run leaves, with every field that has a value."""
    workspace, documents, now = place.workspace, place.documents(JOB), utc_now()
    error = ErrorInfo(code="DRIVER_DIED", what="w", remedy="r", retryable=True, traceback="Traceback")
    done = documents.operation.read()
    assert done is not None
    for number, state in enumerate(OperationState):
        for kind in ("restore", "rollout", "rescale"):
            parallelism = parallelism_of(workspace.job(JOB))
            plan = done.plan.model_copy(
                update={"was": parallelism, "to": parallelism, "over": parallelism, "failure": error, "stopped_at": now}
            )
            update = {"id": f"{kind}{number}", "kind": kind, "state": state, "plan": plan, "error": error}
            documents.past_operation(f"{kind}{number}").write(done.model_copy(update=update))
    documents.cancel.write(Cancel(operation=done.id, by=BY, at=now))
    documents.parallelism.write(decide(workspace, JOB, parallelism_of(workspace.job(JOB)), by=BY))
    documents.reread("r").write(Reread(id="r", at=now, by=BY, files={"a.csv": 2}))
    claim(workspace, JOB, Claim(holder="run", attempt=1, at=now, deferred=True, deferred_at=now))
    change = HealthChange(rule="no_batch", before="ok", after="critical", worst="critical", what="w", at=now)
    documents.health.write(
        HealthRecord(
            rules={"no_batch": RuleState(level="critical", worst="critical", since=now, what="w")},
            changes=[change],
            unsent={"page": [change]},
            refused={"page": Refused(times=1, retry_at=now)},
            sending={"page": now},
        )
    )

    def remembered(was: Any) -> Any:
        incarnation = documents.incarnations()[0]
        ending = Ending(incarnation=incarnation, at=now, action="suspend", why="w", error=error, savepoint=True)
        restarts = [Restart(at=now, after=incarnation, reason="r")]
        decisions = [*was.decisions, Decision(at=now, what="restart", why="w")]
        return was.model_copy(update={"ending": ending, "restarts": restarts, "decisions": decisions})

    documents.supervision.update(remembered)
    first = documents.incarnations()[0]
    landing = LandingState(waiting=1, unplanned=2, told=1, first=["a.csv: replaced"])
    beat: dict[str, Any] = {"landing": landing, "notes": ["n"], "metrics": "127.0.0.1:1", "idle_at": now}
    documents.heartbeat(first).update(lambda was: was.model_copy(update=beat))  # type: ignore[union-attr]
    last = documents.incarnations()[-1]
    source = SourceProgress(unit="versions", taken=1, finished=1, pending=0, skipped=1, skipped_last="s", input_at=now)

    def sources(was: Any) -> Any:
        batch = was.last.model_copy(update={"sources": {"a": source}, "lookups": {"zones": 3}})
        return was.model_copy(update={"last": batch})

    documents.progress(last).update(sources)
    damaged = Verification(verdict="damaged", at=now, by=BY, took_s=1, files=1, bytes=1, problems=["p"])
    newest = catalog.savepoints(workspace, JOB)[0]
    outdated: dict[str, Any] = {"outdated": "rows was cut off", "verification": damaged, "in_use_by": ["o"]}
    record_document(workspace, JOB, newest.id).update(lambda was: was.model_copy(update=outdated))  # type: ignore[union-attr]
    mine = current_process()
    host_document(workspace, "a").write(DriverHost(name="a", process=mine, since=now, at=now, drivers=[JOB], most=3))
    start = DriverStart(job=JOB, incarnation=last, at=now, host="a", taken=now, process=mine, kill=True, ended=now)
    start_document(workspace, last).write(start)


def _keep(folder: Path, target: Path) -> None:
    """Copy what later versions read, without data, logs, and what names this machine."""
    skipped = shutil.ignore_patterns("*.parquet", "*.crc", ".*", "logs", "scratch", "quality", "landing")
    for part in ("root", "expectations"):
        shutil.copytree(folder / part, target / part, ignore=skipped)
    for part in (f"config/jobs/{JOB}.yaml", "config/profiles/test.yaml"):
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / part, target / part)
    fields = {name: sorted(model.model_fields) for name, model in sorted(models().items())}
    (target / "fields.json").write_text(json.dumps(fields, indent=1) + "\n")
    mine = current_process()
    for path in filter(Path.is_file, target.rglob("*")):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for named, word in ((str(folder), "/tmp/place"), (mine.boot, "boot"), (mine.namespace, "namespace")):
            text = text.replace(named, word) if named else text
        path.write_text(re.sub(r'("host": ?)"[^"]*"', r'\1"machine"', text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
