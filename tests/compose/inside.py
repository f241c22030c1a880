"""What ``make compose-test`` runs in a container of the stack, by standard input: it prints one line of JSON.

``state`` tells what the jobs do and how far their tables are; ``verify`` compares the tables with a batch computation;
``overcharge`` lands a file that the gate must hold; ``gate`` tells what is published and held.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

JOBS = ("ingest_trips", "zone_windows", "card_sessions")
TABLES = ("trips", "zone_windows", "card_sessions")


def state() -> dict[str, Any]:
    """Tell what each job does, and each table's newest version."""
    from streamwarden.formats.delta_log import DeltaLog
    from streamwarden.store.documents import JobDocuments
    from streamwarden.store.workspace import open_workspace
    from streamwarden.supervision.observe import observe

    workspace = open_workspace()
    jobs = {}
    for job in JOBS:
        seen = observe(workspace, job)
        memory = JobDocuments(workspace.storage, job).supervision.read()
        restarts = memory.restarts if memory else []
        jobs[job] = {
            "phase": str(seen.phase),
            "reason": seen.reason,
            "incarnation": seen.incarnation,
            "committed": seen.progress is not None and seen.progress.last is not None,
            "restarts": [str(one.reason) for one in restarts],
            "error": str(seen.error.to_exception()) if seen.error else None,
        }
    tables = {}
    for table in TABLES:
        latest = DeltaLog(workspace.files, table).latest
        tables[table] = -1 if latest is None else latest
    return {"jobs": jobs, "tables": tables}


def verify() -> dict[str, Any]:
    """Compare the tables with what has landed."""
    from nyc_taxi.demo.verify import verify_outputs

    from streamwarden.store.workspace import open_workspace

    workspace = open_workspace()
    found = verify_outputs(workspace)
    landed = sum(1 for path in (workspace.root / "landing").iterdir() if path.is_file())
    return {
        "files": landed,
        "equal": all(one.equal for one in found),
        "tables": {one.table: one.actual for one in found},
        "differences": [str(one) for one in found if not one.equal],
    }


def overcharge() -> dict[str, Any]:
    """Land trips of the day after the newest one, with tenfold fares."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from nyc_taxi.demo.trips import land_overcharged
    from nyc_taxi.demo.verify import read_table
    from nyc_taxi.trips.generator import GeneratorOptions, generate

    from streamwarden.store.workspace import open_workspace

    workspace = open_workspace()
    newest: datetime = pc.max(read_table(workspace, "trips")["lpep_pickup_datetime"]).as_py()
    start = datetime(newest.year, newest.month, newest.day) - timedelta(days=6)
    with tempfile.TemporaryDirectory() as folder:
        week = Path(folder) / "week.parquet"
        trips = generate(GeneratorOptions(start=start, end=start + timedelta(days=7), dirt=False))
        pq.write_table(trips, week)
        name, rows = land_overcharged(week, workspace.root / "landing")
    return {"file": name, "rows": rows}


def gate() -> dict[str, Any]:
    """Tell what of `trips` is published, and what is held."""
    from streamwarden.quality.gate_state import gate_state
    from streamwarden.store.workspace import open_workspace

    seen = gate_state(open_workspace(), "trips")
    hold = seen.record.hold
    return {
        "latest": seen.latest,
        "published": seen.published.content,
        "held": None if hold is None else [hold.after + 1, hold.version],
        "failures": [] if hold is None else [one.expectation for one in hold.failures],
    }


if __name__ == "__main__":
    json.dump({"state": state, "verify": verify, "overcharge": overcharge, "gate": gate}[sys.argv[1]](), sys.stdout)
    sys.stdout.write("\n")
