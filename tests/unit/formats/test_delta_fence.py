from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_fence import fence
from streamwarden.formats.delta_log import DeltaLog, TableState, application_id
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef
from streamwarden.storage import Conflict
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit

SHUT = 2**63 - 1


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


def of(generation: int, highest: int) -> CheckpointRef:
    return CheckpointRef(
        job="job", generation=generation, path="p", since=utc_now(), reason="for the test", highest=highest
    )


def batch(workspace: Workspace, number: int, generation: int = 1) -> None:
    txn = Transaction(application_id("job", generation), number)
    write_deltalake(
        workspace.table("t"),
        pa.table({"batch": [number]}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[txn]),
    )


def written(workspace: Workspace, generation: int) -> int | None:
    return DeltaTable(workspace.table("t")).transaction_version(application_id("job", generation))


def test_a_first_generation_and_a_missing_table_need_none(workspace: Workspace) -> None:
    assert fence(workspace, "t", of(2, 2)) is None
    batch(workspace, 0)
    assert fence(workspace, "t", of(1, 1)) is None
    assert DeltaTable(workspace.table("t")).version() == 0


def test_a_damaged_checksum_file_hinders_nothing(workspace: Workspace) -> None:
    batch(workspace, 0)
    log = Path(workspace.table("t")) / "_delta_log"
    (log / f"{0:020d}.crc").write_text("{")
    assert fence(workspace, "t", of(2, 2)) == 1
    assert [path.name for path in log.glob("*.crc")] == [f"{0:020d}.crc"]


def test_others_are_shut_out_and_let_in_again_where_they_stood(workspace: Workspace) -> None:
    for number in range(3):
        batch(workspace, number)
    assert fence(workspace, "t", of(2, 2)) == 3
    assert (written(workspace, 1), written(workspace, 2)) == (SHUT, None)
    assert fence(workspace, "t", of(2, 2)) is None, "once is enough"
    batch(workspace, 2, generation=2)
    # Taken up again after the second failed.
    assert fence(workspace, "t", of(1, 2)) == 5
    assert (written(workspace, 1), written(workspace, 2)) == (2, SHUT)
    batch(workspace, 3)
    assert fence(workspace, "t", of(3, 3)) == 7
    assert [written(workspace, generation) for generation in (1, 2, 3)] == [SHUT, SHUT, None]
    assert fence(workspace, "t", of(1, 3)) == 8
    assert [written(workspace, generation) for generation in (1, 2, 3)] == [3, SHUT, SHUT]
    assert sorted(DeltaTable(workspace.table("t")).to_pyarrow_table()["batch"].to_pylist()) == [0, 1, 2, 2, 3]


def test_one_that_had_written_nothing_is_let_in_as_such(workspace: Workspace) -> None:
    batch(workspace, 0, generation=2)
    fence(workspace, "t", of(2, 2))
    fence(workspace, "t", of(1, 2))
    assert written(workspace, 1) == -1


def test_the_log_is_read_as_if_there_were_none(workspace: Workspace) -> None:
    batch(workspace, 0)
    batch(workspace, 1)
    fence(workspace, "t", of(2, 2))
    batch(workspace, 1, generation=2)
    log = DeltaLog(workspace.files, "t")
    # Of generation 2: after its batch 0 there is what generation 1 left.
    assert log.after(application_id("job", 2), 0) == TableState(2, None)
    assert log.after(application_id("job", 2), 1) == TableState(3, 1)
    assert log.after(application_id("job", 1), 0) == TableState(0, 0)


def test_a_lost_race_reads_again(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    batch(workspace, 0)
    create = workspace.storage.create
    lost: list[int] = []

    def racing(key: str, data: bytes) -> str:
        if not lost:
            lost.append(1)
            # The very driver that is to be kept out was faster: its batch counts as what it had written.
            batch(workspace, 1)
        return create(key, data)

    monkeypatch.setattr(workspace.storage, "create", racing)
    assert fence(workspace, "t", of(2, 2)) == 2
    fence(workspace, "t", of(1, 2))
    assert written(workspace, 1) == 1


def test_a_table_on_which_others_commit_all_the_time_is_an_error(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(workspace, 0)

    def refuse(key: str, data: bytes) -> str:
        raise Conflict(key)

    monkeypatch.setattr(workspace.storage, "create", refuse)
    with pytest.raises(StreamwardenError, match="DOCUMENT_CONFLICT"):
        fence(workspace, "t", of(2, 2))
