"""Putting tables back by delta-rs, and what is left to Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from streamwarden.control.delta_log import DeltaLog
from streamwarden.control.put_back import put_back
from streamwarden.control.workspace import Workspace, open_workspace

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
    actions = DeltaLog(workspace.files, f"tables/{NAME}").actions(4)
    (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    assert (info["operation"], info["userMetadata"]) == ("RESTORE", "a driver")
    # Streams that read the table are to see it.
    changes = [
        found.get("add") or found.get("remove") for found in DeltaLog(workspace.files, f"tables/{NAME}").actions(4)
    ]
    assert {change["dataChange"] for change in changes if change} == {True}


def test_where_it_is_there_already_nothing_changes(workspace: Workspace) -> None:
    write(workspace, 1)
    for _ in range(2):
        assert put_back(workspace, NAME, 0, author="a driver")
        assert numbers(workspace) == [1] and DeltaTable(workspace.table(NAME)).version() == 0


def test_what_is_left_to_spark(workspace: Workspace) -> None:
    assert not put_back(workspace, NAME, 0, author="a driver"), "no table"
    write(workspace, 1, 2)
    write(workspace, 3)
    assert not put_back(workspace, NAME, 9, author="a driver"), "no such version"
    rows = pa.table({"number": [4], "even": [True], "more": ["x"]})
    write_deltalake(workspace.table(NAME), rows, mode="append", schema_mode="merge")
    assert not put_back(workspace, NAME, 1, author="a driver"), "another schema"
    assert numbers(workspace) == [1, 2, 3, 4]
    write_deltalake(workspace.table(NAME), rows, mode="overwrite")
    for path in Path(workspace.table(NAME)).glob("even=*/*.parquet"):
        path.unlink()
    assert not put_back(workspace, NAME, 2, author="a driver"), "files are gone"
    assert DeltaTable(workspace.table(NAME)).version() == 3
