"""The proof of a rescale's copy, by digests that a stand-in for Spark's process tells: what differs is never used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Step
from streamwarden.model.progress import Progress
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, OperatorState, Origin
from streamwarden.model.status import CheckpointRef, Launch
from streamwarden.operations.state_copy import StateCopy, differing
from streamwarden.runtime.state_reader import StateAt
from streamwarden.savepoints.take import take
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.batches import made_batch, made_desired, make_place

pytestmark = pytest.mark.unit

JOB, HERE = "lamp", "checkpoints/lamp/g000001"
SAME = {"0/default": "a:1:2:3:4"}
"""Of ten rows."""


def begin(workspace: Workspace, checkpoint: str, batch: int, partitions: int) -> None:
    metadata = {"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": str(partitions)}}
    text = f'v1\n{json.dumps(metadata)}\n{{"logOffset":{batch}}}'
    workspace.files.write(f"{checkpoint}/offsets/{batch}", text.encode())


def commit(workspace: Workspace, checkpoint: str, batch: int) -> None:
    workspace.files.write(f"{checkpoint}/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A job whose driver says that its batch 1 left ten rows."""
    made = make_place(tmp_path)
    spec = {
        "name": JOB,
        "module": "spark_jobs.none",
        "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": JOB, "mode": "append"}],
    }
    (made.config / "jobs" / f"{JOB}.yaml").write_text(yaml.safe_dump(spec))
    documents, loaded, now = JobDocuments(made.storage, JOB), made.job(JOB), utc_now()
    documents.desired.write(made_desired(loaded))
    documents.checkpoint.write(CheckpointRef(job=JOB, generation=1, path=HERE, since=now, reason="first start"))
    documents.launch("one").write(
        Launch(incarnation="one", at=now, by="test", reason="test", digest=loaded.digest(), spec=loaded)
    )
    batch = made_batch(1)
    batch = batch.model_copy(update={"operators": batch.operators[:1]})
    documents.progress("one").write(Progress(incarnation="one", at=now, last=batch, recent=[batch]))
    made.files.write(f"{HERE}/metadata", b'{"id":"1"}')
    begin(made, HERE, 0, 2)
    commit(made, HERE, 0)
    return made


class Spare:
    """Tells the digests that it was given, in turn, and after each replay that so many rows are left."""

    def __init__(self, workspace: Workspace, *told: dict[str, str], rows: int = 10) -> None:
        self.workspace = workspace
        self.told = list(told)
        self.rows = rows

    def digests(self, *_: Any, **__: Any) -> dict[str, str]:
        return self.told.pop(0)

    def repartition(self, checkpoint: str, partitions: int, **_: Any) -> None:
        begin(self.workspace, checkpoint, 1, partitions)
        commit(self.workspace, checkpoint, 1)

    def replay(self, checkpoint: str, **_: Any) -> list[int]:
        commit(self.workspace, checkpoint, 2)
        return [self.rows]


def copied(workspace: Workspace, spare: Spare, *, proved_later: bool = False) -> StateCopy:
    made: Manifest = take(workspace, JOB, origin=Origin.PRE_RESCALE, by="test")
    operator = OperatorState(
        id=0, name="stateStoreSave", partitions=2, stores=["default"], rows=10, bytes=1, schema_sha256=""
    )
    made = made.model_copy(update={"operators": [operator]})

    @contextmanager
    def step(name: str) -> Iterator[Step]:
        yield Step(name=name, started_at=utc_now())

    return StateCopy(
        workspace,
        JOB,
        "operation",
        made,
        was=2,
        partitions=3,
        generation=lambda: 2,
        check=lambda: None,
        spare=spare,  # type: ignore[arg-type]
        step=step,
        heed=lambda: None,
        say=lambda _: None,
        report=None,
        proved_later=proved_later,
    )


def test_the_same_before_and_after_is_taken_for_the_state(workspace: Workspace) -> None:
    copy = copied(workspace, Spare(workspace, SAME, SAME))
    assert copy.reference.base_batch == 1 and copy.behind == 0
    assert copy.proof() is None, "nothing was replayed"
    assert copy.rows == 10


def test_a_copy_that_is_proved_later_asks_for_no_digest_while_the_job_is_down(workspace: Workspace) -> None:
    copy = copied(workspace, Spare(workspace), proved_later=True)
    assert copy.proof() == {"job": StateAt(HERE, 0, 2), "copy": StateAt("checkpoints/lamp/g000002", 1, 3)}
    assert copy.rows == 10


@pytest.mark.parametrize("after", ["a:1:2:3:5", "9:1:2:3:4"])
def test_another_digest_after_it_ends_the_rescale(workspace: Workspace, after: str) -> None:
    with pytest.raises(StreamwardenError, match=r"RESCALE_STATE_DIFFERS.*0/default"):
        copied(workspace, Spare(workspace, SAME, {"0/default": after}))


def test_a_store_that_is_gone_or_new_differs() -> None:
    assert differing(SAME, {}) == differing({}, SAME) == ["0/default"]
    assert differing(SAME, dict(SAME)) == []


def test_other_rows_than_the_query_itself_has_said_end_the_rescale(workspace: Workspace) -> None:
    fewer = {"0/default": "9:1:2:3:4"}
    with pytest.raises(StreamwardenError, match=r"RESCALE_STATE_DIFFERS.*had 10 rows, and 9 are read back"):
        copied(workspace, Spare(workspace, fewer, fewer))


@pytest.mark.parametrize("rows", [10, 11])
def test_a_replayed_batch_leaves_as_many_rows_as_the_job_has(workspace: Workspace, rows: int) -> None:
    copy = copied(workspace, Spare(workspace, SAME, SAME, rows=rows))
    begin(workspace, HERE, 1, 2)
    commit(workspace, HERE, 1)
    if rows != 10:
        with pytest.raises(StreamwardenError, match=r"RESCALE_STATE_DIFFERS.*\[10\] rows.*\[11\] in the copy"):
            copy.follow()
        return
    assert copy.follow()
    # What is to be compared once the job runs on the copy.
    assert copy.proof() == {"job": StateAt(HERE, 1, 2), "copy": StateAt("checkpoints/lamp/g000002", 2, 3)}
