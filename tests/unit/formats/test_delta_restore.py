"""Putting tables back by delta-rs, and what is left to Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.formats.delta_restore import put_back
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit

NAME = "numbers"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace("local", root=tmp_path / "a root")


def write(workspace: Workspace, *numbers: int, mode: str = "append") -> None:
    rows = pa.table({"number": numbers, "even": [number % 2 == 0 for number in numbers]})
    write_deltalake(workspace.table(NAME), rows, mode=mode, partition_by=["even"])  # type: ignore[call-overload]


def numbers(workspace: Workspace) -> list[int]:
    return sorted(DeltaTable(workspace.table(NAME)).to_pyarrow_table()["number"].to_pylist())


def test_contents_are_those_of_the_version(workspace: Workspace) -> None:
    write(workspace, 1, 2)
    write(workspace, 3)
    stats = DeltaTable(workspace.table(NAME)).get_add_actions(flatten=True)
    write(workspace, 7, mode="overwrite")
    write(workspace, 8)
    assert put_back(workspace, NAME, 1, author="a driver")
    assert numbers(workspace) == [1, 2, 3]
    table = DeltaTable(workspace.table(NAME))
    assert table.version() == 4
    # What readers skip files by is there again.
    again = table.get_add_actions(flatten=True)
    assert {*zip(again["path"].to_pylist(), again["max.number"].to_pylist(), strict=True)} == {
        *zip(stats["path"].to_pylist(), stats["max.number"].to_pylist(), strict=True)
    }
    actions = DeltaLog(workspace.files, NAME).actions(4)
    (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    assert (info["operation"], info["userMetadata"]) == ("RESTORE", "a driver")
    # Streams that read the table are to see it.
    changes = [found.get("add") or found.get("remove") for found in DeltaLog(workspace.files, NAME).actions(4)]
    assert {change["dataChange"] for change in changes if change} == {True}


def test_where_it_is_there_already_nothing_changes(workspace: Workspace) -> None:
    write(workspace, 1)
    for _ in range(2):
        assert put_back(workspace, NAME, 0, author="a driver")
        assert numbers(workspace) == [1] and DeltaTable(workspace.table(NAME)).version() == 0


def write_wider(workspace: Workspace, number: int) -> None:
    rows = pa.table({"number": [number], "even": [number % 2 == 0], "more": ["x"]})
    write_deltalake(workspace.table(NAME), rows, mode="append", schema_mode="merge")


def reshape(workspace: Workspace) -> None:
    write_wider(workspace, 4)
    DeltaTable(workspace.table(NAME)).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})


def test_schema_and_properties_are_those_of_the_version(workspace: Workspace) -> None:
    write(workspace, 1, 2)
    DeltaTable(workspace.table(NAME)).alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"})
    then = DeltaTable(workspace.table(NAME))
    reshape(workspace)
    assert put_back(workspace, NAME, 1, author="a driver")
    found = DeltaTable(workspace.table(NAME))
    assert (found.version(), found.schema(), found.metadata()) == (4, then.schema(), then.metadata())
    assert found.metadata().configuration == {"delta.logRetentionDuration": "interval 3 days"}
    assert numbers(workspace) == [1, 2]
    # There and forth again.
    assert put_back(workspace, NAME, 3, author="a driver")
    assert DeltaTable(workspace.table(NAME)).schema().fields[-1].name == "more" and numbers(workspace) == [1, 2, 4]


def test_a_commit_meanwhile_is_not_written_over(workspace: Workspace) -> None:
    """By a successor while this driver is paused: its second check fails."""
    write(workspace, 1, 2)
    reshape(workspace)

    def guard() -> None:
        if asked:
            raise StreamwardenError("LEASE_LOST", "for the test")
        asked.append(True)
        write_wider(workspace, 7)

    asked: list[bool] = []
    with pytest.raises(StreamwardenError, match="LEASE_LOST"):
        put_back(workspace, NAME, 0, author="paused", guard=guard)
    assert numbers(workspace) == [1, 2, 4, 7]


def test_a_delta_rs_that_leaves_the_schema_is_not_believed(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(workspace, 1, 2)
    reshape(workspace)
    monkeypatch.setattr(DeltaTable, "restore", lambda *_, **__: None)
    assert not put_back(workspace, NAME, 0, author="a driver")


def test_what_is_left_to_spark(workspace: Workspace) -> None:
    assert not put_back(workspace, NAME, 0, author="a driver"), "no table"
    write(workspace, 1, 2)
    write(workspace, 3)
    assert not put_back(workspace, NAME, 9, author="a driver"), "no such version"
    DeltaTable(workspace.table(NAME)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    assert not put_back(workspace, NAME, 1, author="a driver"), "another protocol"
    write(workspace, 4, mode="overwrite")
    for path in Path(workspace.table(NAME)).glob("even=*/*.parquet"):
        path.unlink()
    assert not put_back(workspace, NAME, 2, author="a driver"), "files are missing"
    assert DeltaTable(workspace.table(NAME)).version() == 3
