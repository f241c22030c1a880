import re
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nyc_taxi.trips.cards import CARDS_A_ZONE, add_card_ids, card_ids
from nyc_taxi.trips.columns import CARD_ID, DROPOFF, PICKUP, PICKUP_ZONE, TRIP_KEY
from nyc_taxi.trips.generator import GeneratorOptions, InvalidRows, generate
from nyc_taxi.trips.row_hash import hash_rows, unit_interval

pytestmark = pytest.mark.unit

TRIPS = generate(GeneratorOptions(trips=2000, invalid=InvalidRows.each(5)))


def test_ids_are_pinned():
    """Another algorithm would give every trip another card, and saved results would no longer compare."""
    moment = datetime(2023, 3, 6, 12, 0)
    trips = pa.table(
        {
            "VendorID": [2, 2, 1, None],
            PICKUP: [moment, moment, moment, None],
            DROPOFF: [moment, moment, moment, None],
            PICKUP_ZONE: [74, 74, 265, None],
            "DOLocationID": [75, 75, 1, None],
            "total_amount": [16.0, -16.0, 13.999999999999998, None],
        }
    )
    trips = trips.set_column(1, PICKUP, trips[PICKUP].cast(pa.timestamp("us")))
    assert card_ids(trips).to_pylist() == PINNED


PINNED = ["c074-10", "c074-10", "c265-08", "c000-09"]


def test_format_and_pool():
    ids = card_ids(TRIPS).to_pylist()
    assert None not in ids
    zones = TRIPS[PICKUP_ZONE].to_pylist()
    for card, zone in zip(ids, zones, strict=True):
        match = re.fullmatch(r"c(\d{3})-(\d{2})", card)
        assert match and int(match[1]) == zone and int(match[2]) < CARDS_A_ZONE
    of_the_busiest = {card for card in ids if card.startswith("c074")}
    assert len(of_the_busiest) == CARDS_A_ZONE


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, TRIPS.num_rows - 1), min_size=1))
def test_the_row_alone_decides(part):
    assert card_ids(TRIPS.take(part)).to_pylist() == card_ids(TRIPS).take(pa.array(part)).to_pylist()


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_column_types_do_not_matter(unit):
    types = {PICKUP: pa.timestamp(unit), DROPOFF: pa.timestamp(unit)}
    other = TRIPS
    for name in TRIP_KEY:
        wanted = types.get(name, pa.float64())
        other = other.set_column(other.schema.get_field_index(name), name, other[name].cast(wanted))
    # Nulls and an out-of-range zone are among them.
    assert card_ids(other).equals(card_ids(TRIPS))
    assert np.array_equal(hash_rows(other), hash_rows(TRIPS))


def test_chunks_do_not_matter():
    chunked = pa.concat_tables([TRIPS.slice(0, 7), TRIPS.slice(7)])
    assert card_ids(chunked).equals(card_ids(TRIPS))


def test_a_charge_and_its_reversal_have_the_same_card():
    trips = add_card_ids(generate(GeneratorOptions(trips=4000)))
    names = [*(name for name in TRIP_KEY if name != "total_amount"), CARD_ID]
    reversals = trips.filter(pc.less(trips["fare_amount"], 0)).select(names).to_pylist()
    charges = trips.filter(pc.greater_equal(trips["fare_amount"], 0)).select(names).to_pylist()
    assert reversals
    assert all(reversal in charges for reversal in reversals)


def test_busy_zones_have_sessions_of_several_trips_and_quiet_ones_do_not():
    trips = add_card_ids(generate()).select([CARD_ID, PICKUP]).drop_null().to_pandas().sort_values([CARD_ID, PICKUP])
    follows = trips.groupby(CARD_ID)[PICKUP].diff() <= np.timedelta64(30, "m")
    busy = trips[CARD_ID].str.startswith("c074")
    # About a quarter of a busy zone's trips and more follow another, but not all of them: sessions end.
    assert 0.3 < follows[busy].mean() < 0.8
    assert follows[trips.groupby(CARD_ID)[PICKUP].transform("size") < 10].mean() < 0.1


def test_an_existing_card_column_is_replaced():
    trips = add_card_ids(TRIPS)
    again = add_card_ids(trips)
    assert again.schema.equals(trips.schema)
    assert again[CARD_ID].equals(trips[CARD_ID])


def test_hashes_are_even_and_salts_are_independent():
    first, second = (unit_interval(hash_rows(TRIPS, salt=salt)) for salt in (1, 2))
    assert abs(first.mean() - 0.5) < 0.03 and first.min() >= 0 and first.max() < 1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06
