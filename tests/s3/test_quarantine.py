"""Quarantined rows and late rows on S3: each is sent or folded in once, by calls at once and after kills."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef
from streamwarden.operations import quarantine_replay
from streamwarden.operations.corrections import corrections_of
from streamwarden.operations.quarantine import RowState, quarantined_rows
from streamwarden.operations.quarantine_replay import replay_rows
from streamwarden.operations.source_rows import content_of
from streamwarden.storage import S3Storage
from tests.conftest import TripMaker
from tests.integration.conftest import Place
from tests.s3.conftest import Place as Bucket
from tests.spark.job_runs import as_trips
from tests.unit.operations.test_corrections import windows

pytestmark = pytest.mark.s3

AT = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
BAD = {"k": "b", "n": -1.0, "at": AT.isoformat()}


class Replays:
    """The job `amounts` with a row in quarantine, and a person who corrects it."""

    def __init__(self, place: Place, source: dict[str, Any]) -> None:
        sinks = [
            {"table": "t", "mode": "append"},
            {"table": "t_quarantine", "output": "refused", "mode": "append"},
        ]
        place.job("amounts", module="tests.integration.jobs.amounts", source=source, sinks=sinks)
        self.workspace = place.workspace
        rows = {"raw": [json.dumps(BAD)], "reasons": [["n is bad"]], "source_file": ["a"], "source_row": [0]}
        self.write("t_quarantine", pa.table({**rows, "source": [None]}))

    def write(self, table: str, rows: pa.Table) -> None:
        address, options = self.workspace.delta_rs(table)
        write_deltalake(address, rows, mode="append", storage_options=options)

    def rows(self, table: str) -> list[dict[str, Any]]:
        address, options = self.workspace.delta_rs(table)
        found: list[dict[str, Any]] = DeltaTable(address, storage_options=options).to_pyarrow_table().to_pylist()
        return found

    def state(self) -> tuple[str, RowState]:
        content = content_of(self.workspace, self.workspace.job("amounts"))
        (one,) = quarantined_rows(self.workspace, "t_quarantine", content=content)
        return one.id, one.state

    def replay(self, name: str, n: float) -> str:
        try:
            (done,) = replay_rows(self.workspace, "t_quarantine", {name: {**BAD, "n": n}}, by="ann", note="typo")
        except StreamwardenError as error:
            return error.code
        return "sent" if done.sent else "was sent"


def test_a_row_of_a_table_is_appended_once_by_many_calls(place: Place) -> None:
    replays = Replays(place, {"kind": "delta", "table": "events"})
    replays.write("events", pa.table({"k": ["a"], "n": [1.0], "at": pa.array([AT], pa.timestamp("us", "UTC"))}))
    name, state = replays.state()
    assert state is RowState.OPEN
    with ThreadPoolExecutor(6) as pool:
        codes = list(pool.map(lambda n: replays.replay(name, n), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    # One value won. If another call sent it before its own one came to that, it says so.
    (won,) = [code for code in codes if code != "QUARANTINE_REPLAYED"]
    assert won in ("sent", "was sent")
    assert len(replays.rows("events")) == 2
    assert replays.state() == (name, RowState.REPLAYED)


def test_a_file_that_a_killed_call_has_not_landed_is_landed_by_the_next(
    place: Place, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = replace(s3.location, prefix="landing")
    replays = Replays(place, {"kind": "files", "path": f"s3a://{landing.bucket}/landing"})
    name, _ = replays.state()
    with monkeypatch.context() as patch:
        patch.setattr(quarantine_replay, "_send", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(quarantine_replay, "_complete", lambda *_: [])
        with pytest.raises(KeyboardInterrupt):
            replays.replay(name, 2.0)
    folder = S3Storage(landing)
    assert not list(folder.list(""))
    assert replays.replay(name, 2.0) in ("sent", "was sent")
    assert replays.replay(name, 2.0) == "was sent"
    (key,) = folder.list("")
    entry = folder.read(key)
    assert entry is not None and json.loads(entry.data) == {**BAD, "n": 2.0}


def test_late_trips_are_folded_in_once_by_two_calls_at_once(place: Place, make_trips: TripMaker) -> None:
    workspace = place.workspace
    folder = "checkpoints/zone_windows/1"
    reference = CheckpointRef(job="zone_windows", generation=1, path=folder, since=utc_now(), reason="")
    place.documents("zone_windows").checkpoint.write(reference)
    trips = as_trips(make_trips(1000, hours=20))
    end = max(trips["lpep_pickup_datetime"].to_pylist()) + timedelta(hours=2)
    metadata = {"batchWatermarkMs": round(end.timestamp() * 1000), "batchTimestampMs": 1, "conf": {}}
    workspace.files.write(f"{folder}/offsets/0", f"v1\n{json.dumps(metadata)}\n{{}}".encode())
    workspace.files.write(f"{folder}/commits/0", b"v1\n{}")
    kept = windows(trips.slice(0, 900))
    for table, rows in {
        "trips": trips,
        "zone_windows": kept.append_column("is_final", pa.array([True] * kept.num_rows)),
    }.items():
        address, options = workspace.delta_rs(table)
        write_deltalake(address, rows, storage_options=options)
    (corrections,) = corrections_of(workspace, "zone_windows")
    assert corrections.find().late == 100
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda by: corrections.apply(by=by), ("ann", "ben")))
    assert sum(one.commit is not None for one in done) == 1
    address, options = workspace.delta_rs("zone_windows")
    found = DeltaTable(address, storage_options=options).to_pyarrow_table()
    difference = compare_zone_windows(expected_zone_windows(trips), found)
    assert difference.equal, str(difference)
