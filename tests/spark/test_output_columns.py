"""Columns of an output table that are not the job's, or not yet: which are left alone, added, or refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from streamwarden.driver.pipeline.outputs import AUTHOR, start_outputs
from streamwarden.driver.pipeline.sink import DeltaSink
from streamwarden.errors import StreamwardenError
from streamwarden.formats.output_columns import RECORD
from streamwarden.model.record import utc_now
from streamwarden.model.spec import SinkSpec
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.runtime.failure_signatures import recognise
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.conftest import REPOSITORY
from tests.spark.job_runs import run, stream_delta

pytestmark = pytest.mark.spark

KEYED = {"mode": "upsert", "keys": ["id"]}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace("local", config=REPOSITORY / "config", root=tmp_path / "root")


class Table:
    """An output table, and those who write it: the job, and somebody else."""

    def __init__(self, spark: SparkSession, workspace: Workspace, name: str = "t", **sink: Any) -> None:
        self.spark, self.name = spark, name
        self.path = workspace.table(name)
        self.spec = SinkSpec.model_validate({"table": name, **(sink or KEYED)})

    def job(self, columns: str = "id long, total long", **values: Any) -> DeltaSink:
        """Start the job with these columns."""
        schema = self.spark.createDataFrame([], columns).schema
        return DeltaSink(self.spark, self.path, self.spec, schema, "streamwarden/job/g000001", **values)

    def write(self, batch: int, *rows: tuple[Any, ...], columns: str = "id long, total long", **values: Any) -> None:
        self.put(self.job(columns, **values), self.frame(columns, *rows), batch)

    def put(self, job: DeltaSink, rows: DataFrame, batch: int, watermark_ms: int = 0) -> None:
        """Write a batch: even ones by delta-rs, odd ones by Spark."""
        job.write(job.arrived(rows, small=batch % 2 == 0), batch, watermark_ms, guard=lambda: None)

    def frame(self, columns: str, *rows: tuple[Any, ...]) -> DataFrame:
        return self.spark.createDataFrame(list(rows), columns)

    def sql(self, words: str) -> None:
        """Let somebody else change it."""
        self.spark.sql(words.format(f"delta.`{self.path}`"))

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(self.path).to_pyarrow_table().sort_by("id").to_pylist()
        return rows

    @property
    def version(self) -> int:
        return DeltaTable(self.path).version()

    @property
    def record(self) -> list[str]:
        found: list[str] = json.loads(DeltaTable(self.path).metadata().configuration[RECORD])
        return found

    def refused(self, columns: str = "id long, total long", **values: Any) -> StreamwardenError:
        before = self.version
        with pytest.raises(StreamwardenError, match="SINK_SCHEMA_MISMATCH") as raised:
            self.job(columns, **values)
        assert f"table {self.name}:" in raised.value.what and self.version == before
        return raised.value


@pytest.fixture
def table(spark: SparkSession, workspace: Workspace) -> Table:
    return Table(spark, workspace)


@pytest.mark.parametrize(
    "mode", [*(pytest.param(mode, marks=pytest.mark.long) for mode in ("append", "append with keys")), "upsert"]
)
@pytest.mark.parametrize("first", [pytest.param(1, marks=pytest.mark.long), 2], ids=["spark", "delta-rs"])
def test_a_column_that_somebody_added_stays_theirs(
    spark: SparkSession, workspace: Workspace, mode: str, first: int
) -> None:
    keys = [] if mode == "append" else ["id"]
    table = Table(spark, workspace, mode=mode.split()[0], keys=keys)
    table.write(first, (1, 10), (2, 20))
    running = table.job()
    table.sql("ALTER TABLE {} ADD COLUMNS (note STRING, more STRUCT<a: INT>)")
    table.sql("UPDATE {} SET note = 'theirs' WHERE id = 2")
    table.put(running, table.frame("id long, total long", (3, 30)), first + 2)
    (said,) = table.job().notes
    assert "table t" in said and "note string, more struct<a:int>" in said
    table.write(first + 4, (2, 21), (4, 40))
    found = [(row["id"], row["total"], row["note"], row["more"]) for row in table.rows()]
    second = [(2, 21, "theirs", None)] if mode == "upsert" else [(2, 20, "theirs", None)]
    again = [(2, 21, None, None)] if mode == "append" else []
    assert sorted(found, key=str) == sorted(
        [(1, 10, None, None), *second, *again, (3, 30, None, None), (4, 40, None, None)], key=str
    )
    assert table.record == ["id", "total"]


@pytest.mark.long
@pytest.mark.ci
def test_what_is_no_hindrance_is_none(table: Table) -> None:
    """Defaults, generated columns, properties, and constraints that a null meets, or that depend on the row."""
    table.sql(
        "CREATE TABLE {} (id LONG, total LONG, twice LONG GENERATED ALWAYS AS (total * 2), note STRING) USING delta"
    )
    table.sql("ALTER TABLE {} ADD CONSTRAINT short CHECK (note IS NULL OR length(note) < 9)")
    table.sql("ALTER TABLE {} ADD CONSTRAINT either CHECK (note <> 'x' OR total > 0)")
    table.write(0, (1, 10))
    table.write(1, (1, 11), (2, 20))
    assert [(row["id"], row["total"], row["twice"]) for row in table.rows()] == [(1, 11, 22), (2, 20, 40)]


def test_a_column_that_takes_no_nulls_is_refused_until_it_does(table: Table) -> None:
    table.sql("CREATE TABLE {} (id LONG, total LONG, must STRING NOT NULL) USING delta")
    error = table.refused()
    assert "column must" in error.what and "DROP NOT NULL" in error.remedy
    table.spark.sql(error.remedy.rstrip("."))
    table.write(0, (1, 10))
    assert [row["id"] for row in table.rows()] == [1]


@pytest.mark.long
def test_a_constraint_on_a_column_of_somebody_else_is_refused_until_it_is_gone(table: Table) -> None:
    table.write(0, (1, 10))
    table.sql("ALTER TABLE {} ADD COLUMNS (note STRING)")
    table.sql("UPDATE {} SET note = 'y'")
    table.sql("ALTER TABLE {} ADD CONSTRAINT good CHECK (note <> 'x')")
    error = table.refused()
    assert "column note" in error.what and "good" in error.what and "note <> 'x'" in error.what
    table.spark.sql(error.remedy.rstrip("."))
    table.write(1, (2, 20))
    assert [row["id"] for row in table.rows()] == [1, 2]


@pytest.mark.parametrize(
    ("columns", "words", "remedy"),
    [
        ("id long, total string", "column total: the job writes string, the table has bigint", "Write total as bigint"),
        ("id long, Total long", "column Total: the table has it as total", "Name it total"),
        ("id long, sum long", "column total: the job has written it (bigint), but its module", "Keep total"),
        ("id long", "column total: the job has written it (bigint), but its module", "Keep total"),
    ],
    ids=["type", "case", "renamed", "removed"],
)
def test_what_is_no_added_column_is_refused(table: Table, columns: str, words: str, remedy: str) -> None:
    table.write(0, (1, 10))
    error = table.refused(columns)
    assert words in error.what and remedy in error.remedy
    table.write(1, (2, 20))


def test_a_removed_column_is_left_alone_once_a_person_says_so(table: Table) -> None:
    table.write(0, (1, 10))
    error = table.refused("id long")
    release = error.remedy.split(": ", 1)[1].split("; ", 1)[0]
    table.spark.sql(release)
    table.write(1, (1,), (2,), columns="id long")
    assert [(row["id"], row["total"]) for row in table.rows()] == [(1, 10), (2, None)]
    assert table.record == ["id"]


@pytest.mark.parametrize(
    "how", [pytest.param("DROP COLUMN total", marks=pytest.mark.long), "RENAME COLUMN total TO sum"]
)
def test_a_column_of_the_job_s_that_somebody_took_away_is_not_added_anew(table: Table, how: str) -> None:
    table.write(0, (1, 10))
    table.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    table.sql(f"ALTER TABLE {{}} {how}")
    error = table.refused()
    assert "column total: the job has written it (bigint), but the table no longer has it" in error.what
    if how.startswith("RENAME"):
        table.sql("ALTER TABLE {} RENAME COLUMN sum TO `total`")
    else:
        table.spark.sql("ALTER TABLE" + error.remedy.rsplit("ALTER TABLE", 1)[1].rstrip("."))
    table.write(1, (2, 20))
    read = table.spark.read.format("delta").load(table.path).sort("id")
    assert [row.total for row in read.collect()] == [10 if how.startswith("RENAME") else None, 20]


def test_a_table_of_somebody_else_s_gets_no_columns(table: Table) -> None:
    table.sql("CREATE TABLE {} (id LONG, other LONG) USING delta")
    error = table.refused()
    assert "column total: the table lacks it (bigint)" in error.what
    add = error.remedy.split(": ", 1)[1].split(". Else", 1)[0]
    table.spark.sql(add)
    table.write(0, (1, 10))
    assert [(row["id"], row["total"], row["other"]) for row in table.rows()] == [(1, 10, None)]


def test_a_table_that_was_made_before_there_was_a_record_gets_one(table: Table) -> None:
    table.sql("CREATE TABLE {} (id LONG, total LONG) USING delta")
    before = table.version
    assert table.job().notes == []
    assert table.record == ["id", "total"] and table.version == before + 1
    table.job()
    assert table.version == before + 1, "once"
    assert table.job("id long, total long, more string").notes


WIDE = "id long, total long, `a-b` struct<`c-d`: int>"


def test_a_column_that_the_job_has_newly_got_is_added_under_the_lease(table: Table) -> None:
    table.write(0, (1, 10))
    with pytest.raises(RuntimeError, match="lease"):
        table.job(WIDE, guard=_lost)
    assert len(DeltaTable(table.path).schema().fields) == 2
    table.spark.conf.set(AUTHOR, "incarnation i1")
    try:
        (said,) = table.job(WIDE).notes
    finally:
        table.spark.conf.unset(AUTHOR)
    assert "table t" in said and "a-b struct<c-d:int>" in said
    newest = DeltaTable(table.path).history(2)
    assert [one["operation"] for one in newest] == ["SET TBLPROPERTIES", "ADD COLUMNS"]
    assert {one["userMetadata"] for one in newest} == {"incarnation i1"}
    table.write(1, (1, 11, (5,)), (2, 20, None), columns=WIDE)
    assert [row["a-b"] for row in table.rows()] == [{"c-d": 5}, None]
    assert table.job(WIDE).notes == []


def test_who_died_between_the_columns_and_the_record_goes_on(table: Table) -> None:
    table.write(0, (1, 10))
    calls: list[None] = []

    def dies() -> None:
        calls.append(None)
        if len(calls) == 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        table.job("id long, total long, more long", guard=dies)
    assert table.record == ["id", "total"]
    table.write(1, (2, 20, 2), columns="id long, total long, more long")
    assert table.record == ["id", "total", "more"] and [row["more"] for row in table.rows()] == [None, 2]


@pytest.mark.long
def test_the_version_before_goes_on_beside_a_column_that_was_added_in_vain(table: Table) -> None:
    table.write(0, (1, 10))
    table.write(1, (2, 20, 2), columns="id long, total long, more long")
    table.refused()
    (said,) = table.job(released=True).notes
    assert "not the job's: more bigint" in said
    table.write(2, (2, 21), (3, 30))
    assert [(row["id"], row["total"], row["more"]) for row in table.rows()] == [
        (1, 10, None),
        (2, 21, 2),
        (3, 30, None),
    ]
    # And forward again, by a version with yet another one.
    table.write(3, (3, 31, 3, 33), columns="id long, total long, more long, most long")
    assert [(row["more"], row["most"]) for row in table.rows()] == [(None, None), (2, None), (3, 33)]


@pytest.mark.parametrize("number", [1, 2], ids=["spark", "delta-rs"])
def test_rows_that_are_older_than_is_final_become_final(spark: SparkSession, workspace: Workspace, number: int) -> None:
    table = Table(spark, workspace)
    columns = "id long, ends timestamp"
    rows = spark.sql("SELECT 1L AS id, timestamp_seconds(60) AS ends")
    table.put(table.job(columns), rows, 0)
    final = Table(spark, workspace, **KEYED, final_when_passed="ends")
    later = spark.sql("SELECT 2L AS id, timestamp_seconds(600) AS ends")
    final.put(final.job(columns), later, number, 120_000)
    assert [(row["id"], row["is_final"]) for row in final.rows()] == [(1, True), (2, False)]


@pytest.mark.long
@pytest.mark.parametrize("source", [pytest.param(None, marks=pytest.mark.ci), "other"], ids=["put back", "clone"])
def test_a_table_that_is_put_back_to_fewer_columns_gets_them_again(
    spark: SparkSession, workspace: Workspace, source: str | None
) -> None:
    more = "id long, total long, more long"
    first = Table(spark, workspace, source or "t")
    first.write(0, (1, 10))
    first.sql("ALTER TABLE {} ADD COLUMNS (note STRING)")
    then = first.version
    table = Table(spark, workspace)
    table.write(1, (2, 20, 2), columns=more)
    output = OutputStart(table="t", version=then, source=source)
    read = CheckpointRef(
        job="job", generation=2, highest=2, path="p", since=utc_now(), reason="", outputs=[output], fenced=True
    )
    JobDocuments(workspace.storage, "job").checkpoint.write(read)
    start_outputs(spark, workspace, read, ["t"], guard=lambda: None)
    assert set(DeltaTable(table.path).to_pyarrow_table().column_names) == {"id", "total", "note"}
    added, foreign = table.job(more).notes
    assert "more bigint" in added and "note string" in foreign
    table.write(9, (3, 30, 3), columns=more)
    assert [(row["id"], row["more"], row["note"]) for row in table.rows()] == [(1, None, None), (3, 3, None)]


@pytest.mark.long
def test_a_reader_of_the_table_goes_on_with_nothing_lost_or_doubled(
    spark: SparkSession, workspace: Workspace, tmp_path: Path
) -> None:
    table = Table(spark, workspace, mode="append")
    read, seen = tmp_path / "checkpoint", Table(spark, workspace, "seen", mode="append")

    def begin() -> Any:
        sink = seen.job("id long")
        rows = stream_delta(spark, table.path).select("id")

        def write(batch: DataFrame, batch_id: int) -> None:
            seen.put(sink, batch, batch_id)

        return run(rows, write, read, processingTime="100 milliseconds")

    table.write(0, (1, 10))
    query = begin()
    _wait(lambda: len(seen.rows()) == 1)
    # What neither adds nor takes away a column is no matter to it.
    table.sql("ALTER TABLE {} SET TBLPROPERTIES ('made.by' = 'hand')")
    table.write(1, (2, 20))
    _wait(lambda: len(seen.rows()) == 2)
    table.write(2, (3, 30, 3), columns="id long, total long, more long")
    table.write(3, (4, 40, 4, 4), columns="id long, total long, more long, most long")
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(120)
    known = recognise(str(raised.value))
    assert known is not None and known.code == "SOURCE_SCHEMA_CHANGED"
    # As the driver does it, once: with the columns as they are now, which are those of both changes.
    query = begin()
    _wait(lambda: len(seen.rows()) >= 4)
    table.write(4, (5, 50, 5, 5), columns="id long, total long, more long, most long")
    _wait(lambda: len(seen.rows()) >= 5)
    query.stop()
    assert [row["id"] for row in seen.rows()] == [1, 2, 3, 4, 5]


def _lost() -> None:
    raise RuntimeError("the lease is lost")


def _wait(condition: Callable[[], bool], timeout: float = 180) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "still waiting"
        time.sleep(0.1)
