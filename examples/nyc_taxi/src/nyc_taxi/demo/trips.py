"""The demo's trips: one dense week, real or generated."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nyc_taxi.trips.columns import PICKUP
from nyc_taxi.trips.generator import GeneratorOptions, generate
from nyc_taxi.trips.tlc import read_tlc

__all__ = ["densest_week", "write_week"]

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
