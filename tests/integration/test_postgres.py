"""The private Postgres that `make chaos` runs Airflow on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg2
import pytest

from streamwarden.errors import StreamwardenError
from tests import postgres
from tests.postgres import PrivatePostgres, find_programs

pytestmark = pytest.mark.integration


def servers(folder: Path) -> list[int]:
    return [p.pid for p in psutil.process_iter(["cmdline"]) if str(folder / "data") in (p.info["cmdline"] or [])]


@pytest.fixture
def folder() -> Iterator[Path]:
    try:
        find_programs()
    except StreamwardenError as error:
        pytest.skip(str(error))
    # Not tmp_path: where root runs the tests, Postgres's own user can't get there.
    chosen = Path(tempfile.gettempdir()) / f"streamwarden-test-{os.getpid()}"
    yield chosen
    PrivatePostgres(chosen).remove()


def test_keeps_what_was_committed_over_a_crash_and_leaves_nothing(folder: Path) -> None:
    with PrivatePostgres(folder) as made:
        with made.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE kept (x int)")
            cursor.execute("INSERT INTO kept VALUES (7)")
        made.restart(immediate=True)
        with pytest.raises(psycopg2.Error), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        with made.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT x FROM kept")
            assert cursor.fetchall() == [(7,)]
        assert servers(folder)
    assert not servers(folder) and not folder.exists()


def test_next_owner_ends_what_a_killed_one_left(folder: Path) -> None:
    left = PrivatePostgres(folder)
    left.start()
    old = servers(folder)
    with PrivatePostgres(folder) as made:
        assert not set(old) & set(servers(folder))
        made.connect().close()
        with pytest.raises(psycopg2.OperationalError):
            left.connect()


def test_folder_that_is_not_ours_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(StreamwardenError, match="no cluster of ours"):
        PrivatePostgres(tmp_path).start()
    assert (tmp_path / "letters.txt").exists()


def test_no_postgres_is_said_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    with pytest.raises(StreamwardenError, match="apt-get install postgresql"):
        find_programs()
