"""The input of all peers: real or generated trips, repeated, in the order of their arrival."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

COPIES = 24
LATE_SHARE, LATE_S = 0.1, 600
"""A tenth of the trips arrives up to ten minutes late: within the peers' watermark of 15 minutes."""
PART = 250_000
"""Rows of a file of our table: one of a source that commits every few seconds."""

_COLUMNS = [
    "VendorID",
    "lpep_pickup_datetime",
    "lpep_dropoff_datetime",
    "PULocationID",
    "DOLocationID",
    "fare_amount",
    "total_amount",
]


def trips(files: Sequence[Path]) -> pa.Table:
    """Return the trips of some months 24 times, each copy with cards of its own, in the order of their arrival.

    Parameters
    ----------
    files
        TLC's Parquet files of green trips; none: the generator, with as many trips as three months of 2023.
    """
    from nyc_taxi.trips.cards import add_card_ids
    from nyc_taxi.trips.generator import GeneratorOptions, generate

    if files:
        months = pa.concat_tables([pq.read_table(one, columns=_COLUMNS) for one in files], promote_options="permissive")
    else:
        options = GeneratorOptions(start=datetime(2023, 1, 1), end=datetime(2023, 4, 1), trips=204_000, dirt=False)
        months = generate(options).select(_COLUMNS)
    at = months["lpep_pickup_datetime"].cast(pa.timestamp("us"))
    # Some trips of each month bear dates of other years.
    in_time = pc.and_(pc.greater_equal(at, datetime(2023, 1, 1)), pc.less(at, datetime(2023, 4, 1)))
    months = add_card_ids(months.filter(in_time))
    pickup = np.array(months["lpep_pickup_datetime"].cast(pa.timestamp("us")).cast(pa.int64()))
    amount = np.nan_to_num(np.array(months["total_amount"].cast(pa.float64())))
    cards = np.array(months["card_id"].to_pylist())
    random = np.random.default_rng(1)
    rows = len(pickup)
    # Seconds apart, so that the copies do not move in step.
    every = np.concatenate([pickup + copy * 7_000_000 for copy in range(COPIES)])
    late = np.where(random.random(len(every)) < LATE_SHARE, random.integers(0, LATE_S, len(every)) * 1_000_000, 0)
    order = np.argsort(every + late, kind="stable")
    source, copy = order % rows, order // rows
    zones = [pa.array(np.array(months[name].cast(pa.int32()))[source]) for name in ("PULocationID", "DOLocationID")]
    at_us = every[order]
    return pa.table(
        {
            "card_id": pa.array(np.char.add(cards[source], np.char.add("-", copy.astype("U2")))),
            "lpep_pickup_datetime": pa.array(at_us, pa.timestamp("us", "UTC")),
            "pickup_ms": pa.array(at_us // 1000),
            "PULocationID": zones[0],
            "DOLocationID": zones[1],
            "fare_amount": pa.array(amount[source]),
            "total_amount": pa.array(amount[source]),
            "cents": pa.array(np.rint(amount[source] * 100).astype(np.int64)),
        }
    )


def write_halves(rows: pa.Table, folder: Path, slots: int = 2) -> Path:
    """Write a file for each slot of a peer, each in the order of arrival over the whole time."""
    folder.mkdir(parents=True)
    places = np.arange(rows.num_rows)
    for slot in range(slots):
        pq.write_table(rows.take(pa.array(places[slot::slots])), folder / f"{slot}.parquet")
    return folder


def write_parts(rows: pa.Table, table: Path) -> list[AddAction]:
    """Write a table's files without committing them; create the table if there is none."""
    if not DeltaTable.is_deltatable(str(table)):
        DeltaTable.create(str(table), rows.schema)
    written = []
    for first in range(0, rows.num_rows, PART):
        part = rows.slice(first, PART)
        path = table / f"{time.time_ns()}.parquet"
        pq.write_table(part, path)
        stats = json.dumps({"numRecords": part.num_rows})
        written.append(AddAction(path.name, path.stat().st_size, {}, time.time_ns() // 10**6, True, stats))
    return written


def commit(table: Path, files: list[AddAction]) -> None:
    """Commit files of a table, at once."""
    found = DeltaTable(str(table))
    found.create_write_transaction(files, "append", found.schema())
