"""The shipped suites on real trips: no false hold, and each planted fault is held by the expectation meant for it.

Without real trips at hand, generated ones take their place.
"""

import os
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import polars as pl
import polars.selectors as cs
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from nyc_taxi.demo.batch import expected_trips, expected_zone_windows
from nyc_taxi.trips.cards import add_card_ids
from nyc_taxi.trips.generator import GeneratorOptions, generate
from nyc_taxi.trips.tlc import read_tlc

from streamwarden.model.gate import Verdict
from streamwarden.quality.documents import read_run
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_state
from streamwarden.storage import LocalStorage
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import open_workspace
from tests.quality_cases import EXPECTATIONS

pytestmark = pytest.mark.unit

REAL = Path(os.environ.get("STREAMWARDEN_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
BOUNDS = {"earliest": datetime(2009, 1, 1, tzinfo=UTC), "latest": datetime(2100, 1, 1, tzinfo=UTC)}
MONTHS = ("2023-01", "2023-02", "2023-03", "2025-11")
WEEK = timedelta(days=7)


@pytest.fixture(scope="module")
def month(tmp_path_factory):
    """Return a function for the trips and windows of a month, as the jobs write them."""
    folder = tmp_path_factory.mktemp("months")

    @cache
    def of(name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        landed: Path = folder / f"{name}.parquet"
        real = REAL / f"green_tripdata_{name}.parquet"
        start = datetime.fromisoformat(f"{name}-01")
        options = GeneratorOptions(start=start, end=(start + timedelta(days=32)).replace(day=1), trips=40_000)
        pq.write_table(add_card_ids(read_tlc([real]) if real.exists() else generate(options)), landed)
        trips = expected_trips([landed], **BOUNDS)
        windows = pl.DataFrame(expected_zone_windows(trips)).with_columns(is_final=pl.lit(True))
        return tuple(
            rows.with_columns(cs.datetime().dt.replace_time_zone("UTC")) for rows in (pl.DataFrame(trips), windows)
        )

    return of


class Place:
    def __init__(self, root):
        self.workspace = open_workspace("local", root=root)
        self.gate = Gate(self.workspace, EXPECTATIONS)

    def write(self, table, rows, **options):
        write_deltalake(self.workspace.table(table), rows.to_arrow(), mode="append", **options)

    def decide(self, table, **options):
        return self.gate.decide(table, **options)

    def failed(self, table):
        """Return the expectations for which a table is held."""
        hold = gate_state(self.workspace, table).record.hold
        return {failure.expectation for failure in hold.failures} if hold else set()

    def warned(self, decision):
        if decision.run is None:
            return set()
        run = read_run(LocalStorage(self.workspace.root), QUALITY, decision.run)
        return {item.id for item in run.tables[0].warnings}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "root")


@pytest.fixture
def after_january(place, month):
    """A place in which January is published."""
    trips, windows = month("2023-01")
    place.write("trips", trips)
    place.write("zone_windows", windows)
    assert place.decide("trips").verdict is Verdict.PUBLISHED
    assert place.decide("zone_windows").verdict is Verdict.PUBLISHED
    return place


@pytest.mark.long
@pytest.mark.parametrize("months", [pytest.param(MONTHS[-2:], marks=pytest.mark.ci), MONTHS], ids=["two", "all"])
def test_real_months_are_published_week_by_week_without_a_false_hold(place, month, months):
    held, warnings = [], {}
    for name in months:
        trips, windows = month(name)
        first = datetime.fromisoformat(f"{name}-01").replace(tzinfo=UTC)
        for week in range(5):
            begin, end = first + week * WEEK, first + (week + 1) * WEEK
            is_now = pl.col("lpep_pickup_datetime").is_between(begin, end, closed="left")
            if week == 4:
                # Trips with times far outside come last, as in the files.
                is_now |= ~pl.col("lpep_pickup_datetime").is_between(first, end, closed="left")
            place.write("trips", trips.filter(is_now))
            place.write("zone_windows", windows.filter(pl.col("window_start").is_between(begin, end, closed="left")))
            for table in ("trips", "zone_windows"):
                decision = place.decide(table)
                if decision.verdict is Verdict.HELD:
                    held.append((begin, table, place.failed(table)))
                    place.gate.accept(table, by="test", note="to go on")
                for one in place.warned(decision):
                    warnings[one] = warnings.get(one, 0) + 1
    assert held == []
    # A warning that always comes is not read.
    assert {name: count for name, count in warnings.items() if count > 4} == {}


def january(month, **changes):
    """Return some rows of February, as the next delivery, with values changed."""
    trips, _ = month("2023-02")
    some = trips.filter(pl.col("payment_type").is_not_null()).head(2000)
    return some.with_columns(**changes)


@pytest.mark.parametrize(
    ("changes", "expectation"),
    [
        ({"PULocationID": pl.lit(None, pl.Int32)}, "trips.PULocationID.not_null"),
        ({"PULocationID": pl.lit(999, pl.Int32)}, "trips.PULocationID.zone"),
        ({"fare_amount": pl.col("fare_amount") * 1.6}, "trips.fare_amount.drift"),
        ({"fare_amount": pl.lit(float("nan"))}, "trips.amounts.finite"),
        ({"total_amount": pl.lit(None, pl.Float64)}, "trips.total_amount.not_null"),
        ({"lpep_dropoff_datetime": pl.col("lpep_pickup_datetime").dt.offset_by("-1h")}, "trips.dropoff.after_pickup"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_changed_values_are_held(after_january, month, changes, expectation):
    after_january.write("trips", january(month, **changes))
    assert after_january.decide("trips").verdict is Verdict.HELD
    assert expectation in after_january.failed("trips")


def test_duplicates_within_a_delivery_are_held(after_january, month):
    rows = january(month)
    twice = rows.head(5).with_columns(source_row=pl.col("source_row") + 1_000_000)
    after_january.write("trips", pl.concat([rows, twice]))
    assert after_january.decide("trips").verdict is Verdict.HELD
    assert after_january.failed("trips") == {"trips.key.unique"}


def test_a_file_that_was_delivered_twice_is_held(after_january, month):
    again, _ = month("2023-01")
    after_january.write("trips", again.head(3000).with_columns(source_file=pl.lit("again.parquet")))
    assert after_january.decide("trips").verdict is Verdict.HELD
    assert after_january.failed("trips") == {"trips.key.unique"}


def test_a_changed_type_is_held(after_january, month):
    rows = january(month).with_columns(pl.col("lpep_pickup_datetime").dt.replace_time_zone(None))
    write_deltalake(after_january.workspace.table("trips"), rows.to_arrow(), mode="overwrite", schema_mode="overwrite")
    assert after_january.decide("trips").verdict is Verdict.HELD
    assert "trips.lpep_pickup_datetime.type" in after_january.failed("trips")


def test_a_missing_hour_is_held(after_january, month):
    _, windows = month("2023-02")
    day = windows.filter(pl.col("window_start").dt.truncate("1d") == datetime(2023, 2, 1, tzinfo=UTC))
    after_january.write("zone_windows", day.filter(pl.col("window_start").dt.hour() != 15))
    assert after_january.decide("zone_windows").verdict is Verdict.HELD
    assert after_january.failed("zone_windows") == {"zone_windows.hours.all"}


def test_an_accepted_gap_does_not_hold_the_next_versions(after_january, month):
    _, windows = month("2023-02")
    day = windows.filter(pl.col("window_start").dt.truncate("1d") == datetime(2023, 2, 1, tzinfo=UTC))
    hours = pl.col("window_start").dt.hour()
    after_january.write("zone_windows", day.filter(hours.is_in([*range(15), 16])))
    assert after_january.decide("zone_windows").verdict is Verdict.HELD
    after_january.gate.accept("zone_windows", by="ann", note="the meters were down")
    after_january.write("zone_windows", day.filter(hours == 17))
    assert after_january.decide("zone_windows").verdict is Verdict.PUBLISHED
    # Another gap is another matter.
    after_january.write("zone_windows", day.filter(hours == 19))
    assert after_january.decide("zone_windows").verdict is Verdict.HELD


def test_a_table_that_gets_no_new_rows_is_held_until_it_does(after_january, month):
    trips, windows = month("2023-02")
    assert after_january.decide("zone_windows", idle=True) is None
    first, end = datetime(2023, 2, 1, tzinfo=UTC), datetime(2023, 2, 3, tzinfo=UTC)
    after_january.write("trips", trips.filter(pl.col("lpep_pickup_datetime").is_between(first, end)))
    after_january.decide("trips")
    assert after_january.decide("zone_windows", idle=True).verdict is Verdict.HELD
    assert after_january.failed("zone_windows") == {"zone_windows.fresh"}
    # No version waits, so the alarm ends with the next windows.
    after_january.write("zone_windows", windows.filter(pl.col("window_start").is_between(first, end)))
    assert after_january.decide("zone_windows").verdict is Verdict.PUBLISHED
    assert after_january.failed("zone_windows") == set()


def test_unbalanced_windows_and_unusual_volumes_are_warnings(after_january, month):
    trips, windows = month("2023-02")
    first = datetime(2023, 2, 2, tzinfo=UTC)
    day = windows.filter(pl.col("window_start").is_between(first - timedelta(days=1), first, closed="left"))
    after_january.write("trips", trips.filter(pl.col("lpep_pickup_datetime").is_between(first - WEEK, first)))
    after_january.decide("trips")
    after_january.write("zone_windows", day.with_columns(trips=pl.col("trips") * 4))
    decision = after_january.decide("zone_windows")
    assert decision.verdict is Verdict.PUBLISHED
    assert {"zone_windows.trips.balance", "zone_windows.volume.usual"} <= after_january.warned(decision)
