"""What a driver does before and between its query's batches. With Spark: tests/integration/test_driver.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamwarden.control.documents import DriverState, JobDocuments
from streamwarden.control.workspace import Workspace
from streamwarden.driver import runner
from streamwarden.driver.logs import RecordContext
from streamwarden.driver.runner import Driver
from tests.unit.control import test_catalogue
from tests.unit.control.test_supervision import JOB, desired

pytestmark = pytest.mark.unit


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    opened = test_catalogue.opened(tmp_path)
    JobDocuments(opened.storage, JOB).desired.write(desired())
    return opened


@pytest.fixture
def driver(workspace: Workspace) -> Driver:
    return Driver(workspace, JOB, "i1", RecordContext(JOB, "i1"))


def test_the_wait_for_a_source_table_is_no_time_without_a_batch(
    driver: Driver, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(["no table yet", None])
    monkeypatch.setattr(runner, "missing_source", lambda *_: next(looks))
    heartbeat = JobDocuments(workspace.storage, JOB).heartbeat("i1")
    spark: Any = None
    driver._await_source(spark, desired().spec)
    waited = heartbeat.read()
    assert waited is not None and waited.state is DriverState.WAITING and waited.idle_at is None
    driver._say(DriverState.RUNNING, "batches every trigger interval")
    runs = heartbeat.read()
    assert runs is not None and runs.idle_at is not None and runs.idle_at > waited.at and not runs.idle


def test_a_source_that_is_there_leaves_no_trace(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "missing_source", lambda *_: None)
    spark: Any = None
    driver._await_source(spark, desired().spec)
    assert driver._idle_at is None
