from datetime import datetime, timedelta
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nyc_taxi.trips.cards import card_ids
from nyc_taxi.trips.columns import CARD_ID, PICKUP
from nyc_taxi.trips.generator import GeneratorOptions, InvalidRows, generate
from nyc_taxi.trips.plan import make_plan
from nyc_taxi.trips.tlc import read_tlc

from streamwarden.errors import StreamwardenError

pytestmark = pytest.mark.unit

MINUTE = timedelta(minutes=1)
NOON = datetime(2023, 3, 6, 12)
DEFAULTS = {
    "start": None,
    "end": None,
    "seed": 0,
    "late_share": 0.05,
    "late_min": 5 * MINUTE,
    "late_max": 120 * MINUTE,
    "file_every": 15 * MINUTE,
}
IN_TIME = DEFAULTS | {"late_share": 0.0}
WEEK = generate(GeneratorOptions(invalid=InvalidRows.each(5)))


def moments(micros) -> list[datetime]:
    return np.asarray(micros).astype("datetime64[us]").tolist()


def numbers(table: pa.Table) -> list[float]:
    """What tells the trips of the make_trips fixture apart."""
    return table["total_amount"].to_pylist()


def test_lateness_stays_within_bounds():
    plan = make_plan(WEEK, **DEFAULTS)
    pickup = plan.trips[PICKUP].to_numpy()
    usual = pickup > np.datetime64("2023-01-01")  # neither null nor of 2008
    delay = (plan.arrivals.astype("datetime64[us]") - pickup)[usual] / np.timedelta64(60, "s")
    late = delay[delay != 0]
    assert late.min() >= 5 and late.max() <= 120
    assert len(late) / len(delay) == pytest.approx(0.05, abs=0.006)
    # Evenly spread over the whole range.
    assert late.mean() == pytest.approx(62.5, abs=5)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_or_none_late(share):
    plan = make_plan(WEEK, **DEFAULTS | {"late_share": share})
    pickup = plan.trips[PICKUP].to_numpy()
    usual = pickup > np.datetime64("2023-01-01")
    assert ((plan.arrivals.astype("datetime64[us]") != pickup)[usual] == bool(share)).all()


def test_a_watermark_of_late_max_drops_nothing():
    """Read in order, file by file, the furthest pickup so far is never more than late_max ahead of a trip's own."""
    plan = make_plan(WEEK, **DEFAULTS)
    ahead = datetime.min
    for number in range(plan.files):
        pickups = [p for p in plan.file(number)[PICKUP].to_pylist() if p is not None and p.year == 2023]
        assert all(p >= ahead - 120 * MINUTE for p in pickups if ahead != datetime.min)
        ahead = max([ahead, *pickups])


def test_a_trip_keeps_its_delay_whatever_is_replayed_with_it():
    whole = make_plan(WEEK, **DEFAULTS)
    part = make_plan(WEEK.slice(0, 9000), **DEFAULTS)

    def arrivals(plan):
        keys = zip(plan.trips[PICKUP].to_pylist(), plan.trips[CARD_ID].to_pylist(), plan.arrivals.tolist(), strict=True)
        return {key for key in keys if key[0] is not None and key[0].year == 2023}

    assert arrivals(part) <= arrivals(whole)
    assert arrivals(make_plan(WEEK, **DEFAULTS | {"seed": 1})) != arrivals(whole)


pickup_times = st.one_of(
    st.none(),
    st.datetimes(datetime(2023, 3, 1), datetime(2023, 3, 4)),
    st.sampled_from([datetime(2008, 12, 31, 23, 2, 29), datetime(2009, 1, 1), datetime(2041, 1, 1)]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(pickup_times, min_size=1, max_size=40).filter(any),
    st.floats(0, 1),
    st.integers(0, 300),
    st.integers(0, 300),
    st.sampled_from([1, 15, 60, 1440]),
)
def test_every_trip_is_in_exactly_one_file(make_trips, pickups, share, shortest, longer, every):
    plan = make_plan(
        make_trips(pickups),
        start=None,
        end=None,
        seed=0,
        late_share=share,
        late_min=shortest * MINUTE,
        late_max=(shortest + longer) * MINUTE,
        file_every=every * MINUTE,
    )
    files = [numbers(plan.file(number)) for number in range(plan.files)]
    assert all(files)
    assert sorted(chain.from_iterable(files)) == [10.0 + row for row in range(len(pickups))]
    assert (np.diff(plan.arrivals) >= 0).all() and (np.diff(plan.due) > 0).all()
    for number in range(plan.files):
        inside = plan.arrivals[plan.trips_before(number) : plan.trips_before(number + 1)]
        assert (inside < plan.due[number]).all() and (inside >= plan.due[number] - plan.every).all()
    steps = np.diff(plan.elapsed, prepend=0)
    assert (steps > 0).all() and (steps <= 86_400_000_000).all()


def test_unbelievable_pickups_arrive_with_their_neighbours(make_trips):
    usual = [NOON + step * MINUTE for step in range(60)]
    pickups = [None, *usual[:30], datetime(2008, 12, 31, 23), None, *usual[30:], datetime(2041, 1, 1)]
    plan = make_plan(make_trips(pickups), **IN_TIME)
    assert moments(plan.arrivals[[0, -1]]) == [usual[0], usual[-1]]
    # In the order of the source, each with the trip before it; the first with the one after it.
    assert numbers(plan.trips) == [10.0 + row for row in range(len(pickups))]
    assert plan.files == 4


def test_a_month_of_real_trips_does_not_begin_in_2008(real_trips):
    trips = read_tlc([real_trips("2023-02")])
    assert pc.min(trips[PICKUP]).as_py().year == 2008
    plan = make_plan(trips, **DEFAULTS)
    assert datetime(2023, 1, 25) < plan.clock(0) and plan.clock(plan.files - 1) < datetime(2023, 3, 6)
    assert plan.trips.num_rows == trips.num_rows


def test_start_and_end(make_trips):
    plan = make_plan(
        make_trips([NOON, NOON + 10 * MINUTE, None, NOON + 20 * MINUTE]),
        **IN_TIME | {"start": NOON + 10 * MINUTE, "end": NOON + 20 * MINUTE},
    )
    assert numbers(plan.trips) == [11.0, 12.0]


def test_long_gaps_are_cut_short(make_trips):
    """A month left out between two files; in between, no file, and no month of waiting."""
    pickups = [NOON + day * timedelta(days=1) for day in [*range(30), *range(60, 90)]]
    plan = make_plan(make_trips(pickups), **IN_TIME)
    assert plan.files == 60
    assert plan.elapsed[-1] == 59 * 86_400_000_000 + plan.every


def test_columns_keep_their_types_and_a_card_is_added():
    for trips in (WEEK, generate(GeneratorOptions(trips=300, schema="2025"))):
        plan = make_plan(trips, **DEFAULTS)
        assert plan.trips.schema.equals(trips.schema.append(pa.field(CARD_ID, pa.string())))
        assert plan.trips[CARD_ID].combine_chunks().equals(card_ids(plan.trips))


def test_january_keeps_its_own_types(real_trips):
    trips = read_tlc([real_trips("2023-01")], start=datetime(2023, 1, 2), end=datetime(2023, 1, 3))
    plan = make_plan(trips, **DEFAULTS)
    assert plan.trips.schema.field("VendorID").type == pa.int64()
    assert plan.trips.schema.field("ehail_fee").type == pa.null()


def test_fingerprint(make_trips):
    trips = make_trips([NOON, NOON + MINUTE])
    one = make_plan(trips, **DEFAULTS).fingerprint
    assert make_plan(trips, **DEFAULTS).fingerprint == one
    assert make_plan(make_trips([NOON, NOON + 2 * MINUTE]), **DEFAULTS).fingerprint != one


def test_nothing_to_replay(make_trips):
    for trips, options in (
        (make_trips([]), DEFAULTS),
        (make_trips([None, None]), DEFAULTS),
        (make_trips([NOON]), DEFAULTS | {"start": NOON + MINUTE}),
        (pa.table({"x": [1]}), DEFAULTS),
    ):
        with pytest.raises(StreamwardenError, match="REPLAY_SOURCE_INVALID"):
            make_plan(trips, **options)
