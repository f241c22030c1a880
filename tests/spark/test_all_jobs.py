"""The three jobs one after the other, as their YAML says, into Delta by the driver's sinks; compared without Spark."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from nyc_taxi.demo.batch import (
    compare_card_sessions,
    compare_quarantine,
    compare_trips,
    compare_zone_windows,
    expected_card_sessions,
    expected_zone_windows,
    read_landed,
)
from nyc_taxi.trips.cards import add_card_ids
from pyspark.sql import SparkSession

from spark_jobs import card_sessions, ingest_trips, zone_windows
from streamwarden.driver.job_api import JobSettings
from streamwarden.store.config import load_job
from tests.conftest import REPOSITORY, TripMaker
from tests.spark.job_runs import (
    delta_tables,
    in_order_of_arrival,
    read_table,
    rows_read,
    run,
    run_until,
    stream_delta,
    stream_files,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONFIG = REPOSITORY / "config"


@pytest.mark.long
@pytest.mark.ci
def test_equal_to_batch_from_files_to_sessions(
    spark: SparkSession, tmp_path: Path, real_trips: Path | None, make_trips: TripMaker
) -> None:
    """A day of real trips where they are at hand, else generated ones."""
    path = real_trips / "green_tripdata_2023-03.parquet" if real_trips else None
    if path is None or not path.exists():
        trips = make_trips(1500, hours=20, cards=200, schema="2025")
    else:
        trips = pq.read_table(path)
        first = datetime(2023, 3, 10)
        pickup = trips["lpep_pickup_datetime"]
        in_time = pc.and_(pc.greater_equal(pickup, first), pc.less(pickup, first + timedelta(days=1)))
        trips = add_card_ids(trips.filter(in_time))
    landing, tables = tmp_path / "landing", tmp_path / "tables"
    landing.mkdir()
    spec = load_job("ingest_trips", config=CONFIG)
    options = ingest_trips.Options.model_validate(spec.options)
    sink = delta_tables(spark, tables, spec, ingest_trips, tmp_path / "ingest")
    files = stream_files(spark, landing, files=spec.source.max_files_per_batch)
    ingest = ingest_trips.transform(files, JobSettings(watermark=None, ttl=None, options=options))

    spec = load_job("zone_windows", config=CONFIG)
    settings = JobSettings(
        watermark=spec.watermark, ttl=None, options=zone_windows.Options.model_validate(spec.options)
    )
    windows_sink = delta_tables(spark, tables, spec, zone_windows, tmp_path / "windows")
    source = str(tables / "trips")

    # Late by less than the watermark, so that no window misses one. Each round is one batch of each job: the files of
    # one Delta commit must not come in several, since a commit's rows are in no order of time.
    parts = in_order_of_arrival(trips, seed=6, late_share=0.2, latest=timedelta(minutes=110), batches=6)
    for number in range(3):
        for part in (2 * number, 2 * number + 1):
            pq.write_table(parts[part], landing / f"{part:03d}.parquet")
        if number == 2:
            # Delivered twice, in the same batch and long before; with bad rows; and one that is no file of trips.
            pq.write_table(pa.concat_tables([parts[5], parts[1]]), landing / "006.parquet")
            bad = parts[0].slice(0, 3)
            at = bad.schema.get_field_index("PULocationID")
            bad = bad.set_column(
                at, "PULocationID", pa.array([0, bad["PULocationID"][1].as_py(), None], bad.schema.field(at).type)
            )
            pq.write_table(bad, landing / "007.parquet")
            (landing / "008.parquet").write_text("not parquet")
        run(ingest, sink, tmp_path / "ingest").awaitTermination()
        windows = zone_windows.transform(stream_delta(spark, source, files=1000), settings)
        query = run(windows, windows_sink, tmp_path / "windows")
        query.awaitTermination()

    landed = read_landed(landing.iterdir(), earliest=options.earliest, latest=options.latest)
    duplicates = sum(counts.rows_duplicate for batch in range(3) if (counts := sink.counts(batch)))
    assert landed.duplicates == duplicates >= parts[1].num_rows + parts[5].num_rows + 1
    found = compare_trips(landed.trips, read_table(tables / "trips"))
    assert found.equal, str(found)
    quarantine = compare_quarantine(landed.quarantine, read_table(tables / "trips_quarantine"))
    assert quarantine.equal and quarantine.expected == 3, str(quarantine)

    table = read_table(tables / "zone_windows")
    found = compare_zone_windows(expected_zone_windows(landed.trips), table)
    assert found.equal, str(found)
    # Final is what the last watermark has passed, and nothing else.
    last = datetime.fromisoformat(query.lastProgress.eventTime["watermark"])
    assert table["is_final"].to_pylist() == pc.less_equal(table["window_end"], pa.scalar(last)).to_pylist()
    assert {True, False} == set(table["is_final"].to_pylist())

    spec = load_job("card_sessions", config=CONFIG)
    checkpoint = tmp_path / "sessions"
    sink = delta_tables(spark, tables, spec, card_sessions, checkpoint)
    close = card_sessions.Options.model_validate({**spec.options, "close_after": "2s"})
    job = card_sessions.transform(
        stream_delta(spark, source),
        JobSettings(watermark=spec.watermark, ttl=spec.state.ttl, options=close, buckets=16),
    )

    def all_closed(query: object) -> bool:
        if rows_read(query) < landed.trips.num_rows:  # type: ignore[arg-type]
            return False
        return set(read_table(tables / "card_sessions")["status"].to_pylist()) == {"closed"}

    run_until(job, sink, checkpoint, all_closed)
    found = compare_card_sessions(expected_card_sessions(landed.trips), read_table(tables / "card_sessions"))
    assert found.equal, str(found)
