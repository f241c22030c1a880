"""The table of batches, which no Spark writes, read by Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streamwarden.formats.progress_table import COLUMNS, ProgressTable
from tests.batches import made_batch, make_place

pytestmark = pytest.mark.spark


def test_spark_reads_what_drivers_wrote(spark: SparkSession, tmp_path: Path) -> None:
    workspace = make_place(tmp_path)
    table = ProgressTable(workspace)
    for job in ("lamp", "other"):
        table.append(job, "i1", 1, [made_batch(number) for number in range(4)])
    read = spark.read.format("delta").load(workspace.table("job_progress"))
    assert read.columns == list(COLUMNS)
    (row,) = (
        read.where("job = 'lamp' and batch = 2")
        .select("at", "rows_in", F.col("operators")[0]["metrics"]["rocksdbSstFileSize"].alias("sst"))
        .collect()
    )
    assert (row["at"].timestamp(), row["rows_in"], row["sst"]) == (made_batch(2).at.timestamp(), 100, 77)
    assert read.groupBy("job").count().count() == 2
    comments = {field.name: field.metadata["comment"] for field in read.schema}
    assert comments == {name: text for name, (_, text) in COLUMNS.items()}
    table.upkeep(timedelta(days=36_500))
    assert spark.read.format("delta").load(workspace.table("job_progress")).count() == 8
