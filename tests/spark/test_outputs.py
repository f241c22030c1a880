"""Tables that only Spark can give their first contents: a second time changes nothing, whatever came in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from streamwarden.driver.pipeline.outputs import start_outputs
from streamwarden.formats.delta_log import application_id
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.spark

NOW = utc_now()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace("local", config=REPOSITORY / "config", root=tmp_path / "root")


def reference(output: OutputStart, **values: Any) -> CheckpointRef:
    given = {"generation": 2, "highest": 2, "path": "p", "since": NOW, "reason": "for the test", **values}
    return CheckpointRef(job="job", outputs=[output], fenced=True, **given)


def write(spark: SparkSession, workspace: Workspace, table: str, number: int, **ids: Any) -> None:
    rows = spark.range(number, number + 1).write.format("delta").mode("append")
    rows.options(**{name: str(value) for name, value in ids.items()}).save(workspace.table(table))


def batch(spark: SparkSession, workspace: Workspace, number: int) -> None:
    write(spark, workspace, "t", number, txnAppId=application_id("job", 2), txnVersion=number)


def begin(spark: SparkSession, workspace: Workspace, read: CheckpointRef, guard: Callable[[], None]) -> None:
    JobDocuments(workspace.storage, "job").checkpoint.write(read)
    start_outputs(spark, workspace, read, ["t"], guard=guard)


def numbers(workspace: Workspace) -> list[int]:
    return sorted(DeltaTable(workspace.table("t")).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.parametrize(
    "source", [pytest.param(None, marks=[pytest.mark.long, pytest.mark.ci]), "other"], ids=["emptied", "copied"]
)
def test_what_a_successor_wrote_meanwhile_stays(spark: SparkSession, workspace: Workspace, source: str | None) -> None:
    first = [7] if source else []
    if source:
        write(spark, workspace, source, 7)
    write(spark, workspace, "t", 1)
    output = OutputStart(table="t", version=0 if source else None, source=source)

    def taken_over() -> None:
        if not done:
            done.append(True)
            begin(spark, workspace, reference(output), lambda: None)
            batch(spark, workspace, 20)
            # As it is read again by who was paused: the same once more.
            JobDocuments(workspace.storage, "job").checkpoint.write(reference(output))

    done: list[bool] = []
    begin(spark, workspace, reference(output), taken_over)
    assert numbers(workspace) == [*first, 20]
    # One of an earlier generation is passed over as well; a later one is not.
    begin(spark, workspace, reference(output, generation=1, highest=1), lambda: None)
    assert numbers(workspace) == [*first, 20]
    begin(spark, workspace, reference(output, generation=2, highest=3), lambda: None)
    assert numbers(workspace) == first
    batch(spark, workspace, 21)
    assert numbers(workspace) == [*first, 21], "its id is not left in the session"


def test_a_table_of_another_schema_is_put_back_without_spark_and_read_and_written_by_it(
    spark: SparkSession, workspace: Workspace
) -> None:
    """Spark's RESTORE is bound to no version: what a paused driver asks it for undoes its successor's batches."""
    path = workspace.table("t")
    write(spark, workspace, "t", 1)
    more = spark.createDataFrame([(2, "x")], "id long, more string")
    more.write.format("delta").mode("append").option("mergeSchema", "true").save(path)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.logRetentionDuration = 'interval 9 days')")
    assert spark.read.format("delta").load(path).columns == ["id", "more"]
    begin(spark, workspace, reference(OutputStart(table="t", version=0)), lambda: None)
    table = spark.read.format("delta").load(path)
    assert (table.columns, [row.id for row in table.collect()]) == (["id"], [1])
    assert "delta.logRetentionDuration" not in spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first().properties  # type: ignore[union-attr]
    last = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").first()
    assert last is not None and (last.version, last.operation) == (3, "RESTORE")
    assert last.engineInfo.startswith("delta-rs"), last.engineInfo
    batch(spark, workspace, 20)
    assert numbers(workspace) == [1, 20]
    assert [row.id for row in spark.read.format("delta").load(path).sort("id").collect()] == [1, 20]
