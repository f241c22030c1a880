from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamwarden.formats.delta_log import DeltaLog, TableState, application_id
from streamwarden.storage import LocalFiles

pytestmark = pytest.mark.unit

OURS = application_id("job", 2)
OLDER = application_id("job", 1)
NEWER = application_id("job", 3)

FOLDER = "tables/t/_delta_log"

Commit = list[dict[str, Any]]

CREATE: Commit = [{"protocol": {}}, {"metaData": {"id": "the-table"}}]
OPTIMIZE: Commit = [{"remove": {"path": "1"}}, {"add": {"path": "2"}}, {"commitInfo": {"operation": "OPTIMIZE"}}]
RESTORE: Commit = [{"commitInfo": {"operation": "RESTORE"}}, {"metaData": {"id": "the-table"}}, {"add": {"path": "1"}}]


def batch(number: int, application: str = OURS) -> Commit:
    return [{"txn": {"appId": application, "version": number}}, {"add": {"path": f"{application}{number}"}}]


def log(root: Path, commits: Iterable[Commit], *, first: int = 0) -> DeltaLog:
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for version, commit in enumerate(commits, first):
        (folder / f"{version:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in commit))
    return DeltaLog(LocalFiles(root), "t")


def test_a_batch_has_the_version_that_it_wrote(tmp_path: Path) -> None:
    found = log(tmp_path, [CREATE, batch(0), batch(1), batch(2)])
    assert [found.after(OURS, number) for number in range(3)] == [TableState(n + 1, n) for n in range(3)]


def test_a_batch_newer_than_all_is_the_latest_version(tmp_path: Path) -> None:
    assert log(tmp_path, [CREATE, batch(0), batch(1)]).after(OURS, 9) == TableState(2, 1)


def test_an_empty_batch_has_the_version_of_the_one_before_it(tmp_path: Path) -> None:
    found = log(tmp_path, [CREATE, batch(1), batch(5)])
    assert found.after(OURS, 0) == TableState(0, None)
    assert [found.after(OURS, number) for number in (1, 3, 4)] == [TableState(1, 1)] * 3


def test_what_carries_no_transaction_belongs_to_the_batch_before_it(tmp_path: Path) -> None:
    found = log(tmp_path, [CREATE, batch(0), OPTIMIZE, OPTIMIZE, batch(1), OPTIMIZE])
    assert found.after(OURS, 0) == TableState(3, 0)
    assert found.after(OURS, 1) == TableState(5, 1)


def test_a_first_batch_in_the_tables_first_commit_leaves_nothing_before_it(tmp_path: Path) -> None:
    found = log(tmp_path, [CREATE + batch(3)])
    assert found.after(OURS, 2) == TableState(None, None)
    assert found.after(OURS, 3) == TableState(0, 3)


def test_what_an_older_generation_wrote_was_there_before(tmp_path: Path) -> None:
    found = log(tmp_path, [CREATE, batch(0, OLDER), batch(1, OLDER), RESTORE, batch(1), batch(2)])
    assert found.after(OURS, 0) == TableState(3, None)
    assert found.after(OURS, 1) == TableState(4, 1)
    assert found.after(OURS, 7) == TableState(5, 2)
    fresh = log(tmp_path / "fresh", [CREATE, batch(0, OLDER), batch(1, OLDER)])
    assert fresh.after(OURS, 1) == TableState(2, None)


def test_older_generations_commits_are_not_looked_through(tmp_path: Path) -> None:
    found = log(tmp_path, [CREATE, *(batch(number, OLDER) for number in range(50)), batch(50)])
    looked: list[int] = []
    real = found.actions
    found.actions = lambda version: looked.append(version) or real(version)  # type: ignore[method-assign,func-returns-value]
    assert found.after(OURS, 49) == TableState(50, None)
    assert looked == [51, 50]


def test_a_generation_that_failed_and_was_gone_back_from_hides_nothing(tmp_path: Path) -> None:
    # The sink has batch 2, the checkpoint does not. Then an unhealthy restore, and its rollback.
    found = log(tmp_path, [CREATE, batch(0), batch(1), batch(2), batch(1, NEWER), RESTORE])
    assert found.after(OURS, 1) == TableState(2, 1), "batch 2 is done again, so it must not be in what is put back"
    assert found.after(OURS, 2) == TableState(5, 2)
    went_on = log(tmp_path / "later", [CREATE, batch(0), batch(1), batch(1, NEWER), RESTORE, batch(2)])
    assert went_on.after(OURS, 1) == TableState(4, 1)
    assert went_on.after(OURS, 2) == TableState(5, 2)


def test_other_writers_hide_nothing(tmp_path: Path) -> None:
    found = log(tmp_path, [CREATE, batch(0), batch(7, "somebody"), batch(1), batch(8, "somebody")])
    assert found.after(OURS, 0) == TableState(2, 0)
    assert found.after(OURS, 1) == TableState(4, 1)


def test_a_table_that_does_not_exist_has_no_version(tmp_path: Path) -> None:
    found = log(tmp_path, [])
    assert (found.latest, found.versions, found.since(0)) == (None, [], [])
    assert found.after(OURS, 3) == TableState(None, None)


def test_where_early_versions_were_cleaned_up_the_rest_is_read(tmp_path: Path) -> None:
    found = log(tmp_path, [batch(4), batch(5)], first=5)
    assert (found.versions, found.since(0), found.since(6), found.since(7)) == ([5, 6], [5, 6], [6], [])
    assert found.after(OURS, 4) == TableState(5, 4)
    assert found.after(OURS, 3) == TableState(4, None)


def test_only_commits_are_versions(tmp_path: Path) -> None:
    found = log(tmp_path, [CREATE, batch(0)])
    for name in (
        f"{1:020d}.checkpoint.parquet",
        f".{2:020d}.json.crc",
        f"{2:020d}.crc",
        "_last_checkpoint",
        f"{0:020d}.{1:020d}.compacted.json",
    ):
        (tmp_path / FOLDER / name).write_text("{}")
    (tmp_path / FOLDER / "_commits").mkdir()
    (tmp_path / FOLDER / "_commits" / f"{9:020d}.uuid.json").write_text("{}")
    assert found.versions == [0, 1]
    assert (found.since(0), found.since(1), found.since(2)) == ([0, 1], [1], [])


# -- against a model ---------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Commit], int]:
    """A life of a table: an older generation, ours with gaps, commits without a transaction, failed generations."""
    commits = [CREATE]
    for number in range(draw(st.integers(0, 3))):
        commits.append(batch(number, OLDER))
        commits += [OPTIMIZE] * draw(st.integers(0, 1))
    next_batch = draw(st.integers(0, 3))
    failed = 3
    for what in draw(st.lists(st.sampled_from(["ours", "gap", "optimize", "restore", "failed"]), max_size=12)):
        if what == "ours":
            commits.append(batch(next_batch))
            next_batch += 1
        elif what == "gap":
            next_batch += draw(st.integers(1, 3))
        elif what == "failed":
            commits += [batch(number, application_id("job", failed)) for number in range(draw(st.integers(1, 2)))]
            commits.append(RESTORE)
            failed += 1
        else:
            commits.append(OPTIMIZE if what == "optimize" else RESTORE)
    return commits, draw(st.integers(0, next_batch + 1))


def _naive(commits: list[Commit], asked: int) -> TableState:
    """Play the commits one by one until one is of a later batch of ours."""
    state = TableState(None, None)
    for version, commit in enumerate(commits):
        for action in commit:
            if action.get("txn", {}).get("appId") == OURS:
                if action["txn"]["version"] > asked:
                    return state
                state = TableState(version, action["txn"]["version"])
        state = TableState(version, state.transaction)
    return state


@settings(max_examples=80, deadline=None)
@given(histories())
def test_any_history_is_read_as_if_played_from_the_start(history: tuple[list[Commit], int]) -> None:
    commits, asked = history
    with TemporaryDirectory() as folder:
        assert log(Path(folder), commits).after(OURS, asked) == _naive(commits, asked)
