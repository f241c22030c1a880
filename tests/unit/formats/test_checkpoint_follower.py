"""A copy of a checkpoint that follows the original: what is written into it, and when it is given up."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint_follower import Follower, pays_to_start_ahead
from streamwarden.operations.state_copy import follow
from streamwarden.store.workspace import Workspace
from tests.batches import make_place

pytestmark = pytest.mark.unit

HERE, COPY = "checkpoints/lamp/g000001", "checkpoints/lamp/g000002"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A job at batch 5, reading files, and a copy that was made at batch 2 and repartitioned as its batch 3."""
    made = make_place(tmp_path)
    for batch in range(6):
        begin(made, HERE, batch, partitions=2)
        commit(made, HERE, batch)
        made.files.write(f"{HERE}/sources/0/{batch}", b"v1\n{}")
    for batch in range(4):
        begin(made, COPY, batch, partitions=8)
        commit(made, COPY, batch)
    for number in range(3):
        made.files.write(f"{COPY}/sources/0/{number}", b"v1\n{}")
    return made


def begin(workspace: Workspace, checkpoint: str, batch: int, *, partitions: int, version: str = "v1") -> None:
    conf = {"spark.sql.shuffle.partitions": str(partitions), "spark.other": "kept"}
    metadata = {"batchWatermarkMs": 1000 * batch, "batchTimestampMs": 7, "conf": conf}
    text = f'{version}\n{json.dumps(metadata)}\n{{"logOffset":{batch}}}'
    workspace.files.write(f"{checkpoint}/offsets/{batch}", text.encode())


def commit(workspace: Workspace, checkpoint: str, batch: int, watermark: int = 0) -> None:
    workspace.files.write(f"{checkpoint}/commits/{batch}", f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'.encode())


def follower(workspace: Workspace) -> Follower:
    return Follower(workspace, HERE, COPY, shift=1, partitions=8)


def test_the_next_batch_begins_as_it_did_there(workspace: Workspace) -> None:
    following = follower(workspace)
    assert (following.batch, following.behind) == (2, 3)
    assert following.begin() == following.begin() == 3
    version, metadata, source = workspace.files.read(f"{COPY}/offsets/4").decode().split("\n")
    begun = json.loads(metadata)
    assert (version, source) == ("v1", '{"logOffset":3}')
    assert begun["conf"] == {"spark.sql.shuffle.partitions": "8", "spark.other": "kept"}
    assert (begun["batchWatermarkMs"], begun["batchTimestampMs"]) == (3000, 7)
    # What the batch's files are, and not yet those of later ones.
    listed = {info.key.rsplit("/", 1)[1] for info in workspace.files.walk(f"{COPY}/sources/0")}
    assert listed == {"0", "1", "2", "3"}
    commit(workspace, COPY, 4)
    following.check(3)
    assert (following.batch, following.behind) == (3, 2)


def test_another_watermark_is_another_state(workspace: Workspace) -> None:
    following = follower(workspace)
    following.begin()
    with pytest.raises(StreamwardenError, match="RESCALE_FAILED"):
        following.check(3)
    commit(workspace, COPY, 4, watermark=1)
    with pytest.raises(StreamwardenError, match="RESCALE_STATE_DIFFERS"):
        following.check(3)


def test_what_a_quick_job_removes_during_a_replay_ends_nothing(workspace: Workspace) -> None:
    following = follower(workspace)

    def replay() -> float:
        following.begin()
        commit(workspace, COPY, 4)
        # The job has gone on, and keeps a few batches only.
        for batch in range(5):
            workspace.files.delete(f"{HERE}/commits/{batch}")
            workspace.files.delete(f"{HERE}/offsets/{batch}")
        following.check(3)
        return 0.1

    assert follow(following, replay, again=60) is False
    assert following.outrun

    def too_late() -> float:
        workspace.files.delete(f"{HERE}/offsets/4")
        following.begin()
        return 0.1

    begin(workspace, HERE, 4, partitions=2)
    assert not following.outrun
    assert follow(following, too_late, again=60) is False


def test_what_it_cannot_follow_it_refuses(workspace: Workspace) -> None:
    begin(workspace, HERE, 3, partitions=2, version="v9")
    with pytest.raises(StreamwardenError, match=r"RESCALE_FAILED.*v9"):
        follower(workspace).begin()
    workspace.files.delete(f"{HERE}/offsets/3")
    with pytest.raises(StreamwardenError, match=r"RESCALE_FAILED.*not in its log any more"):
        follower(workspace).begin()


def test_a_copy_whose_next_batch_the_job_has_removed_from_its_log_is_given_up(workspace: Workspace) -> None:
    assert not follower(workspace).outrun
    workspace.files.delete(f"{HERE}/offsets/3")
    following = follower(workspace)
    assert following.outrun and following.behind > 0
    assert follow(following, lambda: pytest.fail("nothing can be replayed"), again=3600) is False


@pytest.mark.parametrize(
    ("made_meanwhile", "again_s", "near", "replays"),
    [
        # Nearer with each replay, of ten seconds.
        ([0] * 20, 0, True, 5),
        # Slow at first, then nearer.
        ([2, 2, 1, *[0] * 20], 0, True, 10),
        # As fast as the copy in the end: three batches are left, which take less than another copy, or more.
        ([0, 0, 0, *[1] * 20], 35, True, 13),
        ([0, 0, 0, *[1] * 20], 25, False, 13),
        # Ever further away, which is seen sooner.
        ([3] * 20, 35, False, 3),
    ],
)
def test_a_copy_that_gets_no_nearer_is_given_up(
    made_meanwhile: list[int], again_s: float, near: bool, replays: int
) -> None:
    copy = SimpleNamespace(behind=5, outrun=False)
    done: list[int] = []

    def replay() -> float:
        copy.behind += made_meanwhile[len(done)] - 1
        done.append(copy.behind)
        return 10.0

    assert follow(copy, replay, again=again_s) is near
    assert len(done) == replays


@pytest.mark.parametrize(
    ("now", "interval", "replay", "ahead"),
    [
        # Whatever the clock says, the next multiple of 5 s is nearer than the replay and another start.
        (100.0, 5.0, 2.6, True),
        (104.9, 5.0, 2.6, True),
        # A minute's is near for its last seconds only.
        (120.0, 60.0, 3.0, False),
        (173.0, 60.0, 3.0, False),
        (174.5, 60.0, 3.0, True),
        # Nothing was replayed: nothing is known.
        (174.5, 60.0, 0.0, False),
    ],
)
def test_a_query_is_started_ahead_if_its_second_batch_does_not_wait_for_the_clock(
    now: float, interval: float, replay: float, ahead: bool
) -> None:
    assert pays_to_start_ahead(now, interval, replay) is ahead
