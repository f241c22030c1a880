"""What a driver reads next, the history or the source, by the positions in the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from streamwarden.driver.history import History
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.record import utc_now
from streamwarden.model.source_spec import HistorySource
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.savepoints.history import is_on_history, job_is_on_history, other_history, table_id
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit

PATH = "checkpoints/job/g1"
NO_SESSION = cast(SparkSession, None)
KAFKA = {"kind": "kafka", "topic": "trips", "bootstrap_servers": "one:9092"}
LIVE = {"kind": "delta", "table": "trips"}


def spec(source: dict[str, Any] | None = None, **history: Any) -> JobSpec:
    before = {"table": "before", **history} if history.get("table", "") is not None else None
    fields = {"name": "job", "module": "m", "sinks": [{"table": "out", "mode": "append"}]}
    return JobSpec.model_validate({**fields, "source": {**(source or LIVE), "history": before}})


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    config = tmp_path / "config"
    (config / "profiles").mkdir(parents=True)
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    found = open_workspace("test", config=config)
    for table in ("before", "trips"):
        write_deltalake(found.table(table), pa.table({"key": [1]}))
    return found


def position(workspace: Workspace, table: str, version: int = 1, *, starting: bool = False) -> str:
    where = {"reservoirVersion": version, "index": -1, "isStartingVersion": starting}
    return json.dumps({"sourceVersion": 1, "reservoirId": table_id(workspace, table), **where})


def batches(workspace: Workspace, *positions: str, done: int | None = None) -> None:
    """Write a checkpoint with these positions, of which the batches up to one are committed."""
    for batch, where in enumerate(positions):
        metadata = json.dumps({"batchWatermarkMs": 1000 * batch, "batchTimestampMs": 5, "conf": {"a": "b"}})
        workspace.files.write(f"{PATH}/offsets/{batch}", f"v1\n{metadata}\n{where}\n{where}".encode())
        if done is None or batch <= done:
            workspace.files.write(f"{PATH}/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


def history(workspace: Workspace, found: JobSpec | None = None, *, writes: int = 9) -> History:
    """Return a history whose driver dies before a number of writes."""
    left = iter(range(writes))

    def guard() -> None:
        if next(left, None) is None:
            raise InterruptedError

    return History(workspace, found or spec(), PATH, guard)


def sources(workspace: Workspace, batch: int) -> str:
    entry = CheckpointReader(workspace.storage, PATH).offsets(batch)
    assert entry is not None and entry.watermark_ms == 1000 * batch and entry.conf == {"a": "b"}
    # The query has two branches over its source.
    assert len(entry.sources) == 2 and len(set(entry.sources)) == 1
    return str(entry.sources[0])


def test_the_position_tells_what_is_read(workspace: Workspace) -> None:
    kafka = spec(KAFKA, live_from="2026-01-01T00:00:00Z")
    before, live = position(workspace, "before"), position(workspace, "trips")
    assert is_on_history(workspace, spec(), None) and is_on_history(workspace, kafka, None)
    assert is_on_history(workspace, spec(), before) and is_on_history(workspace, kafka, before)
    assert not is_on_history(workspace, spec(), live)
    assert not is_on_history(workspace, kafka, '{"trips":{"0":5}}')
    assert not is_on_history(workspace, kafka, '{"reservoirId":{"0":5}}')
    assert not is_on_history(workspace, spec(table=None), before)


def test_a_job_without_a_checkpoint_begins_with_its_history_and_one_with_a_checkpoint_does_not(
    workspace: Workspace,
) -> None:
    assert job_is_on_history(workspace, spec()) and not job_is_on_history(workspace, spec(table=None))
    JobDocuments(workspace.storage, "job").checkpoint.write(
        CheckpointRef(job="job", generation=1, path=PATH, since=utc_now(), reason="")
    )
    assert job_is_on_history(workspace, spec())
    batches(workspace, position(workspace, "trips"))
    assert not job_is_on_history(workspace, spec())
    assert history(workspace).is_read and history(workspace).begin(NO_SESSION) == spec()


def test_live_from_may_change_while_the_history_is_read_and_its_rows_may_not() -> None:
    begun = spec(KAFKA, live_from="2026-01-01T00:00:00Z")
    assert not other_history(begun, spec(KAFKA, live_from="2026-02-01T00:00:00Z", max_files_per_batch=3))
    assert other_history(begun, spec(KAFKA, live_from="2026-01-01T00:00:00Z", where="key > 1"))
    assert other_history(begun, spec(KAFKA, table=None))


def test_the_history_is_the_source_until_it_is_read(workspace: Workspace) -> None:
    batches(workspace, position(workspace, "before", 0, starting=True))
    reading = history(workspace, spec(where="key > 0", max_files_per_batch=7))
    assert not reading.is_read and not reading.is_all_read
    assert reading.progress == "reading history before: file 0 of 1"
    source = reading.begin(NO_SESSION).source
    assert isinstance(source, HistorySource) and source.live == spec(where="key > 0", max_files_per_batch=7).source
    assert (source.table, source.where, source.max_files_per_batch) == ("before", "key > 0", 7)


def test_rows_that_come_to_the_history_meanwhile_are_read_too(workspace: Workspace) -> None:
    batches(workspace, position(workspace, "before"))
    assert history(workspace).is_all_read
    write_deltalake(workspace.table("before"), pa.table({"key": [2]}), mode="append")
    assert not history(workspace).is_all_read
    assert history(workspace).progress == "reading history before: 1 versions left"


def test_a_batch_of_the_history_that_has_begun_is_finished_first(workspace: Workspace) -> None:
    batches(workspace, position(workspace, "before", 0, starting=True), position(workspace, "before"), done=0)
    assert not history(workspace).is_all_read
    assert isinstance(history(workspace).begin(NO_SESSION).source, HistorySource)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_the_move_is_completed_wherever_it_was_cut(workspace: Workspace, writes: int) -> None:
    before = [position(workspace, "before", version) for version in (0, 0, 1)]
    batches(workspace, *before)
    if writes < 2:
        with pytest.raises(InterruptedError):
            history(workspace, writes=writes).begin(NO_SESSION)
        # A driver that was killed there has written the newest entry first.
        assert [sources(workspace, batch) != before[batch] for batch in (1, 2)] == [False, writes == 1]
    assert history(workspace).begin(NO_SESSION) == spec()
    moved = {
        "sourceVersion": 1,
        "reservoirId": table_id(workspace, "trips"),
        "reservoirVersion": 0,
        "index": -1,
        "isStartingVersion": True,
    }
    assert [json.loads(sources(workspace, batch)) for batch in (1, 2)] == [moved, moved]
    assert sources(workspace, 0) == before[0]
    # Nothing is left to do, also after rows came to the source.
    write_deltalake(workspace.table("trips"), pa.table({"key": [2]}), mode="append")
    assert history(workspace, writes=0).begin(NO_SESSION) == spec()


def test_a_savepoint_of_the_moment_between_the_writes_goes_on_with_the_source(workspace: Workspace) -> None:
    batches(workspace, position(workspace, "trips", 0), position(workspace, "before"))
    found = history(workspace)
    assert found.begin(NO_SESSION) == spec() and found.is_read
    assert sources(workspace, 1) == sources(workspace, 0)


def test_a_history_of_one_batch_has_one_position(workspace: Workspace) -> None:
    batches(workspace, position(workspace, "before"))
    assert history(workspace).begin(NO_SESSION) == spec()
    assert json.loads(sources(workspace, 0))["reservoirId"] == table_id(workspace, "trips")


def test_a_copy_of_the_sources_files_is_no_history(workspace: Workspace) -> None:
    files = workspace.files
    files.delete_tree("tables/before")
    files.copy_many([(one.key, one.key.replace("trips", "before")) for one in list(files.walk("tables/trips"))])
    with pytest.raises(StreamwardenError, match="one is a copy of the other's files") as raised:
        history(workspace).begin(NO_SESSION)
    assert raised.value.code == "HISTORY_INVALID" and "CREATE TABLE" in raised.value.remedy
