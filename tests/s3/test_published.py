"""The gate publishes on S3: two at once, killed, and without a server for a while; delta-rs and Spark read it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from streamwarden.errors import OUTAGES, StreamwardenError
from streamwarden.formats import published_log
from streamwarden.formats.published_log import PublishedAt, PublishedLog
from streamwarden.model.gate import Verdict
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_state
from streamwarden.storage import Conflict, S3Storage
from streamwarden.store.workspace import Workspace
from tests.batches import make_place
from tests.integration.conftest import REPOSITORY
from tests.s3.conftest import Place
from tests.s3.server import S3Server

pytestmark = pytest.mark.s3

SUITE = {
    "name": "numbers",
    "meta": {"keys": ["n"]},
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "n", "min_value": 0, "max_value": 99},
            "severity": "critical",
            "meta": {"id": "small"},
        }
    ],
}
READER = """
import sys
from pathlib import Path
from streamwarden.quality.runner import own_session
from streamwarden.store.workspace import open_workspace
workspace = open_workspace("test", config=Path(sys.argv[1]))
path = workspace.table("numbers", published=True)
spark = own_session(s3=workspace.s3)
print("read", sorted(row.n for row in spark.read.format("delta").load(path).collect()))
rows = spark.readStream.format("delta").option("skipChangeCommits", "true").option("startingVersion", 1).load(path)
found = []
query = rows.writeStream.foreachBatch(lambda batch, _: found.extend(row.n for row in batch.collect()))
query.option("checkpointLocation", f"{path}-checkpoint").trigger(availableNow=True).start().awaitTermination()
print("streamed", sorted(found))
spark.stop()
"""


class Numbers:
    """The table, its gate and its readers."""

    def __init__(self, workspace: Workspace, folder: Path) -> None:
        (folder / "expectations").mkdir()
        (folder / "expectations" / "numbers.json").write_text(json.dumps(SUITE))
        self.workspace = workspace
        self.gate = Gate(workspace, folder / "expectations")
        self.log = PublishedLog(workspace, "numbers")
        self.address, self.options = workspace.delta_rs("numbers")

    def write(self, *numbers: int) -> None:
        rows = pa.table({"n": list(numbers), "at": [datetime(2023, 1, 1, tzinfo=UTC)] * len(numbers)})
        write_deltalake(self.address, rows, mode="append", storage_options=self.options)

    def table(self) -> DeltaTable:
        return DeltaTable(self.address, storage_options=self.options)

    def decide(self, *, again: bool = False) -> Verdict | None:
        decision = self.gate.decide("numbers", again=again)
        return decision.verdict if decision is not None else None

    def read(self) -> list[int]:
        address, options = self.workspace.delta_rs("numbers", published=True)
        found = pa.table(DeltaTable(address, storage_options=options).scan())
        return sorted(row["n"] for row in found.to_pylist())


@pytest.fixture
def numbers(tmp_path: Path, s3: Place, monkeypatch: pytest.MonkeyPatch) -> Numbers:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(s3.location.endpoint))
    return Numbers(make_place(tmp_path, s3={"bucket": s3.location.bucket, "prefix": s3.location.prefix}), tmp_path)


def change(numbers: Numbers) -> None:
    """Append, delete, append and compact: all that a range can hold."""
    numbers.write(4)
    numbers.table().delete("n = 2")
    numbers.write(5)
    numbers.table().optimize.compact()


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.ci
def test_what_passes_is_read_by_delta_rs_and_spark(
    numbers: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_log, "CHECKPOINT_EVERY", 3)
    numbers.write(1, 2)
    assert numbers.decide() is Verdict.PUBLISHED
    assert numbers.read() == [1, 2]
    numbers.write(3, 400)
    assert numbers.decide() is Verdict.HELD
    assert numbers.read() == [1, 2] and numbers.log.lost_files() == []
    numbers.table().delete("n = 400")
    assert numbers.decide(again=True) is Verdict.PUBLISHED
    change(numbers)
    assert numbers.decide() is Verdict.PUBLISHED
    assert numbers.read() == [1, 3, 4, 5]
    hint = numbers.workspace.files.read("published/numbers/_delta_log/_last_checkpoint")
    assert json.loads(hint)["version"] == numbers.log.at().number == 6
    script = [sys.executable, "-c", READER, str(numbers.workspace.config)]
    done = subprocess.run(script, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:] == ["read [1, 3, 4, 5]", "streamed [3, 4, 5]"], done.stderr[-3000:]


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("kill", range(4))
def test_a_publisher_killed_between_entries_goes_on(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch, kill: int
) -> None:
    numbers.write(1, 2, 3)
    numbers.decide()
    change(numbers)
    real = S3Storage.create
    done: list[str] = []

    def create(storage: S3Storage, key: str, data: bytes) -> str:
        if key.startswith("published/"):
            if len(done) == kill:
                raise KeyboardInterrupt
            done.append(key)
        return real(storage, key, data)

    monkeypatch.setattr(S3Storage, "create", create)
    with pytest.raises(KeyboardInterrupt):
        numbers.decide()
    monkeypatch.setattr(S3Storage, "create", real)
    assert numbers.read() in ([1, 2, 3], [1, 3, 4, 5])
    numbers.decide()
    assert numbers.read() == [1, 3, 4, 5]
    assert numbers.log.at() == PublishedAt(4, 4)
    assert numbers.log.versions() == [0, 1, 2, 3, 4]


def test_of_publishers_at_once_each_version_has_one(numbers: Numbers) -> None:
    numbers.write(1, 2, 3)
    numbers.decide()
    for number in range(10, 14):
        numbers.write(number)
    change(numbers)
    start, barrier = numbers.log.at(), threading.Barrier(4)
    written: list[int] = []
    conflicts: list[Conflict] = []

    def publish(last: int) -> None:
        log = PublishedLog(numbers.workspace, "numbers")
        barrier.wait()
        try:
            written.append(log.publish(start, last, changes=last == 8))
        except Conflict as error:
            conflicts.append(error)

    # Two have seen the whole range, and two an earlier table.
    threads = [threading.Thread(target=publish, args=(last,)) for last in (8, 8, 4, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) + len(conflicts) == 4 and written
    numbers.decide()
    assert numbers.log.at() == PublishedAt(8, 8)
    assert numbers.read() == [1, 3, 4, 5, 10, 11, 12, 13]
    assert gate_state(numbers.workspace, "numbers").waiting == 0


@pytest.mark.parametrize("after", [0, 2])
def test_a_server_that_goes_away_is_an_error_that_passes(
    numbers: Numbers, server: S3Server, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    numbers.write(1, 2, 3)
    numbers.decide()
    change(numbers)
    real = S3Storage.create
    done: list[str] = []

    def create(storage: S3Storage, key: str, data: bytes) -> str:
        if key.startswith("published/"):
            if len(done) == after:
                server.stop()
            done.append(key)
        return real(storage, key, data)

    monkeypatch.setattr(S3Storage, "create", create)
    with pytest.raises(StreamwardenError) as caught:
        numbers.decide()
    assert caught.value.code in OUTAGES and caught.value.retryable
    # Before anything is read, too: the table isn't taken for missing or damaged.
    began = time.monotonic()
    with pytest.raises(StreamwardenError) as caught:
        numbers.decide()
    assert caught.value.code in OUTAGES and time.monotonic() - began < 120
    server.start()
    monkeypatch.setattr(S3Storage, "create", real)
    numbers.decide()
    assert numbers.read() == [1, 3, 4, 5]


@pytest.mark.long
def test_a_server_that_goes_away_while_rows_are_read_is_no_damage(
    numbers: Numbers, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers.write(1)
    numbers.decide()
    numbers.write(2)
    from streamwarden.quality.table_versions import TableVersions

    real = TableVersions.read

    def read(versions: TableVersions, *args: object, **options: object) -> pa.Table:
        server.stop()
        return real(versions, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TableVersions, "read", read)
    with pytest.raises(StreamwardenError) as caught:
        numbers.decide()
    assert caught.value.code in OUTAGES
    server.start()
    monkeypatch.setattr(TableVersions, "read", real)
    assert numbers.decide() is Verdict.PUBLISHED
    assert numbers.read() == [1, 2]
