from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nyc_taxi.trips.columns import PICKUP
from nyc_taxi.trips.generator import GeneratorOptions, InvalidRows, generate
from nyc_taxi.trips.tlc import read_tlc

from streamwarden.errors import StreamwardenError

pytestmark = pytest.mark.unit

TRIPS_2023 = generate(GeneratorOptions(trips=300, invalid=InvalidRows.each(2)))
TRIPS_2025 = generate(GeneratorOptions(trips=200, schema="2025"))


@pytest.fixture
def written(tmp_path):
    def write(name: str, table: pa.Table):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        return path

    return write


def test_a_file_comes_back_as_it_is(written):
    for name, table in (("a.parquet", TRIPS_2023), ("year=2025/b.parquet", TRIPS_2025)):
        found = read_tlc([written(name, table)])
        # Not equal as a whole: NaN is not NaN.
        assert found.schema.equals(table.schema)
        assert found.num_rows == table.num_rows and found[PICKUP].equals(table[PICKUP])


def test_both_schemas_together(written):
    found = read_tlc([written("a.parquet", TRIPS_2023), written("b.parquet", TRIPS_2025)])
    assert found.schema.equals(TRIPS_2025.schema)
    assert found.num_rows == TRIPS_2023.num_rows + 200
    assert found["cbd_congestion_fee"].null_count == TRIPS_2023.num_rows


def test_period(written):
    start, end = datetime(2023, 3, 7), datetime(2023, 3, 9, 12)
    found = read_tlc([written("a.parquet", TRIPS_2023)], start=start, end=end)[PICKUP].to_pylist()
    assert sorted(found) == sorted(p for p in TRIPS_2023[PICKUP].to_pylist() if p is not None and start <= p < end)
    assert read_tlc([written("a.parquet", TRIPS_2023)], end=start)[PICKUP].to_pylist()[0] < start


def test_the_dense_week_of_the_real_file(real_trips):
    found = read_tlc([real_trips("2023-03")], start=datetime(2023, 3, 6), end=datetime(2023, 3, 13))
    assert found.num_rows == 16_423


def test_the_real_files_together(real_trips):
    found = read_tlc([real_trips(month) for month in ("2023-01", "2023-02", "2025-11")])
    assert found.num_rows == 68_211 + 64_809 + 46_912
    assert found.schema.field("VendorID").type == pa.int64()


def test_what_is_not_a_green_taxi_file(written, tmp_path):
    text = tmp_path / "text.parquet"
    text.write_text("no parquet")
    yellow = TRIPS_2023.rename_columns([name.replace("lpep", "tpep") for name in TRIPS_2023.column_names])
    place = TRIPS_2023.schema.get_field_index(PICKUP)
    textual = TRIPS_2023.set_column(place, PICKUP, TRIPS_2023[PICKUP].cast(pa.string()))
    for path, says in (
        (tmp_path / "absent.parquet", "absent.parquet"),
        (tmp_path, str(tmp_path)),
        (text, "text.parquet"),
        (written("yellow.parquet", yellow), "no column lpep_pickup_datetime, lpep_dropoff_datetime"),
        (written("textual.parquet", textual), "lpep_pickup_datetime has type string"),
    ):
        with pytest.raises(StreamwardenError, match="REPLAY_SOURCE_INVALID") as error:
            read_tlc([path])
        assert says in error.value.what
    with pytest.raises(StreamwardenError, match="no file"):
        read_tlc([])
