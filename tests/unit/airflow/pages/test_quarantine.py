"""The quarantined rows of a table's page."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("airflow")

from streamwarden.airflow.pages import quarantine
from streamwarden.airflow.pages.quarantine import quarantine_of_table, quarantine_versions, shortened
from streamwarden.errors import StreamwardenError
from streamwarden.operations.quarantine import Cause
from tests.unit.operations.test_quarantine import Place

pytestmark = pytest.mark.unit


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, {"kind": "files", "path": "landing"})


def test_rows_are_counted_by_cause_and_the_newest_shown(place: Place) -> None:
    assert quarantine_versions(place.workspace, "t") is None
    for number in range(25):
        place.by_rule(f"r{number}", {"n": number}, "a.parquet", number, rule="t.n" if number else "t.other")
    first = quarantine_versions(place.workspace, "t")
    found = quarantine_of_table(place.workspace, "t", [])
    assert (found.rows, found.causes) == (25, [Cause("t.n", 24, 0, 0), Cause("t.other", 1, 0, 0)])
    assert [one.id for one in found.newest][:2] == ["r24", "r23"] and len(found.newest) == 20
    assert found.newest[0].source_file == "a.parquet" and found.newest[0].source_row == 24
    place.by_rule("late", {"n": 1}, "b.parquet", 0)
    assert quarantine_versions(place.workspace, "t") != first


def test_replayed_rows_count_and_are_not_shown(place: Place) -> None:
    place.by_rule("r1", {"k": "a", "n": 1}, "a.parquet", 1)
    place.by_rule("r2", {"k": "b", "n": 2}, "a.parquet", 2)
    before = quarantine_versions(place.workspace, "t")
    place.replay({"r1": {"k": "a", "n": 3}})
    # The page must not keep what was true before the replay.
    assert quarantine_versions(place.workspace, "t") != before
    found = quarantine_of_table(place.workspace, "t", [])
    assert found.causes == [Cause("t.n", 1, 1, 0)] and [one.id for one in found.newest] == ["r2"]
    [sent] = place.landed()
    place.by_rule("r9", {"k": "a", "n": 3}, sent, 0)
    found = quarantine_of_table(place.workspace, "t", [])
    assert found.causes == [Cause("t.n", 1, 0, 1)] and {one.id for one in found.newest} == {"r1", "r2"}


def test_too_many_rows_are_not_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.by_rule("r1", {"n": 1}, "a.parquet", 1)
    monkeypatch.setattr(quarantine, "_MOST", 0)
    monkeypatch.setattr(quarantine, "quarantined_rows", lambda *_, **__: pytest.fail("read"))
    found = quarantine_of_table(place.workspace, "t", [])
    assert found.too_many and found.rows == 1 and found.causes == []


def test_a_table_that_is_not_there_is_an_error(place: Place) -> None:
    with pytest.raises(StreamwardenError, match="TABLE_NOT_FOUND"):
        quarantine_of_table(place.workspace, "t", [])


def test_long_rows_are_cut() -> None:
    assert shortened(None) == "" and shortened("x") == "x" and len(shortened("x" * 1000)) == 301
