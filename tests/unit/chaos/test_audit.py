from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamwarden.storage import LocalFiles
from tests.chaos.audit import Written, audit, commits_of

pytestmark = pytest.mark.unit

APP = "streamwarden/lamp/g1"


def commit(version: int, batch: int, epoch: int | None = 1, app: str = APP) -> Written:
    return Written(version, app, batch, f"driver-{epoch}", epoch)


def test_batches_in_order_by_drivers_in_order_are_well() -> None:
    assert audit([commit(1, 0), commit(2, 1), commit(3, 2, 2), commit(4, 5, 4)]) == []


def test_batch_that_is_there_twice() -> None:
    (wrong,) = audit([commit(1, 0), commit(2, 1), commit(3, 1, 2)])
    assert "batch 1" in wrong and "already, as version 2 by driver-1" in wrong


def test_same_batch_of_another_generation_is_another() -> None:
    assert audit([commit(1, 0), commit(2, 1), commit(3, 0, 2, "streamwarden/lamp/g2")]) == []


def test_batch_behind_its_successor() -> None:
    (wrong,) = audit([commit(1, 0), commit(2, 2), commit(3, 1)])
    assert "comes after batch 2" in wrong


def test_driver_that_lost_its_lease_and_commits() -> None:
    (wrong,) = audit([commit(1, 0, 1), commit(2, 1, 2), commit(3, 2, 1)])
    assert "of epoch 1, after a commit of epoch 2" in wrong


def test_commit_that_does_not_say_who_made_it() -> None:
    (wrong,) = audit([commit(1, 0, None)])
    assert "does not say who made it" in wrong


def test_reads_a_tables_log(tmp_path: Path) -> None:
    log = tmp_path / "tables" / "lamp" / "_delta_log"
    log.mkdir(parents=True)
    author = json.dumps({"incarnation": "20230306-a", "epoch": 3})

    def write(version: int, *actions: dict[str, Any]) -> None:
        (log / f"{version:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))

    write(0, {"commitInfo": {"operation": "CREATE TABLE"}}, {"metaData": {"id": "x"}})
    write(1, {"commitInfo": {"operation": "WRITE", "userMetadata": author}}, {"txn": {"appId": APP, "version": 4}})
    write(2, {"commitInfo": {"operation": "FENCE"}}, {"txn": {"appId": APP, "version": -1}})
    write(3, {"commitInfo": {"operation": "MERGE"}}, {"txn": {"appId": APP, "version": 5}})
    found = commits_of(LocalFiles(tmp_path), "lamp")
    assert found == [Written(1, APP, 4, "20230306-a", 3), Written(3, APP, 5, None, None)]
