"""The rehearsal of a write: for every job's outputs, and without traces."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from streamwarden.control.workspace import open_workspace
from streamwarden.driver.module import load_module
from streamwarden.driver.rehearsal import rehearse
from streamwarden.driver.sink import DeltaSink
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("job", ["ingest_trips", "zone_windows", "card_sessions"])
def test_it_leaves_nothing_and_complains_of_nothing(
    spark: SparkSession, empty: Path, job: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = open_workspace("local", config=REPOSITORY / "config").job(job)
    written: list[int] = []
    write = DeltaSink.write

    def noted(sink: DeltaSink, *values: object, **named: object) -> object:
        done = write(sink, *values, **named)  # type: ignore[arg-type]
        written.append(done.arrived)
        return done

    monkeypatch.setattr(DeltaSink, "write", noted)
    with caplog.at_level(logging.WARNING):
        rehearse(spark, spec, load_module(spec).OUTPUTS, state=job == "zone_windows")
    assert not [record for record in caplog.records if record.name == "streamwarden.driver.rehearsal"]
    assert written == [3, 3] * len(spec.sinks)
    assert list(empty.iterdir()) == []


def test_one_that_fails_is_told_and_hinders_nothing(
    spark: SparkSession, empty: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = open_workspace("local", config=REPOSITORY / "config").job("zone_windows")
    with caplog.at_level(logging.WARNING, logger="streamwarden.driver.rehearsal"):
        # Without the columns that its keys name.
        rehearse(spark, spec, {"main": StructType()}, state=False)
    assert "will take longer" in caplog.text
    assert list(empty.iterdir()) == []
