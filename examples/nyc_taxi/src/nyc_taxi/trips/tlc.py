"""Trips from the Parquet files of the New York City Taxi and Limousine Commission (TLC)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nyc_taxi.trips.columns import GREEN_2023, GREEN_2025, PICKUP, accepts
from streamwarden.errors import StreamwardenError

__all__ = ["read_tlc"]


def read_tlc(paths: Sequence[Path], *, start: datetime | None = None, end: datetime | None = None) -> pa.Table:
    """Read green-taxi files in the given order, without repairing, dropping or sorting rows.

    Parameters
    ----------
    paths
        Files of the 2023 schema, the 2025-11 schema, or both. A single file keeps its column types. Several files get
        for each column the narrowest type that holds all values; a missing ``cbd_congestion_fee`` becomes null.
    start, end
        Keep only pickups in ``[start, end)``, in the records' local time. A trip without a pickup time is in no period.
        None sets no bound on that side.

    Raises
    ------
    StreamwardenError
        ``REPLAY_SOURCE_INVALID``: a file is missing, is not Parquet, or is not a green-taxi file.
    """
    if not paths:
        raise StreamwardenError("REPLAY_SOURCE_INVALID", "no file was given")
    tables = [_read(path) for path in paths]
    trips = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    for limit, keep in ((start, pc.greater_equal), (end, pc.less)):
        if limit is not None:
            trips = trips.filter(keep(trips[PICKUP], pa.scalar(limit, trips.schema.field(PICKUP).type)))
    return trips.combine_chunks()


def _read(path: Path) -> pa.Table:
    try:
        schema = pq.read_schema(path)
        _validate(path, schema)
        # Known columns only: new columns of the TLC are not part of the contract with the jobs.
        known = [name for name in schema.names if name in GREEN_2025.names]
        # A file, not a dataset: a folder name like `year=2023` would become a column.
        return pq.ParquetFile(path).read(columns=known).replace_schema_metadata(None)
    except (OSError, pa.ArrowException) as error:
        raise StreamwardenError("REPLAY_SOURCE_INVALID", f"{path}: {error}") from error


def _validate(path: Path, schema: pa.Schema) -> None:
    missing = [name for name in GREEN_2023.names if name not in schema.names]
    if missing:
        raise StreamwardenError("REPLAY_SOURCE_INVALID", f"{path} has no column {', '.join(missing)}")
    for name in GREEN_2025.names:
        if name in schema.names and not accepts(name, schema.field(name).type):
            found = schema.field(name).type
            raise StreamwardenError("REPLAY_SOURCE_INVALID", f"{path}: column {name} has type {found}")
