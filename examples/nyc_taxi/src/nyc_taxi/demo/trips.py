"""The demo's trips: one dense week, real or generated."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nyc_taxi.trips.cards import add_card_ids
from nyc_taxi.trips.columns import DROPOFF, PICKUP
from nyc_taxi.trips.generator import GeneratorOptions, generate
from nyc_taxi.trips.landing import LandingFolder
from nyc_taxi.trips.tlc import read_tlc

__all__ = ["CROWDED", "densest_week", "land_overcharged", "write_week"]

CROWDED = 5
"""Trips of the overcharged file with 40 passengers."""

_WEEK = timedelta(days=7)


def densest_week(trips: pa.Table) -> datetime:
    """Return the first midnight of the seven consecutive days with most pickups; the earliest if several are equal."""
    days = pc.floor_temporal(pc.drop_null(trips[PICKUP].combine_chunks()), unit="day")
    counted = {entry["values"].as_py(): entry["counts"].as_py() for entry in pc.value_counts(days)}
    # The earliest of equal weeks.
    first: datetime = max(
        sorted(counted), key=lambda start: sum(counted.get(start + timedelta(days=n), 0) for n in range(7))
    )
    return first


def write_week(source: Path | None, target: Path) -> tuple[int, datetime]:
    """Write the week that the demo replays as one Parquet file.

    Parameters
    ----------
    source
        A TLC green-taxi file, whose densest week is used; None generates a week, with dirt.
    target
        The file to write.

    Returns
    -------
    tuple of int and datetime
        Number of trips, and the week's first midnight.

    Raises
    ------
    StreamwardenError
        ``REPLAY_SOURCE_INVALID``.
    """
    if source is None:
        options = GeneratorOptions()
        trips, start = generate(options), options.start
    else:
        whole = read_tlc([source])
        start = densest_week(whole)
        trips = read_tlc([source], start=start, end=start + _WEEK)
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(trips, target)
    return trips.num_rows, start


def land_overcharged(week: Path, landing: Path) -> tuple[str, int]:
    """Land a file as a broken meter would make it: trips of the day after the week, with tenfold fares.

    Five of them also have 40 passengers: the suite's row rule quarantines these. Each other row is valid by itself, so
    the job takes it. Only the distribution of fares tells.

    Returns
    -------
    tuple of str and int
        The file's name, and the number of its trips.
    """
    trips = pq.read_table(week)
    newest = pc.max(trips[PICKUP])
    last_day = pc.subtract(newest, pa.scalar(timedelta(days=1), pa.duration("us")))
    fits = pc.and_(pc.greater(trips[PICKUP], last_day), pc.is_valid(trips["payment_type"]))
    trips = trips.filter(fits)
    for name in (PICKUP, DROPOFF):
        later = pc.add(trips[name], pa.scalar(timedelta(days=1), pa.duration("us"))).cast(trips[name].type)
        trips = trips.set_column(trips.schema.names.index(name), trips.schema.field(name), later)
    fare = trips.schema.names.index("fare_amount")
    trips = trips.set_column(fare, trips.schema.field(fare), pc.multiply(trips["fare_amount"], 10.0))
    passengers = trips.schema.get_field_index("passenger_count")
    counts = pa.array([40] * CROWDED + trips["passenger_count"].to_pylist()[CROWDED:], trips.schema.types[passengers])
    trips = trips.set_column(passengers, trips.schema.field(passengers), counts)
    name = "overcharged.parquet"
    folder = LandingFolder(landing)
    folder.prepare(name, add_card_ids(trips))
    folder.land(name)
    return name, trips.num_rows
