"""Late rows are found and folded in, on real Delta tables without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows
from pydantic import ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_writer import DeltaWriter, Finality
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.operations.corrections import CORRECTED_AT, CORRECTED_ROWS, Corrections, corrections_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.conftest import TripMaker
from tests.spark.job_runs import as_trips

pytestmark = pytest.mark.unit

JOB = "zone_windows"


class Place:
    """A root with the tables `trips` and `zone_windows`, as a job would leave them."""

    def __init__(self, root: Path) -> None:
        self.workspace: Workspace = open_workspace("local", root=root)
        reference = CheckpointRef(job=JOB, generation=1, path="checkpoints/zone_windows/1", since=utc_now(), reason="")
        JobDocuments(self.workspace.storage, JOB).checkpoint.write(reference)

    def commit(self, batch: int, watermark: datetime) -> None:
        metadata = {"batchWatermarkMs": round(watermark.timestamp() * 1000), "batchTimestampMs": 1, "conf": {}}
        folder = "checkpoints/zone_windows/1"
        self.workspace.files.write(f"{folder}/offsets/{batch}", f"v1\n{json.dumps(metadata)}\n{{}}".encode())
        self.workspace.files.write(f"{folder}/commits/{batch}", b"v1\n{}")

    def add_trips(self, trips: pa.Table) -> None:
        write_deltalake(self.workspace.table("trips"), trips, mode="append")

    def write_windows(self, trips: pa.Table, watermark: datetime, batch: int) -> None:
        """Upsert what the job would, were these all trips."""
        rows = windows(trips)
        final = pa.array([end <= watermark for end in rows["window_end"].to_pylist()])
        rows = rows.append_column("is_final", final)
        path = self.workspace.table(JOB)
        if not DeltaTable.is_deltatable(path):
            write_deltalake(path, rows.slice(0, 0))
        writer = DeltaWriter(path, None, ["window_start", "zone_id"], f"{JOB}:1", finality=FINALITY)
        writer.upsert(rows, batch, deleted="_deleted", passed=None, author="job", guard=lambda: None)

    @property
    def corrections(self) -> Corrections:
        (one,) = corrections_of(self.workspace, JOB)
        return one

    def rows(self) -> pa.Table:
        return DeltaTable(self.workspace.table(JOB)).to_pyarrow_table()

    def version(self) -> int:
        return DeltaTable(self.workspace.table(JOB)).version()


FINALITY = Finality("window_end", "is_final")


def windows(trips: pa.Table) -> pa.Table:
    found = expected_zone_windows(trips)
    times = {name: pa.timestamp("us", "UTC") for name in ("window_start", "window_end")}
    kinds = {**times, "zone_id": pa.int32(), "trips": pa.int64(), "revenue": pa.decimal128(18, 2)}
    return pa.table({name: found[name].cast(kinds.get(name, found[name].type)) for name in found.column_names})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "root")


@pytest.fixture
def trips(make_trips: TripMaker) -> pa.Table:
    # Amounts with halves of a cent, nulls, and negative ones.
    made = as_trips(make_trips(3000, hours=40))
    totals = [
        None if i % 7 == 0 else -x if i % 5 == 0 else x + 0.005 * (i % 3)
        for i, x in enumerate(made["total_amount"].to_pylist())
    ]
    fares = [None if i % 4 == 0 else x for i, x in enumerate(made["fare_amount"].to_pylist())]
    made = made.set_column(made.column_names.index("total_amount"), "total_amount", pa.array(totals, pa.float64()))
    return made.set_column(made.column_names.index("fare_amount"), "fare_amount", pa.array(fares, pa.float64()))


def test_the_query_of_the_shipped_job_gives_the_batch_computation(place: Place, trips: pa.Table) -> None:
    end = datetime(2262, 1, 1, tzinfo=UTC)
    place.add_trips(trips)
    place.write_windows(trips.slice(0, 1), end, 0)
    place.commit(0, end)
    found = place.corrections.find()
    expected = expected_zone_windows(trips)
    assert found.compared == expected.num_rows
    place.corrections.apply(by="test")
    difference = compare_zone_windows(expected, place.rows())
    assert difference.equal, str(difference)


class Late:
    """A place where the job has dropped late trips of some closed windows, and of one as a whole."""

    def __init__(self, place: Place, trips: pa.Table) -> None:
        self.trips = trips
        first = min(trips["lpep_pickup_datetime"].to_pylist()).replace(minute=0, second=0, microsecond=0)
        self.watermark = first + timedelta(hours=20)
        picked = trips["lpep_pickup_datetime"].to_pylist()
        zones = trips["PULocationID"].to_pylist()
        hours = [(at - first) // timedelta(hours=1) for at in picked]
        whole = (7, 74)
        self.dropped = [
            hour < 19 and (i % 40 == 0 or (hour, zone) == whole)
            for i, (hour, zone) in enumerate(zip(hours, zones, strict=True))
        ]
        self.new_rows = 1
        self.late = sum(self.dropped)
        self.kept = trips.filter(pa.array([not one for one in self.dropped]))
        place.add_trips(trips)
        place.write_windows(self.kept, self.watermark, 0)
        place.commit(0, self.watermark)
        self.expected = expected_zone_windows(trips)


@pytest.fixture
def late(place: Place, trips: pa.Table) -> Late:
    return Late(place, trips)


def equal(place: Place, trips: pa.Table) -> bool:
    return bool(compare_zone_windows(expected_zone_windows(trips), place.rows()).equal)


def test_late_trips_are_found_counted_folded_in_and_marked(place: Place, late: Late) -> None:
    before = {(row["window_start"], row["zone_id"]): row for row in place.rows().to_pylist()}
    version = place.version()
    found = place.corrections.find()
    assert place.version() == version, "a report changes nothing"
    assert (found.late, found.missing, found.other) == (late.late, 1, 0) and found.late > 40
    assert found.closed_before == late.watermark

    done = place.corrections.apply(by="ann")
    assert done.commit == place.version() == version + 1, "one commit: it is there as a whole, or not"
    assert equal(place, late.trips)
    assert "ann" in str(DeltaTable(place.workspace.table(JOB)).history(1)[0])
    rows = place.rows().to_pylist()
    corrected = [row for row in rows if row[CORRECTED_AT] is not None]
    assert len(corrected) == found.rows
    assert all(row["is_final"] for row in corrected)
    revenue = 0
    for row in corrected:
        was = before.get((row["window_start"], row["zone_id"]))
        assert row[CORRECTED_ROWS] == row["trips"] - (was["trips"] if was else 0)
        revenue += row["revenue"] - (was["revenue"] if was else 0)
    assert sum(row[CORRECTED_ROWS] for row in corrected) == late.late
    assert found.amounts == {"revenue": revenue}
    untouched = [row for row in rows if row[CORRECTED_AT] is None]
    assert all(row[CORRECTED_ROWS] is None for row in untouched)


def test_a_second_correction_changes_nothing_and_a_later_one_adds(place: Place, late: Late) -> None:
    place.corrections.apply(by="test")
    rows, version = place.rows(), place.version()
    again = place.corrections.apply(by="test")
    assert (again.commit, again.found.rows, again.found.late) == (None, 0, 0)
    assert place.version() == version and place.rows().equals(rows)

    more = late.trips.filter(pa.array(late.dropped)).slice(0, 3)
    place.add_trips(more)
    assert place.corrections.apply(by="test").found.late == 3
    assert equal(place, pa.concat_tables([late.trips, more]))
    marks = place.rows()[CORRECTED_ROWS].drop_null().to_pylist()
    assert sum(marks) == late.late + 3


def test_open_windows_are_the_jobs(place: Place, trips: pa.Table) -> None:
    assert place.corrections.find().closed_before is None, "not before the first batch"
    place.add_trips(trips)
    kept = trips.slice(0, trips.num_rows - 500)
    watermark = max(kept["lpep_pickup_datetime"].to_pylist()).replace(minute=0, second=0, microsecond=0)
    place.write_windows(kept, watermark, 0)
    assert place.corrections.find().closed_before is None, "not before its commit"
    place.commit(0, watermark)
    # In a batch that has begun, but may still write.
    place.commit(1, watermark + timedelta(days=9))
    place.workspace.files.delete("checkpoints/zone_windows/1/commits/1")
    assert place.corrections.apply(by="test").commit is None
    assert not equal(place, trips)
    place.commit(1, watermark + timedelta(hours=1))
    found = place.corrections.apply(by="test").found
    assert 0 < found.late < 500
    ends = [row["window_end"] for row in place.rows().to_pylist() if row[CORRECTED_AT]]
    assert set(ends) == {watermark + timedelta(hours=1)}


def test_a_commit_of_the_job_in_between_wins_and_the_correction_is_made_anew(
    place: Place, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge, races = Corrections._merge, []

    def slow(self: Corrections, table: DeltaTable, *args: Any) -> None:
        if len(races) < 3:
            races.append(table.version())
            # The job goes on with its open windows, by the same keys in the same files.
            opened = late.kept.filter(
                pa.array([at >= late.watermark for at in late.kept["lpep_pickup_datetime"].to_pylist()])
            )
            place.write_windows(opened, late.watermark, len(races))
        merge(self, table, *args)

    monkeypatch.setattr(Corrections, "_merge", slow)
    assert place.corrections.apply(by="test").commit == races[-1] + 2
    assert races == [races[0], races[0] + 1, races[0] + 2]
    assert equal(place, late.trips)
    assert sum(place.rows()[CORRECTED_ROWS].drop_null().to_pylist()) == late.late


def test_killed_before_the_commit_nothing_is_there_and_the_next_is_whole(
    place: Place, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = place.rows()

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Corrections, "_merge", dies)
        with pytest.raises(KeyboardInterrupt):
            place.corrections.apply(by="test")
    assert place.rows().equals(rows)
    place.corrections.apply(by="test")
    assert equal(place, late.trips)


def test_the_job_writes_on_over_a_corrected_table(place: Place, late: Late) -> None:
    place.corrections.apply(by="test")
    marks = place.rows()[CORRECTED_ROWS].drop_null().to_pylist()
    extra = late.trips.slice(late.trips.num_rows - 200)
    place.add_trips(extra)
    opened = pa.concat_tables([late.trips, extra])
    opened = opened.filter(pa.array([at >= late.watermark for at in opened["lpep_pickup_datetime"].to_pylist()]))
    end = late.watermark + timedelta(days=9)
    place.write_windows(opened, end, 1)
    # A driver that starts marks all that is not final yet; it must leave corrected rows as they are.
    writer = DeltaWriter(place.workspace.table(JOB), None, ["window_start", "zone_id"], f"{JOB}:1", finality=FINALITY)
    none = windows(late.trips.slice(0, 0)).append_column("is_final", pa.array([], pa.bool_()))
    passed = (-1, round(end.timestamp() * 1000))
    writer.upsert(none, 2, deleted="_deleted", passed=passed, author="job", guard=lambda: None)
    place.commit(2, end)
    assert equal(place, pa.concat_tables([late.trips, extra]))
    assert place.corrections.find().rows == 0
    assert place.rows()[CORRECTED_ROWS].drop_null().to_pylist() == marks


def test_rows_that_differ_without_late_trips_are_left_alone(place: Place, late: Late) -> None:
    place.corrections.apply(by="test")
    table = DeltaTable(place.workspace.table(JOB))
    first = min(table.to_pyarrow_table()["window_start"].to_pylist())
    at = f"arrow_cast({round(first.timestamp() * 1_000_000)}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
    done = table.update(updates={"trips": "trips + 1"}, predicate=f"window_start = {at}")
    found = place.corrections.apply(by="test")
    assert found.commit is None
    assert found.found.other == done["num_updated_rows"] > 0
    assert len(found.found.other_examples) == found.found.other


def test_a_job_or_a_table_is_named(place: Place) -> None:
    assert len(corrections_of(place.workspace)) == len(corrections_of(place.workspace, JOB)) == 1
    with pytest.raises(StreamwardenError, match="CORRECTIONS_UNAVAILABLE"):
        corrections_of(place.workspace, "card_sessions")
    with pytest.raises(StreamwardenError, match="CORRECTIONS_UNAVAILABLE"):
        corrections_of(place.workspace, "nothing")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT nonsense FROM {tables.trips}", "nonsense"),
        ("SELECT PULocationID AS zone_id FROM {tables.trips}", "window_end"),
        ("SELECT *, 1 AS surplus FROM (Q)", "gives surplus"),
        ("SELECT window_start, window_end, zone_id FROM (Q)", "does not give trips"),
        ("SELECT * FROM (Q) UNION ALL SELECT * FROM (Q)", "repeat a key"),
        ("SELECT * REPLACE ('x' AS zone_id) FROM (Q)", "types"),
        ("SELECT (", ""),
    ],
)
def test_a_wrong_query_is_refused_and_nothing_written(place: Place, late: Late, query: str, says: str) -> None:
    spec = place.workspace.job(JOB)
    sink = spec.delta_sinks[0]
    assert sink.reconcile is not None
    text = query.replace("Q", sink.reconcile.query)
    wrong = sink.model_copy(update={"reconcile": sink.reconcile.model_copy(update={"query": text})})
    version = place.version()
    with pytest.raises(StreamwardenError, match="RECONCILE_FAILED") as raised:
        Corrections(place.workspace, JOB, wrong).apply(by="test")
    assert says in str(raised.value)
    assert place.version() == version


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"query": "SELECT 1", "count": "trips"}, r"reads no \{tables.NAME\}"),
        ({"query": "SELECT 1 FROM {tables.other}", "count": "trips"}, "reads other, which the job does not"),
        ({"query": "SELECT 1 FROM {tables.trips}"}, "count"),
        ({"query": "SELECT 1 FROM {tables.trips}", "count": "trips", "more": 1}, "more"),
    ],
)
def test_a_spec_is_checked_when_it_is_read(place: Place, changed: dict[str, Any], says: str) -> None:
    raw = place.workspace.job(JOB).model_dump(mode="json")
    raw["sinks"][0]["reconcile"] = changed
    with pytest.raises(ValidationError, match=says):
        JobSpec.model_validate(raw)


def test_only_rows_that_become_final_are_corrected(place: Place) -> None:
    raw = place.workspace.job(JOB).model_dump(mode="json")
    raw["sinks"][0]["final_when_passed"] = None
    with pytest.raises(ValidationError, match="reconcile goes with final_when_passed"):
        JobSpec.model_validate(raw)
