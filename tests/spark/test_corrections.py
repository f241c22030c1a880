"""Trips that the job's watermark drops are folded in while it runs, and the table equals a batch computation."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import zone_windows
from streamwarden.driver.job_api import JobSettings
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef
from streamwarden.operations.corrections import CORRECTED_AT, CORRECTED_ROWS, Applied, corrections_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.conftest import TripMaker
from tests.spark.job_runs import (
    as_trips,
    delta_tables,
    in_order_of_arrival,
    late_by_batch,
    read_table,
    run,
    stream_delta,
    write_table,
)
from tests.spark.test_zone_windows import real_days

pytestmark = pytest.mark.spark

JOB = "zone_windows"


@pytest.mark.long
@pytest.mark.ci
def test_generated_trips(spark: SparkSession, tmp_path: Path, make_trips: TripMaker) -> None:
    _corrected_while_it_runs(spark, tmp_path, as_trips(make_trips(3000, hours=30)))


@pytest.mark.long
def test_real_trips(spark: SparkSession, tmp_path: Path, data_dir: Path) -> None:
    _corrected_while_it_runs(spark, tmp_path, real_days(data_dir, datetime(2023, 3, 8), days=2))


def _corrected_while_it_runs(spark: SparkSession, tmp_path: Path, trips: pa.Table) -> None:
    workspace = open_workspace("local", root=tmp_path)
    spec = workspace.job(JOB)
    reference = CheckpointRef(job=JOB, generation=1, path="checkpoint", since=utc_now(), reason="")
    JobDocuments(workspace.storage, JOB).checkpoint.write(reference)
    parts = in_order_of_arrival(trips, seed=5, late_share=0.2, latest=timedelta(hours=9), batches=10)
    path = write_table(tmp_path / "tables" / "trips", parts)
    checkpoint = tmp_path / "checkpoint"
    writer = delta_tables(spark, tmp_path / "tables", spec, zone_windows, checkpoint)
    settings = JobSettings(watermark=spec.watermark, ttl=None, options=zone_windows.Options())
    with _Correcting(workspace) as correcting:

        def write(batch: DataFrame, batch_id: int) -> None:
            # So that corrections meet batches that have begun: every second one is made while a batch writes.
            if batch_id % 2:
                correcting.now.set()
            writer(batch, batch_id)

        query = run(zone_windows.transform(stream_delta(spark, path), settings), write, checkpoint)
        query.awaitTermination()
    late = late_by_batch(query, checkpoint)
    assert sum(late.values()) > 50
    assert any(one.commit is not None for one in correcting.done), "none was made while the job ran"

    [corrections] = corrections_of(workspace, JOB)
    corrections.apply(by="test")
    table = read_table(tmp_path / "tables" / JOB)
    difference = compare_zone_windows(expected_zone_windows(trips), table)
    closed = sum(row["is_final"] for row in table.to_pylist())
    assert difference.equal, str(difference)
    assert closed > 0.8 * table.num_rows
    marked = table.filter(pa.compute.is_valid(table[CORRECTED_AT]))
    # A late trip was counted by a correction, each exactly once.
    assert sum(marked[CORRECTED_ROWS].to_pylist()) == sum(late.values())
    assert corrections.apply(by="test").commit is None


class _Correcting:
    """Folds late trips in again and again, in a thread."""

    def __init__(self, workspace: Workspace) -> None:
        self.done: list[Applied] = []
        self.now = threading.Event()
        self._workspace = workspace
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stopped:
                self.now.wait(0.5)
                self.now.clear()
                for one in corrections_of(self._workspace, JOB):
                    self.done.append(one.apply(by="test"))
        except BaseException as error:
            self._error = error

    def __enter__(self) -> _Correcting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self.now.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
