"""The batch that Spark owes after one that moved the watermark: when it is begun, and with what."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from streamwarden.formats.no_data_batch import begin_no_data_batch
from streamwarden.storage import LocalStorage

pytestmark = pytest.mark.unit


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """A stateful job that has committed batch 7, which began at watermark 1000 and came to 5000."""
    made = LocalStorage(tmp_path)
    begin(made, 7)
    commit(made, 7)
    made.write("cp/state/0/0/8.changelog", b"x")
    return made


def begin(storage: LocalStorage, batch: int, version: str = "v1", watermark: int = 1000) -> None:
    metadata = {"batchWatermarkMs": watermark, "batchTimestampMs": 3, "conf": {"spark.sql.shuffle.partitions": "2"}}
    storage.write(f"cp/offsets/{batch}", f'{version}\n{json.dumps(metadata)}\n{{"logOffset":4}}\n-'.encode())


def commit(storage: LocalStorage, batch: int, watermark: int = 5000) -> None:
    storage.write(f"cp/commits/{batch}", f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'.encode())


def test_it_reads_nothing_and_has_the_watermark_that_was_come_to(storage: LocalStorage) -> None:
    before = time.time() * 1000
    assert begin_no_data_batch(storage, "cp") == 8
    entry = storage.read("cp/offsets/8")
    assert entry is not None
    version, metadata, *sources = entry.data.decode().split("\n")
    begun = json.loads(metadata)
    assert (version, sources) == ("v1", ['{"logOffset":4}', "-"])
    assert begun["batchWatermarkMs"] == 5000 and begun["batchTimestampMs"] >= int(before)
    assert begun["conf"] == {"spark.sql.shuffle.partitions": "2"}
    assert begin_no_data_batch(storage, "cp") is None, "it is begun already"
    commit(storage, 8)
    assert begin_no_data_batch(storage, "cp") is None, "and then it is done"


def test_none_is_owed(storage: LocalStorage) -> None:
    commit(storage, 7, watermark=1000)
    assert begin_no_data_batch(storage, "cp") is None, "the watermark stands where it stood"
    commit(storage, 7)
    begin(storage, 8, watermark=5000)
    assert begin_no_data_batch(storage, "cp") is None, "another batch is begun, and is to be finished"
    storage.delete("cp/offsets/8")
    begin(storage, 7, version="v2")
    assert begin_no_data_batch(storage, "cp") is None, "a format of another Spark"
    begin(storage, 7)
    storage.delete("cp/state/0/0/8.changelog")
    assert begin_no_data_batch(storage, "cp") is None, "without state there is nothing to become final"
    assert begin_no_data_batch(storage, "empty") is None
