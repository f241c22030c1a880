import os
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from nyc_taxi.trips.columns import DROPOFF, GREEN_2023, PICKUP

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def real_trips():
    """Path of a real file by its month; skips where the files are not."""
    folder = Path(os.environ.get("STREAMWARDEN_TEST_DATA", REPOSITORY.parent / "shared" / "data"))

    def find(month: str) -> Path:
        path = folder / f"green_tripdata_{month}.parquet"
        if not path.exists():
            pytest.skip(f"no real trips: {path} (set STREAMWARDEN_TEST_DATA)")
        return path

    return find


@pytest.fixture(scope="session")
def make_trips():
    """Trips with the given pickups, a quarter of an hour long, all else alike; the total tells them apart."""

    def make(pickups: list[datetime | None]) -> pa.Table:
        rows = len(pickups)
        values = {
            name: pa.nulls(rows, type_) for name, type_ in zip(GREEN_2023.names, GREEN_2023.types, strict=True)
        } | {
            "VendorID": pa.array([2] * rows, pa.int32()),
            PICKUP: pa.array(pickups, pa.timestamp("us")),
            DROPOFF: pa.array(
                [None if pickup is None else pickup + timedelta(minutes=15) for pickup in pickups], pa.timestamp("us")
            ),
            "PULocationID": pa.array([74] * rows, pa.int32()),
            "DOLocationID": pa.array([75] * rows, pa.int32()),
            "total_amount": pa.array([10.0 + row for row in range(rows)], pa.float64()),
        }
        return pa.table(values, schema=GREEN_2023)

    return make
