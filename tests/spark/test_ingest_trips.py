"""ingest_trips in a real query: files of all kinds, batch by batch."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark_jobs import ingest_trips
from streamwarden.driver.job_api import JobSettings
from tests.conftest import TripMaker
from tests.spark.job_runs import batch_time, run, stream_files

pytestmark = pytest.mark.spark

OPTIONS = {"earliest": "2023-01-01", "latest": "2026-01-01"}
SETTINGS = JobSettings(watermark=None, ttl=None, options=ingest_trips.Options.model_validate(OPTIONS))


class Outputs:
    """Collects the rows of each output and batch; fails the first try of one batch."""

    def __init__(self, fail_on: int) -> None:
        self.tries: list[tuple[int, dict[str, list[Row]]]] = []
        self._fail_on: int | None = fail_on

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        self.tries.append((batch_id, {name: rows.collect() for name, rows in ingest_trips.outputs(batch).items()}))
        batch.unpersist()
        if batch_id == self._fail_on:
            self._fail_on = None
            raise RuntimeError("the sink fails, for once")

    def rows(self, name: str) -> list[Row]:
        return [row for outputs in dict(self.tries).values() for row in outputs[name]]


def test_files_of_all_kinds(spark: SparkSession, tmp_path: Path, make_trips: TripMaker) -> None:
    landing, checkpoint = tmp_path / "landing", tmp_path / "checkpoint"
    landing.mkdir()
    pq.write_table(make_trips(300), landing / "a b%20c.parquet")
    pq.write_table(make_trips(200, schema="2025", seed=2, cards=0), landing / "later.parquet")
    pq.write_table(make_trips(5, seed=3, PULocationID=[0, 1, 300, None, 5]), landing / "some.parquet")
    (landing / "text.csv").write_text("a,b\n1,2\n")
    (landing / "cut.parquet").write_bytes((landing / "later.parquet").read_bytes()[:-9])
    (landing / "empty.parquet").touch()
    (landing / ".hidden.parquet").write_bytes(b"still being written")
    sink = Outputs(fail_on=1)
    job = ingest_trips.transform(stream_files(spark, landing, files=2), SETTINGS)
    with pytest.raises(Exception, match="the sink fails"):
        run(job, sink, checkpoint).awaitTermination()
    run(job, sink, checkpoint).awaitTermination()

    first, again = (outputs for batch, outputs in sink.tries if batch == 1)
    assert first == again, "a replayed batch says the same, its time too"

    trips = sink.rows("main")
    assert [column.name for column in ingest_trips.OUTPUTS["main"]] == list(trips[0].asDict())
    assert {(row.source_file, row.source_row) for row in trips} == {
        *(("a b%20c.parquet", row) for row in range(300)),
        *(("later.parquet", row) for row in range(200)),
        ("some.parquet", 1),
        ("some.parquet", 4),
    }
    landed = make_trips(300).to_pylist()
    for row in trips:
        if row.source_file.startswith("a"):
            assert row.asDict() | landed[row.source_row] == row.asDict(), "times did not shift, amounts are the same"
    assert {row.card_id is None for row in trips if row.source_file == "later.parquet"} == {True}
    assert {row.cbd_congestion_fee for row in trips if row.source_file == "later.parquet"} == {0.75}

    quarantine = sink.rows("quarantine")
    assert [column.name for column in ingest_trips.OUTPUTS["quarantine"]] == list(quarantine[0].asDict())
    found: dict[Any, list[str]] = {
        (row.source_file, row.source_row): [reason.partition(":")[0] for reason in row.reasons] for row in quarantine
    }
    assert found == {
        ("some.parquet", 0): ["ZONE_OUT_OF_RANGE"],
        ("some.parquet", 2): ["ZONE_OUT_OF_RANGE"],
        ("some.parquet", 3): ["NO_PICKUP_ZONE"],
        ("text.csv", None): ["FILE_FOREIGN"],
        ("cut.parquet", None): ["FILE_UNREADABLE"],
    }
    times = {batch_time(checkpoint, batch) for batch, _ in sink.tries}
    assert {row.quarantined_at.replace(tzinfo=UTC) for row in quarantine} <= times
    assert min(times) > datetime(2023, 1, 1, tzinfo=UTC)
