"""``gate status`` of a table whose published files are lost, and the query that it shows."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.formats.published_log import PublishedLog
from streamwarden.model.record import utc_now
from streamwarden.quality.failing_rows import file_literal
from streamwarden.store.workspace import Workspace, open_workspace
from tests.batches import made_batch, make_place

pytestmark = pytest.mark.unit


def status(workspace: Workspace, *words: str) -> str:
    done = CliRunner().invoke(app, ["gate", "status", "t", "--root", str(workspace.root), *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_files_that_vacuum_took_from_readers_are_named(tmp_path: Path) -> None:
    workspace = open_workspace("local", root=tmp_path / "the root")
    table = workspace.table("t")
    write_deltalake(table, pa.table({"n": [1, 2], "day": ["a b", "c"]}), partition_by=["day"])
    log = PublishedLog(workspace, "t")
    log.begin(0)
    write_deltalake(table, pa.table({"n": [3], "day": ["c"]}), mode="append")
    log.publish(log.at(), 1, changes=False)
    DeltaTable(table).delete("n = 1")
    assert "PUBLISHED_FILES_GONE" not in status(workspace)
    assert json.loads(status(workspace, "--json"))[0]["lost_files"] == []
    # The delete is not published.
    removed = DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(removed) == 1
    shown = status(workspace)
    assert "PUBLISHED_FILES_GONE" in shown and "version 1 has lost 1 files, such as day=a%20b/" in shown
    assert f"streamwarden gate check --root '{workspace.root}' TABLE" in shown
    assert len(json.loads(status(workspace, "--json"))[0]["lost_files"]) == 1
    # Of all tables, only if asked: it takes a listing of each folder.
    suites = tmp_path / "suites"
    suites.mkdir()
    (suites / "t.json").write_text("{}")
    everywhere = ["gate", "status", "--root", str(workspace.root), "--expectations", str(suites)]
    quick = CliRunner().invoke(app, [*everywhere, "--json"])
    assert json.loads(quick.output)[0]["lost_files"] is None
    assert "PUBLISHED_FILES_GONE" in CliRunner().invoke(app, [*everywhere, "--files"]).output
    log.publish(log.at(), 2, changes=True)
    assert "PUBLISHED_FILES_GONE" not in status(workspace)


def test_upkeep_removes_no_file_that_a_held_version_needs(tmp_path: Path) -> None:
    workspace, now = make_place(tmp_path), utc_now()
    table = ProgressTable(workspace)
    table.append("lamp", "i1", 1, [made_batch(0, at=now - timedelta(days=9))])
    log = PublishedLog(workspace, table.table)
    address, _ = workspace.delta_rs(table.table)
    log.begin(DeltaTable(address).version())
    table.append("lamp", "i1", 1, [made_batch(1, at=now - timedelta(days=1))])
    for day in range(4):
        table.upkeep(timedelta(days=3), now=now + timedelta(days=day))
    assert DeltaTable(address).version() > log.at().content
    assert log.lost_files() == []


def test_a_file_of_any_name_is_quoted_in_the_query_for_failing_rows(tmp_path: Path) -> None:
    path = tmp_path / "it's [1] 50%.parquet"
    pq.write_table(pa.table({"n": [7]}), path)
    query = f"SELECT n FROM read_parquet([{file_literal(str(path))}])"
    assert duckdb.connect().execute(query).fetchall() == [(7,)]
