"""What is shipped in config/monitoring, what it asks for, and a driver to ask."""

from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.driver.metrics import _STORE
from streamwarden.model.progress import BatchProgress
from streamwarden.model.record import utc_now
from streamwarden.model.status import DriverState, Heartbeat, Launch, Lease
from streamwarden.runtime.processes import current_process
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.batches import made_batch, made_desired

MONITORING = Path(__file__).resolve().parents[1] / "config" / "monitoring"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboards" / "streamwarden.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alert rules by name."""
    return {rule["alert"]: rule for rule in RULES if "alert" in rule}


def queries() -> list[tuple[str, str]]:
    """Return the dashboard's queries, each with its panel's title, as Grafana sends them for any job."""
    return [
        (panel["title"], target["expr"].replace("$job", ".+").replace("$__rate_interval", "1m"))
        for panel in PANELS
        for target in panel["targets"]
    ]


def program(name: str) -> str:
    """Return the path of a program of Debian's package `prometheus`; skip the test without it, but fail in CI."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is not installed; CI must not pass without it")
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return found


def whole_batch(number: int, **fields: Any) -> BatchProgress:
    """Make a batch with a value for every metric."""
    operator = made_batch(number).operators[0].model_copy(update={"metrics": dict.fromkeys(_STORE, 1)})
    return made_batch(number, operators=[operator], **fields)


def write_running(workspace: Workspace, job: str, metrics: str) -> None:
    """Write what a driver writes that runs, in this very process."""
    documents = JobDocuments(workspace.storage, job)
    now, process = utc_now(), current_process()
    documents.desired.write(made_desired(workspace.job(job)))
    documents.launch("i1").write(Launch(incarnation="i1", at=now, by="test", reason="", digest="", process=process))
    documents.heartbeat("i1").write(
        Heartbeat(incarnation="i1", at=now, started_at=now, state=DriverState.RUNNING, process=process, metrics=metrics)
    )
    documents.lease.write(
        Lease(
            job=job,
            incarnation="i1",
            process=process,
            epoch=1,
            acquired_at=now,
            expires_at=now + timedelta(minutes=5),
        )
    )
