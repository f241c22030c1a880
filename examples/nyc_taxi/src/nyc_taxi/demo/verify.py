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
from nyc_taxi.demo.velocity import compare_card_alerts, compare_card_velocity, expected_card_velocity
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.durations import parse_duration
from streamwarden.store.workspace import Workspace

__all__ = ["ROW_RULES", "read_table", "verify_outputs"]

ROW_RULES = {"trips.passenger_count.plausible": "passenger_count NOT BETWEEN 0 AND 9"}
"""The row rules of ``expectations/trips.json``, written again as SQL that is true for a trip that fails."""


def read_table(workspace: Workspace, name: str) -> pa.Table:
    """Return a Delta table's newest version, without Spark."""
    uri, options = workspace.delta_rs(name)
    return DeltaTable(uri, storage_options=options).to_pyarrow_table()


def verify_outputs(workspace: Workspace, *, finished: bool = True) -> list[Difference]:
    """Compare the four tables, and those of ``card_velocity`` if it has run, with the landed files.

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
        rules=ROW_RULES,
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
    wrong = _wrong_final(workspace, "zone_windows", landed.trips, windows)
    found.append(_marks("zone_windows.is_final", wrong, windows))
    if DeltaLog(workspace.files, "card_velocity").latest is not None:
        found += _of_velocity(workspace, landed.trips)
    if finished:
        still_open = pc.sum(pc.not_equal(sessions["status"], "closed")).as_py() or 0
        found.append(_marks("card_sessions.status", still_open, sessions))
    return found


def _of_velocity(workspace: Workspace, trips: pa.Table) -> list[Difference]:
    """Compare the two tables of ``card_velocity``, which runs in tests only; right if no trip was late."""
    trips = trips.filter(pc.is_valid(trips["card_id"]))
    options = workspace.job("card_velocity").options
    within, window, every = (parse_duration(options[name]) for name in ("within", "window", "every"))
    windows, alerts = read_table(workspace, "card_velocity"), read_table(workspace, "card_alerts")
    wrong = _wrong_final(workspace, "card_velocity", trips, windows)
    return [
        compare_card_velocity(expected_card_velocity(trips, window=window, every=every), windows),
        _marks("card_velocity.is_final", wrong, windows),
        compare_card_alerts(trips, alerts, burst=options["trips"], within=within),
    ]


def _wrong_final(workspace: Workspace, job: str, trips: pa.Table, windows: pa.Table) -> int:
    """Count windows whose mark disagrees with the last watermark: newest pickup minus the delay."""
    delay: timedelta | None = workspace.job(job).watermark
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
