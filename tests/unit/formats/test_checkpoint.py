from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamwarden.driver.job_api import EVENT_ENDS
from streamwarden.driver.progress import late_rows
from streamwarden.formats.checkpoint import CheckpointReader, continued_offsets
from streamwarden.storage import LocalStorage

pytestmark = pytest.mark.unit


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def _offsets(storage: LocalStorage, batch: int, watermark_ms: int) -> None:
    metadata = {"batchWatermarkMs": watermark_ms, "conf": {"spark.sql.shuffle.partitions": "4"}}
    storage.write(f"cp/offsets/{batch}", f"v1\n{json.dumps(metadata)}\n{{}}".encode())


def test_reads_the_logs(storage: LocalStorage) -> None:
    reader = CheckpointReader(storage, "cp")
    assert reader.last_offset() is None and reader.last_commit() is None and not reader.has_state()
    for batch in (9, 10):
        _offsets(storage, batch, 5)
    storage.write("cp/commits/9", b"v1\n{}")
    # Hadoop's checksum files stand beside them.
    storage.write("cp/commits/x.crc", b"")
    assert (reader.last_offset(), reader.last_commit()) == (10, 9)
    assert reader.is_committed(9) and not reader.is_committed(10)
    found = reader.offsets(10)
    assert found is not None and found.watermark_ms == 5 and found.conf["spark.sql.shuffle.partitions"] == "4"
    assert reader.offsets(11) is None


def test_an_entry_goes_on_where_another_ended_with_settings_of_its_own() -> None:
    before = b'v1\n{"batchWatermarkMs":7,"batchTimestampMs":1,"conf":{"a":"1"}}\n{"position":5}\n-'
    entry = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":2,"conf":{"a":"2"}}\n{"position":0}'
    version, metadata, *sources = continued_offsets(before, entry).decode().split("\n")
    assert (version, sources) == ("v1", ['{"position":5}', "-"])
    assert json.loads(metadata) == {"batchWatermarkMs": 7, "batchTimestampMs": 2, "conf": {"a": "2"}}


@pytest.mark.parametrize(("batch", "late"), [(0, 0), (1, 0), (2, 7), (3, 12)])
def test_late_rows_are_those_at_or_below_the_watermark_of_the_batch_before(
    storage: LocalStorage, batch: int, late: int
) -> None:
    for number, watermark in enumerate([0, 7_200_000, 10_800_000, 99_000_000]):
        _offsets(storage, number, watermark)
    bins = [{"x": 3600.0, "y": 3.0}, {"x": 7200.0, "y": 4.0}, {"x": 10800.0, "y": 5.0}, {"x": 14400.0, "y": 9.0}]
    progress: Any = SimpleNamespace(batchId=batch, observedMetrics={EVENT_ENDS: {"histogram": bins}}, stateOperators=[])
    assert late_rows(progress, CheckpointReader(storage, "cp")) == late


def test_without_an_observation_sparks_own_count_is_taken(storage: LocalStorage) -> None:
    operators = [SimpleNamespace(numRowsDroppedByWatermark=2), SimpleNamespace(numRowsDroppedByWatermark=3)]
    progress: Any = SimpleNamespace(batchId=1, observedMetrics={}, stateOperators=operators)
    assert late_rows(progress, CheckpointReader(storage, "cp")) == 5
