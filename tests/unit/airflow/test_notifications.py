from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from streamwarden.airflow.notifications import tell
from streamwarden.airflow.operators import release
from streamwarden.airflow.operators.release import ReleaseOperator
from streamwarden.model.supervision import HealthRecord
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision.health_rules import Finding, Health, Level

pytestmark = pytest.mark.unit

LOG = logging.getLogger(__name__)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    config = tmp_path / "config"
    (config / "profiles").mkdir(parents=True)
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    notifiers = [
        {
            "name": name,
            "class": "tests.airflow.notifiers.FileNotifier",
            "level": "warn",
            "arguments": {"path": str(tmp_path / f"{name}.txt"), "text": "{{ alert.title }}"},
        }
        for name in ("mail", "pager")
    ]
    (config / "alerts.yaml").write_text(yaml.safe_dump({"notifiers": notifiers}))
    return open_workspace("test", config=config)


def health(*rules: str) -> Health:
    return Health(tuple(Finding(rule, Level.WARN, rule, 1, 1) for rule in rules))


def lines(workspace: Workspace, name: str) -> int:
    path = workspace.config.parent / f"{name}.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def record(workspace: Workspace) -> HealthRecord:
    return JobDocuments(workspace.storage, "lamp").health.read() or HealthRecord()


def test_what_is_new_waits_for_a_notifier_that_has_just_failed(workspace: Workspace) -> None:
    broken = workspace.config.parent / "mail.broken"
    broken.touch()
    for rules in (("backlog",), ("backlog", "restarts"), ("backlog",)):
        tell(workspace, "lamp", health(*rules), context={}, log=LOG)
    assert record(workspace).refused["mail"].times == 1, "it was asked once"
    assert lines(workspace, "pager") == 3 and len(record(workspace).unsent["mail"]) == 3
    broken.unlink()
    tell(workspace, "lamp", health("backlog"), context={}, log=LOG)
    assert lines(workspace, "mail") == 0
    # Whoever knows that nobody asks later does so now.
    tell(workspace, "lamp", health("backlog"), context={}, log=LOG, anyway=True)
    assert lines(workspace, "mail") == 1 and lines(workspace, "pager") == 3
    assert not record(workspace).unsent and not record(workspace).refused


def test_what_one_is_telling_another_does_not_tell(workspace: Workspace) -> None:
    hangs = workspace.config.parent / "mail.hangs"
    hangs.touch()

    def another() -> None:
        while not record(workspace).sending:
            time.sleep(0.01)
        # As `watch` and a supervise task may, of one job.
        tell(workspace, "lamp", health("backlog"), context={}, log=LOG, anyway=True)
        hangs.unlink()

    asks = threading.Thread(target=another, daemon=True)
    asks.start()
    tell(workspace, "lamp", health("backlog"), context={}, log=LOG)
    asks.join()
    assert (lines(workspace, "mail"), lines(workspace, "pager")) == (1, 1)
    assert not record(workspace).unsent and not record(workspace).sending


@pytest.mark.parametrize("waits", [False, True])
def test_the_last_to_tell_of_a_job_asks_once_more_unless_a_run_waits(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(release, "_TELL_S", 0.0)
    broken = workspace.config.parent / "mail.broken"
    broken.touch()
    tell(workspace, "lamp", health("backlog"), context={}, log=LOG)
    broken.unlink()
    ti: Any = SimpleNamespace(dag_id="job_lamp", get_dr_count=lambda **_: int(waits))
    ReleaseOperator(task_id="release", job="lamp")._tell_rest({"ti": ti}, workspace)  # type: ignore[typeddict-item]
    assert lines(workspace, "mail") == int(not waits)
