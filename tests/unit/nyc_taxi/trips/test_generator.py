from dataclasses import replace
from datetime import datetime, timedelta

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nyc_taxi.trips.columns import DROPOFF, GREEN_2023, GREEN_2025, PICKUP, TRIP_KEY
from nyc_taxi.trips.generator import TRIPS_A_WEEK, GeneratorOptions, InvalidRows, generate
from nyc_taxi.trips.tlc import read_tlc

from streamwarden.errors import StreamwardenError

pytestmark = pytest.mark.unit

WEEK = generate()

FIGURES = """
    select count(*) trips,
        avg((PULocationID in (74, 75))::int) busiest_two,
        avg((passenger_count is null)::int) null_block,
        avg((fare_amount < 0)::int) reversals,
        avg((fare_amount = 0)::int) zero_fares,
        avg((trip_distance = 0)::int) zero_distances,
        avg((trip_distance > 100)::int) far,
        avg((minutes > 360)::int) long,
        avg((PULocationID in (264, 265))::int) unknown_zones,
        avg((payment_type = 1)::int) by_card,
        median(trip_distance) miles, median(minutes) minutes_,
        median(fare_amount) fare, median(total_amount) total, avg(total_amount) mean_total,
        avg(tip_amount) filter (payment_type = 1) tip,
        avg((hour(lpep_pickup_datetime) between 16 and 18)::int) afternoon,
        avg((hour(lpep_pickup_datetime) between 2 and 5)::int) night,
        avg((isodow(lpep_pickup_datetime) > 5)::int) weekend
    from (select *, epoch(lpep_dropoff_datetime - lpep_pickup_datetime) / 60 as minutes from trips)
"""

# (absolute, relative) tolerance; rare things by the spread of a Poisson count.
TOLERANCE = {
    "trips": (0, 0),
    "busiest_two": (0.02, 0),
    "null_block": (0.012, 0),
    "reversals": (0.001, 0),
    "zero_fares": (0.001, 0),
    "zero_distances": (0.008, 0),
    "far": (0.0008, 0),
    "long": (0.0015, 0),
    "unknown_zones": (0.0015, 0),
    "by_card": (0.03, 0),
    "afternoon": (0.02, 0),
    "night": (0.01, 0),
    "weekend": (0.03, 0),
}


def figures(trips: pa.Table) -> dict[str, float]:
    with duckdb.connect() as database:
        database.register("trips", trips)
        found = database.sql(FIGURES)
        return dict(zip(found.columns, found.fetchall()[0], strict=True))


# What FIGURES found in the real week of 2023-03-06; test_the_figures_are_the_real_weeks checks them where it can.
REAL_WEEK = {
    "trips": 16423.0,
    "busiest_two": 0.3314,
    "null_block": 0.0567,
    "reversals": 0.003,
    "zero_fares": 0.0014,
    "zero_distances": 0.0482,
    "far": 0.0006,
    "long": 0.0027,
    "unknown_zones": 0.0029,
    "by_card": 0.6441,
    "miles": 1.84,
    "minutes_": 11.5,
    "fare": 13.5,
    "total": 18.1,
    "mean_total": 22.2904,
    "tip": 3.299,
    "afternoon": 0.2347,
    "night": 0.027,
    "weekend": 0.2352,
}


def test_the_shape_is_that_of_the_real_week():
    found = figures(WEEK)
    for name, real in REAL_WEEK.items():
        absolute, relative = TOLERANCE.get(name, (0, 0.08))
        assert found[name] == pytest.approx(real, abs=absolute, rel=relative), name


def test_the_figures_are_the_real_weeks(real_trips):
    week = read_tlc([real_trips("2023-03")], start=datetime(2023, 3, 6), end=datetime(2023, 3, 13))
    assert figures(week) == pytest.approx(REAL_WEEK, abs=1e-4)


def test_disorder_is_like_the_real_one():
    """Rows outside of the null block lag the running maximum by 34 minutes in the median, 70 to 75 at p90."""
    usual = WEEK.filter(pc.and_(pc.is_valid(WEEK["payment_type"]), pc.greater(WEEK[PICKUP], datetime(2023, 1, 1))))
    pickup = usual[PICKUP].to_numpy()
    lag = (np.maximum.accumulate(pickup) - pickup) / np.timedelta64(60, "s")
    assert 28 < np.median(lag) < 40
    assert 60 < np.quantile(lag, 0.9) < 80


def test_same_seed_same_trips():
    options = GeneratorOptions(trips=1500, seed=3, invalid=InvalidRows.each(3))
    # As frames: in tables, NaN is not NaN.
    trips = generate(options).to_pandas()
    assert trips.equals(generate(options).to_pandas())
    assert not trips.equals(generate(replace(options, seed=4)).to_pandas())


def test_a_known_trip_stays_as_it_was():
    """A change here gives every user other trips: intend it."""
    row = generate(GeneratorOptions(trips=200, seed=1)).slice(17, 1).to_pylist()[0]
    assert {name: row[name] for name in TRIP_KEY} == KNOWN_TRIP


KNOWN_TRIP = {
    "VendorID": 2,
    "lpep_pickup_datetime": datetime(2023, 3, 6, 19, 21, 57),
    "lpep_dropoff_datetime": datetime(2023, 3, 6, 19, 46, 33),
    "PULocationID": 55,
    "DOLocationID": 198,
    "total_amount": 40.2,
}


@pytest.mark.parametrize(("name", "schema"), [("2023", GREEN_2023), ("2025", GREEN_2025)])
def test_schemas(name, schema):
    trips = generate(GeneratorOptions(trips=500, schema=name))
    assert trips.schema.equals(schema)
    assert trips["ehail_fee"].null_count == 500


def test_the_schemas_are_those_of_real_files(real_trips):
    for month, schema in (("2023-02", GREEN_2023), ("2023-03", GREEN_2023), ("2025-11", GREEN_2025)):
        assert read_tlc([real_trips(month)]).schema.equals(schema)


def test_the_congestion_fee_is_part_of_the_total():
    trips = generate(GeneratorOptions(trips=2000, schema="2025", dirt=False)).to_pandas()
    assert 0.05 < (trips["cbd_congestion_fee"] == 0.75).mean() < 0.13
    paid = trips[trips["congestion_surcharge"].notna()]
    amounts = ["fare_amount", "extra", "mta_tax", "tip_amount", "tolls_amount", "improvement_surcharge"]
    parts = paid[[*amounts, "congestion_surcharge", "cbd_congestion_fee"]].sum(axis=1)
    assert np.allclose(parts, paid["total_amount"])


def test_an_older_total_has_no_fee_of_2025():
    trips = generate(GeneratorOptions(trips=2000, dirt=False)).to_pandas()
    paid = trips[trips["congestion_surcharge"].notna()]
    amounts = ["fare_amount", "extra", "mta_tax", "tip_amount", "tolls_amount", "improvement_surcharge"]
    assert np.allclose(paid[[*amounts, "congestion_surcharge"]].sum(axis=1), paid["total_amount"])


@pytest.mark.parametrize("seed", range(5))
def test_trip_keys_are_unique(seed):
    trips = generate(GeneratorOptions(trips=8000, seed=seed, end=datetime(2023, 3, 7)))
    assert trips.group_by(list(TRIP_KEY)).aggregate([]).num_rows == trips.num_rows


def test_reversals_are_pairs_that_net_to_zero():
    rest = [name for name in TRIP_KEY if name != "total_amount"]
    trips = WEEK.select(list(TRIP_KEY)).to_pandas()
    pairs = trips.groupby(rest)["total_amount"].agg(["size", "sum"])
    pairs = pairs[pairs["size"] > 1]
    assert len(pairs) == round(TRIPS_A_WEEK * 0.002706)
    assert (pairs["size"] == 2).all() and (pairs["sum"] == 0).all()


def test_out_of_period_pickups():
    start, end = datetime(2023, 3, 6), datetime(2023, 3, 13)
    outside = WEEK.filter(pc.or_(pc.less(WEEK[PICKUP], start), pc.greater_equal(WEEK[PICKUP], end)))
    assert sorted(moment.year for moment in outside[PICKUP].to_pylist()) == [2008, 2009]
    # Their trips are as long as any: only the clock was wrong.
    assert all(
        timedelta(0) < row[DROPOFF] - row[PICKUP] < timedelta(days=1)
        for row in outside.select([PICKUP, DROPOFF]).to_pylist()
    )


def test_without_dirt_everything_is_in_period_and_plain():
    trips = generate(GeneratorOptions(trips=5000, dirt=False))
    assert pc.min(trips[PICKUP]).as_py() >= datetime(2023, 3, 6)
    assert pc.min(trips["fare_amount"]).as_py() > 0
    assert pc.max(trips["trip_distance"]).as_py() <= 100


def test_the_null_block_is_one_block_at_the_end():
    absent = pc.is_null(WEEK["passenger_count"]).to_numpy()
    first = int(np.argmax(absent))
    assert absent[first:].all()
    for name in ("payment_type", "RatecodeID", "trip_type", "store_and_fwd_flag", "congestion_surcharge"):
        assert np.array_equal(pc.is_null(WEEK[name]).to_numpy(), absent), name


def test_invalid_rows_come_in_addition():
    invalid = InvalidRows(dropoff_before_pickup=3, nan_amount=4, zone_out_of_range=5, null_pickup=6)
    trips = generate(GeneratorOptions(trips=1000, invalid=invalid))
    assert trips.num_rows == 1000 + 18
    assert pc.sum(pc.less(trips[DROPOFF], trips[PICKUP])).as_py() == 3
    assert pc.sum(pc.is_nan(trips["total_amount"])).as_py() == 4
    zones = trips["PULocationID"].to_numpy()
    assert ((zones < 1) | (zones > 265)).sum() == 5
    assert trips[PICKUP].null_count == 6
    # Scattered, not in a lump at the end.
    places = np.flatnonzero(pc.is_null(trips[PICKUP]).to_numpy())
    assert places.min() < 600


def test_odd_periods():
    start, end = datetime(2023, 3, 8, 7, 30), datetime(2023, 3, 8, 8, 10)
    trips = generate(GeneratorOptions(start=start, end=end, dirt=False))
    assert 60 < trips.num_rows < 120
    # Times of the null block are cut to the minute.
    assert pc.min(trips[PICKUP]).as_py() >= start - timedelta(minutes=1)
    assert pc.max(trips[PICKUP]).as_py() < end
    assert generate(GeneratorOptions(trips=0)).num_rows == 0


@pytest.mark.parametrize(
    "options",
    [
        {"end": datetime(2023, 3, 6)},
        {"trips": -1},
        {"schema": "2024"},
        {"start": datetime.fromisoformat("2023-03-06T00:00:00+00:00")},
        {"invalid": InvalidRows(nan_amount=-1)},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(StreamwardenError, match="REPLAY_OPTIONS_INVALID"):
        GeneratorOptions(**options)
