"""The table of every batch: what it holds, who may repeat what, and how it is kept small."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_table import COLUMNS, ProgressTable
from streamwarden.model.progress import BatchProgress
from streamwarden.model.record import utc_now
from streamwarden.model.spec import SinkSpec
from streamwarden.store.workspace import Workspace
from tests.batches import START, made_batch, make_place

pytestmark = pytest.mark.unit


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_place(tmp_path)


@pytest.fixture
def table(workspace: Workspace) -> ProgressTable:
    return ProgressTable(workspace)


def delta(workspace: Workspace) -> DeltaTable:
    return DeltaTable(workspace.delta_rs("job_progress")[0])


def ids(table: ProgressTable, job: str = "lamp") -> list[tuple[str, int]]:
    return [(row["incarnation"], row["batch"]) for row in table.read(job)]


def test_a_row_says_what_the_batch_says(table: ProgressTable) -> None:
    full, bare = made_batch(1), BatchProgress(batch=2, at=START + timedelta(hours=1), duration_ms=1, rows_in=0)
    assert table.append("lamp", "i1", 3, [full, bare]) == 2
    first, second = table.read("lamp")
    assert list(first) == list(COLUMNS)
    for row, batch in ((first, full), (second, bare)):
        # state_rows has an operator's keys: the table's older struct of operators stays as it is.
        fields = batch.model_dump(
            exclude={
                "source": True,
                "sources": True,
                "lookups": True,
                "watermark_since": True,
                "operators": {"__all__": {"keys"}},
            }
        )
        assert {name: row[name] for name in fields} == fields
        assert (row["job"], row["generation"], row["incarnation"]) == ("lamp", 3, "i1")
    assert (first["source_unit"], first["source_taken"], first["source_pending"]) == ("files", 2, 4)
    assert second["source_unit"] is second["source_pending"] is second["rows_out"] is second["watermark"] is None


def test_every_field_of_a_batch_has_a_column() -> None:
    ours = {"job", "generation", "incarnation", "source_unit", "source_taken", "source_pending"}
    assert set(COLUMNS) - ours == set(BatchProgress.model_fields) - {"source", "sources", "lookups", "watermark_since"}


def test_columns_are_described_in_the_table_itself(workspace: Workspace, table: ProgressTable) -> None:
    table.append("lamp", "i1", 1, [made_batch(0)])
    made = delta(workspace)
    assert {field.name: field.metadata["comment"] for field in made.schema().fields} == {
        name: text for name, (_, text) in COLUMNS.items()
    }
    assert made.metadata().partition_columns == ["job"]


def test_batches_that_are_there_are_not_added_again(workspace: Workspace, table: ProgressTable) -> None:
    assert table.append("lamp", "i1", 1, [made_batch(0), made_batch(1)]) == 2
    again = ProgressTable(workspace)
    assert again.append("lamp", "i1", 1, [made_batch(0), made_batch(1), made_batch(2)]) == 1
    # Another run of the driver may report the same ids: of another generation.
    assert again.append("lamp", "i2", 2, [made_batch(1)]) == 1
    assert table.append("lamp", "i1", 1, [made_batch(2)]) == 0
    assert sorted(ids(table)) == [("i1", 0), ("i1", 1), ("i1", 2), ("i2", 1)]
    # The ids of two jobs' runs may be the same, in one of some ten thousands of cases.
    assert table.append("other", "i1", 1, [made_batch(0)]) == 1
    assert (table.last_batch("lamp", "i1"), table.last_batch("lamp", "i2"), table.last_batch("lamp", "i3")) == (
        2,
        1,
        None,
    )


def test_two_that_append_the_same_at_once_add_it_once(workspace: Workspace, table: ProgressTable) -> None:
    table.append("lamp", "i0", 1, [made_batch(0)])
    one, other = ProgressTable(workspace), ProgressTable(workspace)
    one.last_batch("lamp", "i1")
    wrapped = other._open

    def outrun(*, make: bool) -> DeltaTable | None:
        # Between the other's look at the table and its commit, once.
        found = wrapped(make=make)
        other._open = wrapped  # type: ignore[method-assign]
        assert one.append("lamp", "i1", 1, [made_batch(1)]) == 1
        return found

    other._open = outrun  # type: ignore[method-assign]
    assert other.append("lamp", "i1", 1, [made_batch(1), made_batch(2)]) == 1
    assert ids(table) == [("i0", 0), ("i1", 1), ("i1", 2)]


def test_the_newest_are_read_in_order_of_time(table: ProgressTable) -> None:
    table.append("lamp", "i1", 1, [made_batch(number) for number in range(30)])
    table.append("lamp", "i2", 2, [made_batch(5, at=START + timedelta(hours=1))])
    table.append("other", "i3", 1, [made_batch(99, at=START + timedelta(hours=2))])
    assert [row["batch"] for row in table.read("lamp", 3)] == [28, 29, 5]
    assert len(table.read("lamp", 500)) == 31
    assert [row["batch"] for row in table.read("lamp", 3, since=table.read("lamp")[-5]["at"])] == [26, 27, 28, 29, 5]
    assert len(table.read("lamp", 3, since=START + timedelta(days=9))) == 3
    assert table.read("nobody") == table.read("nobody", 3, since=START) == []


def test_without_a_table_reading_says_so_and_upkeep_makes_none(workspace: Workspace, table: ProgressTable) -> None:
    with pytest.raises(StreamwardenError) as caught:
        table.read("lamp")
    assert caught.value.code == "PROGRESS_TABLE_MISSING"
    assert table.last_batch("lamp", "i1") is None and table.upkeep(timedelta(days=90)) == {}
    assert not (workspace.root / "tables").exists()


def test_a_store_that_refuses_is_an_error_that_may_pass(workspace: Workspace, table: ProgressTable) -> None:
    (workspace.root / "tables").mkdir(parents=True)
    (workspace.root / "tables" / "job_progress").write_text("in the way")
    with pytest.raises(StreamwardenError) as caught:
        table.append("lamp", "i1", 1, [made_batch(0)])
    assert caught.value.code == "PROGRESS_TABLE_FAILED" and caught.value.retryable
    (workspace.root / "tables" / "job_progress").unlink()
    assert table.append("lamp", "i1", 1, [made_batch(0)]) == 1


def test_a_table_with_other_columns_is_read_and_written(workspace: Workspace, table: ProgressTable) -> None:
    # An older driver made it, without `tries`; a newer one adds what nobody here knows.
    schema = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items() if name != "tries"])
    old = {**dict.fromkeys(schema.names), "job": "lamp", "incarnation": "i0", "batch": 0, "at": START}
    uri, _ = workspace.delta_rs("job_progress")
    write_deltalake(uri, pa.Table.from_pylist([old], schema=schema), partition_by=["job"])
    assert [row["tries"] for row in table.read("lamp")] == [None]
    assert table.append("lamp", "i1", 1, [made_batch(1)]) == 1
    newer = pa.Table.from_pylist([{**old, "batch": 2, "more": 1}], schema=schema.append(pa.field("more", pa.int64())))
    write_deltalake(uri, newer, mode="append", schema_mode="merge")
    assert table.append("lamp", "i1", 1, [made_batch(3)]) == 1
    assert sorted((row["batch"], row["tries"]) for row in table.read("lamp") if row["tries"]) == [(1, 1), (3, 1)]
    assert len(table.read("lamp")) == 4


def test_upkeep_deletes_old_rows_and_joins_files_once_a_day(workspace: Workspace, table: ProgressTable) -> None:
    # The table forgets after 30 real days which day was the last.
    now = utc_now().replace(hour=12)
    for number in range(6):
        table.append("lamp", "i1", 1, [made_batch(number, at=now - timedelta(days=5 - number))])
        table.append("other", "i2", 1, [made_batch(number, at=now)])
    done = table.upkeep(timedelta(days=3, hours=1), now=now)
    assert done["rows_deleted"] == 2 and done["files_joined"] == 10
    assert [row["batch"] for row in table.read("lamp")] == [2, 3, 4, 5]
    assert len(delta(workspace).file_uris()) == 2
    for number in range(6, 8):
        table.append("lamp", "i1", 1, [made_batch(number, at=now)])
    assert ProgressTable(workspace).upkeep(timedelta(days=3), now=now) == {}
    # The next day by UTC; and files that nobody needs are a day old.
    folder = workspace.root / "tables" / "job_progress"
    for path in (folder / "_delta_log").glob("*.json"):
        text = path.read_text()
        for stamp in re.findall(r'"deletionTimestamp":(\d+)', text):
            text = text.replace(stamp, str(int(stamp) - 2 * 86_400_000))
        path.write_text(text)
    assert len(list(folder.glob("job=*/*.parquet"))) == 16
    done = ProgressTable(workspace).upkeep(timedelta(days=3), now=now + timedelta(hours=13))
    assert done["files_joined"] == 3 and done["files_removed"] == 12
    assert len(list(folder.glob("job=*/*.parquet"))) == 6
    assert table.append("lamp", "i1", 1, [made_batch(7), made_batch(8, at=now)]) == 1
    assert [row["batch"] for row in table.read("lamp")] == [3, 4, 5, 6, 7, 8]


def test_upkeep_joins_small_files_each_hour(workspace: Workspace, table: ProgressTable) -> None:
    now = utc_now().replace(hour=12, minute=10)
    for number in range(3):
        table.append("lamp", "i1", 1, [made_batch(number, at=now)])
    table.upkeep(timedelta(days=3), now=now)
    for number in range(3, 6):
        table.append("lamp", "i1", 1, [made_batch(number, at=now - timedelta(days=4))])
    assert table.upkeep(timedelta(days=3), now=now + timedelta(minutes=40)) == {}
    # Old rows wait for the day's upkeep.
    assert table.upkeep(timedelta(days=3), now=now + timedelta(minutes=50)) == {"files_joined": 4}
    assert len(table.read("lamp")) == 6 and len(delta(workspace).file_uris()) == 1
    # What is large already is left alone.
    noise = np.random.default_rng(1).random(200_000)
    large = pa.table({"job": ["lamp"] * len(noise), "at": [now] * len(noise), "rows_per_second": noise})
    write_deltalake(workspace.delta_rs("job_progress")[0], large, mode="append", schema_mode="merge")
    whole = max(delta(workspace).file_uris(), key=lambda one: Path(one).stat().st_size)
    for number in range(6, 8):
        table.append("lamp", "i1", 1, [made_batch(number, at=now)])
    assert table.upkeep(timedelta(days=3), now=now + timedelta(hours=2)) == {"files_joined": 2}
    assert whole in delta(workspace).file_uris()


def test_upkeep_and_appends_stand_in_nobodys_way(workspace: Workspace, table: ProgressTable) -> None:
    now = utc_now()
    old = now - timedelta(days=100)
    for number in range(4):
        table.append("lamp", "i1", 1, [made_batch(number, at=old if number < 2 else now)])
    keeper = ProgressTable(workspace)
    wrapped = keeper._open

    def outrun(*, make: bool) -> DeltaTable | None:
        found = wrapped(make=make)
        keeper._open = wrapped  # type: ignore[method-assign]
        assert table.append("lamp", "i1", 1, [made_batch(4, at=now)]) == 1
        return found

    keeper._open = outrun  # type: ignore[method-assign]
    assert keeper.upkeep(timedelta(days=90))["rows_deleted"] == 2
    assert [row["batch"] for row in table.read("lamp")] == [2, 3, 4]


def test_no_job_may_write_it() -> None:
    with pytest.raises(ValueError, match="Streamwarden's own"):
        SinkSpec(table="job_progress", mode="append")
