"""The rehearsal of a job: its own query for some batches, and without traces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from streamwarden.driver import rehearsal
from streamwarden.driver.pipeline.module import load_module
from streamwarden.driver.pipeline.sink import DeltaSink, Written
from streamwarden.driver.rehearsal import rehearse
from streamwarden.store.workspace import Workspace, open_workspace
from tests.conftest import REPOSITORY, TripMaker
from tests.spark.job_runs import as_trips, in_order_of_arrival, write_table

pytestmark = pytest.mark.spark

ROWS, COMMITS = 40, 8


@pytest.fixture
def workspace(tmp_path: Path, make_trips: TripMaker) -> Workspace:
    """A landing folder, the same trips as a table, and nothing of the jobs themselves."""
    place = open_workspace("local", config=REPOSITORY / "config", root=tmp_path / "root")
    parts = in_order_of_arrival(
        make_trips(ROWS * COMMITS, schema="2025"), seed=1, late_share=0, latest=timedelta(), batches=COMMITS
    )
    landing = Path(place.source_path("landing"))
    landing.mkdir(parents=True)
    for number, part in enumerate(parts):
        pq.write_table(part, landing / f"{number}.parquet")
    write_table(Path(place.table("trips")), map(as_trips, parts))
    return place


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The rows that each batch brought to each table."""
    found: dict[str, list[int]] = {}
    write = DeltaSink.write

    def noted(sink: DeltaSink, *values: object, **named: object) -> Written:
        done = write(sink, *values, **named)  # type: ignore[arg-type]
        found.setdefault(Path(sink._path).name, []).append(done.arrived)
        return done

    monkeypatch.setattr(DeltaSink, "write", noted)
    return found


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [one.getMessage() for one in caplog.records if one.name == "streamwarden.driver.rehearsal"]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param("ingest_trips", marks=pytest.mark.long),
        "zone_windows",
        pytest.param("card_sessions", marks=pytest.mark.long),
    ],
)
def test_it_runs_the_job_leaves_nothing_and_complains_of_nothing(
    spark: SparkSession,
    workspace: Workspace,
    empty: Path,
    job: str,
    arrived: dict[str, list[int]],
    complaints: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # This is of what it does, on however slow a machine.
    monkeypatch.setattr(rehearsal, "_SECONDS", 600.0)
    spec = workspace.job(job)
    assert rehearse(spark, workspace, spec, load_module(spec), state=True)
    assert not complaints()
    assert set(arrived) == {sink.output for sink in spec.sinks}
    batches = arrived["main"]
    # Some may have begun before it was stopped, and timers make further ones, without rows. It does not read on.
    assert len(batches) >= 3 and batches[0] > 0 and len([rows for rows in batches if rows]) < COMMITS
    if job == "ingest_trips":
        # A file a batch.
        assert set(batches) == {ROWS}
    assert list(empty.iterdir()) == []
    # Nothing of the job's was made, or written to.
    assert {path.name for path in (workspace.root / "tables").iterdir()} == {"trips"}
    assert DeltaTable(workspace.table("trips")).version() == COMMITS - 1
    assert not (workspace.root / "checkpoints").exists()


def test_a_source_with_nothing_in_it_is_over_at_once(
    spark: SparkSession, workspace: Workspace, empty: Path, complaints: Callable[[], list[str]]
) -> None:
    spec = workspace.job("ingest_trips")
    for path in Path(workspace.source_path("landing")).iterdir():
        path.unlink()
    rehearse(spark, workspace, spec, load_module(spec), state=True)
    waits = workspace.job("zone_windows")
    waits = waits.model_copy(update={"source": waits.source.model_copy(update={"table": "not_there_yet"})})
    assert not rehearse(spark, workspace, waits, load_module(waits), state=True)
    assert not complaints() and list(empty.iterdir()) == []


def test_one_that_takes_too_long_is_cut_off(
    spark: SparkSession,
    workspace: Workspace,
    empty: Path,
    arrived: dict[str, list[int]],
    complaints: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rehearsal, "_SECONDS", 0.0)
    spec = workspace.job("zone_windows")
    assert rehearse(spark, workspace, spec, load_module(spec), state=True)
    assert not complaints()
    assert len(arrived.get("main", [])) < 2 and list(empty.iterdir()) == []


def test_one_that_fails_is_told_and_hinders_nothing(
    spark: SparkSession,
    workspace: Workspace,
    empty: Path,
    complaints: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(DeltaSink, "write", fail)
    spec = workspace.job("zone_windows")
    assert not rehearse(spark, workspace, spec, load_module(spec), state=False)
    assert [said for said in complaints() if "will take longer" in said]
    assert list(empty.iterdir()) == []
