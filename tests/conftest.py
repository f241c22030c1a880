"""Fixtures that every folder of tests may use: the one Spark session, real trips, generated trips."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

from streamwarden.spark.java_options import SHORT_LIVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[1]

# Most JVMs of tests live for a minute. A third of their CPU time went into code compiled for a long life.
os.environ.setdefault("JDK_JAVA_OPTIONS", SHORT_LIVED)
# Tests that are about spares ask for them.
os.environ.setdefault("STREAMWARDEN_SPARES", "0")

# No example fails for the time that it took. The same ones each time: what fails is found by a change, not by luck.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# The day that generated trips fall on; a Wednesday.
DAY = datetime(2023, 3, 8, tzinfo=UTC)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One JVM for the whole run: starting one costs more than most tests."""
    from streamwarden.spark.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    session = build_session(
        "streamwarden-tests",
        master="local[2]",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            # Fixed by the first query of the JVM: snapshots are made, and old state removed, within a test.
            "spark.sql.streaming.stateStore.maintenanceInterval": "300ms",
            # Progress of every batch: tests look at all of them.
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        },
        java_options=f"-Dderby.system.home={folder}",
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture(scope="session")
def real_trips() -> Path | None:
    """The folder of real trips, or None where there is none."""
    given = os.environ.get("STREAMWARDEN_TEST_DATA")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "data"
    return folder if list(folder.glob("green_tripdata_*.parquet")) else None


@pytest.fixture(scope="session")
def data_dir(real_trips: Path | None) -> Path:
    """The folder of real trips; tests that need it are skipped where there is none."""
    if real_trips is None:
        pytest.skip("no real trips here: set STREAMWARDEN_TEST_DATA to a folder of green_tripdata_*.parquet")
    return real_trips


TripMaker = Callable[..., pa.Table]


@pytest.fixture(scope="session")
def make_trips() -> TripMaker:
    """Return a maker of small tables of valid trips, in the landing format."""
    return generated_trips


def generated_trips(
    rows: int,
    *,
    seed: int = 1,
    hours: float = 24,
    cards: int = 20,
    schema: str = "2023",
    **columns: list[Any],
) -> pa.Table:
    """Make seeded trips in order of pickup.

    ``schema`` is "2023" (integers, ``ehail_fee`` without a type) or "2025" (doubles, ``cbd_congestion_fee``); `columns`
    replace whole columns.
    """
    random = np.random.default_rng(seed)
    pickup = np.sort(random.integers(0, int(hours * 3600), rows)) + int(DAY.timestamp())
    dropoff = pickup + random.integers(60, 3600, rows)
    fare = random.integers(-500, 6000, rows) / 100
    counted = pa.int64() if schema == "2023" else pa.float64()
    data: dict[str, pa.Array] = {
        "VendorID": pa.array(random.integers(1, 3, rows), pa.int64() if schema == "2023" else pa.int32()),
        "lpep_pickup_datetime": pa.array(pickup * 1_000_000, pa.timestamp("us")),
        "lpep_dropoff_datetime": pa.array(dropoff * 1_000_000, pa.timestamp("us")),
        "store_and_fwd_flag": pa.array(["N"] * rows, pa.string() if schema == "2023" else pa.large_string()),
        "RatecodeID": pa.array(random.integers(1, 6, rows)).cast(counted),
        "PULocationID": pa.array(random.choice([74, 75, 41, 7, 265], rows), pa.int64()),
        "DOLocationID": pa.array(random.integers(1, 266, rows), pa.int64()),
        "passenger_count": pa.array(random.integers(1, 5, rows)).cast(counted),
        "trip_distance": pa.array(random.integers(0, 2000, rows) / 100),
        "fare_amount": pa.array(fare),
        "extra": pa.array(np.full(rows, 0.5)),
        "mta_tax": pa.array(np.full(rows, 0.5)),
        "tip_amount": pa.array(np.zeros(rows)),
        "tolls_amount": pa.array(np.zeros(rows)),
        "ehail_fee": pa.nulls(rows, pa.null() if schema == "2023" else pa.float64()),
        "improvement_surcharge": pa.array(np.full(rows, 0.3)),
        "total_amount": pa.array(np.round(fare + 1.3 + random.integers(0, 100, rows) / 100, 2)),
        "payment_type": pa.array(random.integers(1, 3, rows)).cast(counted),
        "trip_type": pa.array(np.ones(rows)).cast(counted),
        "congestion_surcharge": pa.array(np.zeros(rows)),
    }
    if schema == "2025":
        data["cbd_congestion_fee"] = pa.array(np.full(rows, 0.75))
    if cards:
        data["card_id"] = pa.array([f"card-{number:03d}" for number in random.integers(0, cards, rows)])
    for name, values in columns.items():
        data[name] = values if isinstance(values, pa.Array) else pa.array(values)
    return pa.table(data)
