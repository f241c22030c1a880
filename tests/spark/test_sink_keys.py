"""Two rows for one key in a batch that is upserted: it is refused whole, and done when the job is corrected."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from streamwarden.driver.job_api import DELETED
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from tests.spark.job_runs import delta_tables, read_table, run, stream_delta, write_table

pytestmark = pytest.mark.spark

COLUMNS = StructType(
    [StructField("at", TimestampType()), StructField("zone", IntegerType()), StructField("said", StringType())]
)
AT = datetime(2025, 11, 2, 6, 5, tzinfo=UTC)


def rows(*found: tuple[datetime | None, int | None, str, bool]) -> pa.Table:
    kinds = {"at": pa.timestamp("us", "UTC"), "zone": pa.int32(), "said": pa.string(), DELETED: pa.bool_()}
    return pa.table({name: pa.array([row[n] for row in found], kind) for n, (name, kind) in enumerate(kinds.items())})


def spec(*sinks: dict[str, Any]) -> JobSpec:
    source = {"kind": "delta", "table": "rows"}
    return JobSpec.model_validate({"name": "job", "module": "m", "source": source, "sinks": list(sinks)})


def run_job(spark: SparkSession, folder: Path, job_spec: JobSpec, job: Any) -> StreamwardenError | None:
    """Run all batches that are left; return the error that one raised."""
    errors: list[StreamwardenError] = []
    writer = delta_tables(spark, folder, job_spec, job, folder / "checkpoint")

    def write(batch: DataFrame, batch_id: int) -> None:
        try:
            writer(batch, batch_id)
        except StreamwardenError as error:
            errors.append(error)
            raise

    try:
        run(stream_delta(spark, str(folder / "rows")), write, folder / "checkpoint").awaitTermination()
    except StreamingQueryException:
        assert errors
    return errors[0] if errors else None


def said(path: Path) -> list[str]:
    return sorted(row["said"] for row in read_table(path).to_pylist())


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_driver_that_has_lost_its_lease_commits_nothing(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    write_table(tmp_path / "rows", [rows((AT, 1, "a", False))])
    sink = spec({"table": "latest", "mode": mode, "keys": ["at", "zone"]})
    checkpoint, calls = tmp_path / "checkpoint", []
    writer = delta_tables(spark, tmp_path, sink, SimpleNamespace(OUTPUTS={"main": COLUMNS}), checkpoint)

    def lost() -> None:
        calls.append("asked")
        # It had the lease when the batch began.
        if len(calls) > 1:
            raise StreamwardenError("LEASE_LOST", "another driver has it")

    writer._guard = lost
    with pytest.raises(StreamingQueryException, match="LEASE_LOST"):
        run(stream_delta(spark, str(tmp_path / "rows")), writer, checkpoint).awaitTermination()
    assert said(tmp_path / "latest") == []


def test_nulls_are_one_key_and_more_keys_may_tell_rows_apart(spark: SparkSession, tmp_path: Path) -> None:
    write_table(
        tmp_path / "rows",
        [rows((AT, 1, "a", False)), rows((AT, 1, "c", False), (None, 7, "d", False), (None, 7, "e", False))],
    )
    sink = {"table": "latest", "mode": "upsert", "keys": ["at", "zone"]}
    job = SimpleNamespace(OUTPUTS={"main": COLUMNS})
    error = run_job(spark, tmp_path, spec(sink), job)
    assert error is not None and (error.code, error.retryable) == ("SINK_KEY_TWICE", False)
    for words in ("latest: batch 1", "each of 1 keys", "(at, zone)", '{"at":null,"zone":7}'):
        assert words in error.what
    assert said(tmp_path / "latest") == ["a"]
    assert run_job(spark, tmp_path, spec({**sink, "keys": ["at", "zone", "said"]}), job) is None
    assert said(tmp_path / "latest") == ["a", "c", "d", "e"]


def test_deleted_and_upserted_is_twice_and_no_other_table_is_written(spark: SparkSession, tmp_path: Path) -> None:
    write_table(tmp_path / "rows", [rows((AT, 1, "a", False)), rows((AT, 1, "b", True), (AT, 1, "c", False))])
    both = spec(
        # The first, and so written before the other one, if that is not refused earlier.
        {"table": "log", "output": "main", "mode": "append"},
        {"table": "latest", "output": "latest", "mode": "upsert", "keys": ["at", "zone"]},
    )
    given = {"main": COLUMNS, "latest": COLUMNS}
    job = SimpleNamespace(OUTPUTS=given, outputs=lambda batch: {"main": batch.drop(DELETED), "latest": batch})
    error = run_job(spark, tmp_path, both, job)
    assert error is not None and error.code == "SINK_KEY_TWICE"
    assert '{"at":"2025-11-02T06:05:00.000Z","zone":1}' in error.what
    assert said(tmp_path / "log") == said(tmp_path / "latest") == ["a"]

    def corrected(batch: DataFrame) -> dict[str, DataFrame]:
        newest = batch.groupBy("at", "zone").agg(F.max("said").alias("said"))
        return {"main": batch.drop(DELETED), "latest": newest}

    assert run_job(spark, tmp_path, both, SimpleNamespace(OUTPUTS=given, outputs=corrected)) is None
    assert said(tmp_path / "log") == ["a", "b", "c"]
    assert said(tmp_path / "latest") == ["c"]
