"""The demo's last step: compare each output table with a batch computation over the landed files."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from nyc_taxi.demo.batch import (
    compare_card_sessions,
    compare_quarantine,
    compare_trips,
    compare_zone_windows,
    expected_card_sessions,
    expected_zone_windows,
    read_landed,
)
from nyc_taxi.demo.compare import Difference
from streamwarden.model.durations import parse_duration
from streamwarden.store.workspace import Workspace

__all__ = ["read_table", "verify_outputs"]


def read_table(workspace: Workspace, name: str) -> pa.Table:
    """Return a Delta table's newest version, without Spark."""
    uri, options = workspace.delta_rs(name)
    return DeltaTable(uri, storage_options=options).to_pyarrow_table()


def verify_outputs(workspace: Workspace, *, finished: bool = True) -> list[Difference]:
    """Compare the four tables with the landed files.

    Parameters
    ----------
    workspace
        The workspace of the tables and the landing folder.
    finished
        Whether the stream has ended and all sessions must be closed. Then an open session is a difference.
    """
    bounds = workspace.job("ingest_trips").options
    landed = read_landed(
        [path for path in (workspace.root / "landing").iterdir() if path.is_file()],
        earliest=datetime.fromisoformat(str(bounds["earliest"])),
        latest=datetime.fromisoformat(str(bounds["latest"])),
    )
    gap = parse_duration(workspace.job("card_sessions").options.get("gap", "30m"))
    sessions = read_table(workspace, "card_sessions")
    windows = read_table(workspace, "zone_windows")
    found = [
        compare_trips(landed.trips, read_table(workspace, "trips")),
        compare_quarantine(landed.quarantine, read_table(workspace, "trips_quarantine")),
        compare_zone_windows(expected_zone_windows(landed.trips), windows),
        compare_card_sessions(expected_card_sessions(landed.trips, gap=gap), sessions),
    ]
    found.append(_marks("zone_windows.is_final", _wrong_final(workspace, landed.trips, windows), windows))
    if finished:
        still_open = pc.sum(pc.not_equal(sessions["status"], "closed")).as_py() or 0
        found.append(_marks("card_sessions.status", still_open, sessions))
    return found


def _wrong_final(workspace: Workspace, trips: pa.Table, windows: pa.Table) -> int:
    """Count windows whose mark disagrees with the last watermark: newest pickup minus the delay."""
    delay: timedelta | None = workspace.job("zone_windows").watermark
    assert delay is not None
    newest: Any = pc.max(trips["lpep_pickup_datetime"]).as_py()
    watermark = newest.replace(tzinfo=None) - delay
    wrong = 0
    for end, final in zip(windows["window_end"].to_pylist(), windows["is_final"].to_pylist(), strict=True):
        wrong += final != (end.replace(tzinfo=None) <= watermark)
    return wrong


def _marks(name: str, wrong: int, table: pa.Table) -> Difference:
    examples = (f"{wrong} rows are marked otherwise",) if wrong else ()
    return Difference(name, table.num_rows, table.num_rows, 0, 0, wrong, examples)
