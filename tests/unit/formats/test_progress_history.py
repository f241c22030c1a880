from __future__ import annotations

import math
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from streamwarden.formats.progress_files import KeptResults, files_of, read_file
from streamwarden.formats.progress_history import ProgressHistory, Window
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.model.progress import BatchProgress, SourceProgress
from streamwarden.store.workspace import Workspace
from tests.unit.savepoints import test_catalog

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return test_catalog.opened(tmp_path)


def batch(
    number: int, *, seconds_ago: float, rows: int = 100, ms: int = 1000, pending: int | None = None
) -> BatchProgress:
    source = SourceProgress(unit="files", taken=1, pending=pending)
    at = NOW - timedelta(seconds=seconds_ago)
    return BatchProgress(
        batch=number, at=at, duration_ms=ms, rows_in=rows, commit_ms=ms // 2, state_rows=number, source=source
    )


def test_a_window_begins_at_multiples_of_its_step_and_contains_its_end() -> None:
    window = Window.of(NOW, timedelta(hours=1), points=60)
    assert window.step == 60 and window.points == 60
    assert window.since.timestamp() % 60 == 0 and window.until > NOW
    assert Window.of(NOW + timedelta(seconds=5), timedelta(hours=1), points=60) == window
    assert Window.of(NOW, timedelta(hours=1), points=600, least=timedelta(minutes=10)).points == 6


def test_sums_lasts_and_maxima_of_each_point(workspace: Workspace) -> None:
    made = [
        batch(0, seconds_ago=130, rows=60, ms=500, pending=7),
        batch(1, seconds_ago=125, rows=60, ms=1500, pending=3),
        batch(2, seconds_ago=5, rows=120, ms=4000, pending=None),
    ]
    ProgressTable(workspace).append("lamp", "i1", 1, made)
    window = Window.of(NOW, timedelta(minutes=4), points=4)
    found = ProgressHistory(workspace).curves(window, ["lamp"])["lamp"]
    assert found.batches.tolist() == [0, 2, 1, 0] or sum(found.batches) == 3
    point = int((made[0].at.timestamp() - window.since.timestamp()) // window.step)
    assert found.per_second("rows_in")[point] == pytest.approx(120 / 60)
    assert found.while_busy("rows_in")[point] == pytest.approx(120 / 2)
    assert found.mean("duration_ms")[point] == 1000 and found.longest_ms[point] == 1500
    # Of a value that is no sum, the last batch's counts; an unknown one is no value.
    assert found.values("source_pending")[point] == 3
    last = int((made[2].at.timestamp() - window.since.timestamp()) // window.step)
    assert found.values("source_pending")[last] is None
    assert found.mean("duration_ms")[(point + 1)] is None or point + 1 == last


def test_other_jobs_and_other_times_are_left_out(workspace: Workspace) -> None:
    table = ProgressTable(workspace)
    table.append("lamp", "i1", 1, [batch(0, seconds_ago=3700), batch(1, seconds_ago=10)])
    table.append("other", "i2", 1, [batch(0, seconds_ago=10, rows=5)])
    window = Window.of(NOW, timedelta(hours=1), points=60)
    found = ProgressHistory(workspace).curves(window, ["lamp"])
    assert set(found) == {"lamp"} and float(found["lamp"].batches.sum()) == 1
    both = ProgressHistory(workspace).curves(window, ["lamp", "other"])
    assert both["other"].columns["rows_in"].sum() == 5 and both["lamp"].columns["rows_in"].sum() == 100
    assert ProgressHistory(workspace).curves(window, []) == {}


def test_batches_that_are_not_written_yet_count_once(workspace: Workspace) -> None:
    made = [batch(number, seconds_ago=100 - number) for number in range(5)]
    ProgressTable(workspace).append("lamp", "i1", 1, made[:3])
    window = Window.of(NOW, timedelta(hours=1), points=60)
    found = ProgressHistory(workspace).curves(window, ["lamp"], newer={"lamp": ("i1", made)})["lamp"]
    assert found.batches.sum() == 5 and found.columns["rows_in"].sum() == 500
    # A place without the table has these alone.
    workspace.files.delete_tree("tables")
    alone = ProgressHistory(workspace).curves(window, ["lamp"], newer={"lamp": ("i1", made[4:])})["lamp"]
    assert alone.batches.sum() == 1 and not math.isnan(
        alone.columns["state_rows"].max(initial=0, where=alone.batches > 0)
    )


def test_the_newest_batches(workspace: Workspace) -> None:
    ProgressTable(workspace).append("lamp", "i1", 3, [batch(number, seconds_ago=100 - number) for number in range(9)])
    rows = ProgressHistory(workspace).batches("lamp", since=NOW - timedelta(hours=1), last=4)
    assert [row["batch"] for row in rows] == [8, 7, 6, 5] and rows[0]["generation"] == 3


def test_files_are_read_once_and_room_is_bounded(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        ProgressTable(workspace).append("lamp", "i1", 1, [batch(number, seconds_ago=100 - number)])
    window, history, read = Window.of(NOW, timedelta(hours=1), points=60), ProgressHistory(workspace), []
    real = workspace.files.read

    def counted(_: object, key: str) -> bytes:
        if key.endswith(".parquet"):
            read.append(key)
        return real(key)

    monkeypatch.setattr(type(workspace.files), "read", counted)
    first = history.curves(window, ["lamp"])["lamp"].batches.sum()
    assert first == 3 and len(read) == 3
    ProgressTable(workspace).append("lamp", "i1", 1, [batch(3, seconds_ago=1)])
    assert history.curves(window, ["lamp"])["lamp"].batches.sum() == 4 and len(read) == 4
    # What compaction joins is another file, with the same rows.
    ProgressTable(workspace)._open(make=False).optimize.compact()
    assert history.curves(window, ["lamp"])["lamp"].batches.sum() == 4 and len(read) == 5

    kept: KeptResults[int] = KeptResults(10, lambda value: value)
    assert kept.get(["a", "b"], lambda places: [3] * len(places)) == [3, 3] and kept.size == 6
    assert kept.get(["b", "c"], lambda places: [7] * len(places)) == [3, 7] and kept.size == 10


def test_of_a_joined_file_only_the_days_of_the_window_are_read(workspace: Workspace) -> None:
    # A batch each minute of three weeks, in three files that housekeeping joins.
    table, minutes = ProgressTable(workspace), 3 * 7 * 24 * 60
    made = [batch(number, seconds_ago=60 * (minutes - number)) for number in range(minutes)]
    for begin in range(0, minutes, 10_080):
        table.append("lamp", "i1", 1, made[begin : begin + 10_080])
    assert table.upkeep(timedelta(days=90), now=NOW)["files_joined"] == 3
    opened = table._open(make=False)
    assert opened is not None
    [file] = files_of(opened, ["lamp"], NOW - timedelta(hours=1), NOW)
    assert read_file(workspace, file, ["at"], NOW - timedelta(weeks=5)).num_rows == minutes
    assert read_file(workspace, file, ["at"], NOW - timedelta(hours=1)).num_rows <= 20_000

    for length in (timedelta(hours=1), timedelta(days=2), timedelta(days=20)):
        window = Window.of(NOW, length, points=60)
        found = ProgressHistory(workspace).curves(window, ["lamp"])["lamp"]
        inside = [done for done in made if window.since <= done.at < window.until]
        assert found.batches.sum() == len(inside) and found.columns["rows_in"].sum() == 100 * len(inside)
        assert found.columns["state_rows"].max(initial=0, where=found.batches > 0) == minutes - 1
        kept = ProgressHistory(workspace)._cells(window, ["lamp"], ("rows_in",))
        assert sum(one.batches.sum() for _, one in kept) <= len(inside) + 24 * 60


def test_a_table_is_opened_once_and_shows_what_was_appended_since(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ProgressTable(workspace)
    table.append("lamp", "i1", 1, [batch(0, seconds_ago=100)])
    window = Window.of(NOW, timedelta(hours=1), points=60)
    opened: list[bool] = []
    plain = ProgressHistory._open
    monkeypatch.setattr(ProgressHistory, "_open", lambda self, *, make: opened.append(make) or plain(self, make=make))
    for number in range(1, 4):
        table.append("lamp", "i1", 1, [batch(number, seconds_ago=100 - number)])
        found = ProgressHistory(workspace).curves(window, ["lamp"])["lamp"]
        assert found.batches.sum() == number + 1
    assert opened == [False]


@pytest.mark.parametrize("versions", [1, 5])
def test_a_table_that_was_deleted_and_made_anew_is_read_anew(workspace: Workspace, versions: int) -> None:
    for number in range(3):
        ProgressTable(workspace).append("lamp", "i1", 1, [batch(number, seconds_ago=10)])
    history = ProgressHistory(workspace)
    assert [row["batch"] for row in history.batches("lamp", since=NOW - timedelta(hours=1), last=9)] == [2, 1, 0]
    shutil.rmtree(workspace.delta_rs(ProgressTable.table)[0])
    for number in range(versions):
        ProgressTable(workspace).append("lamp", "i2", 1, [batch(number, seconds_ago=10 - number)])
    rows = history.batches("lamp", since=NOW - timedelta(hours=1), last=9)
    assert {row["incarnation"] for row in rows} == {"i2"} and len(rows) == versions
