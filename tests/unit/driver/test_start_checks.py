"""What ends a driver before its first batch: a checkpoint that nothing names, or that is behind its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from streamwarden.driver.job_session import PROVIDERS
from streamwarden.driver.start_checks import check_first_start, check_fixed, check_known, check_version
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_fence import fence
from streamwarden.formats.delta_log import application_id
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef
from streamwarden.operations.repair_documents import used_generations
from streamwarden.store.workspace import Workspace
from tests.unit.savepoints import test_catalog
from tests.unit.supervision.test_supervision import JOB, desired

pytestmark = pytest.mark.unit

PATH = f"checkpoints/{JOB}/g000001"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return test_catalog.opened(tmp_path)


def table() -> str:
    return desired().spec.sinks[0].table


def wrote(workspace: Workspace, batch: int, generation: int = 1) -> None:
    write_deltalake(
        workspace.table(table()),
        pa.table({"batch": [batch]}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(application_id(JOB, generation), batch)]),
    )


def begun(workspace: Workspace, batch: int) -> None:
    workspace.files.write(f"{PATH}/offsets/{batch}", b"v1\n{}\n-")


def of(generation: int, highest: int = 0) -> CheckpointRef:
    return CheckpointRef(job=JOB, generation=generation, path=PATH, since=utc_now(), reason="test", highest=highest)


def check(workspace: Workspace, generation: int = 1) -> None:
    check_known(workspace, desired().spec, of(generation), CheckpointReader(workspace.storage, PATH))


def test_a_batch_in_flight_may_be_in_the_table_and_no_later_one(workspace: Workspace) -> None:
    check(workspace)
    wrote(workspace, 0)
    with pytest.raises(StreamwardenError, match=f"begins with batch 0, and table {table()} has its batch 0") as raised:
        check(workspace)
    assert raised.value.code == "CHECKPOINT_BEHIND" and not raised.value.retryable
    begun(workspace, 0)
    check(workspace)
    wrote(workspace, 1)
    with pytest.raises(StreamwardenError, match="CHECKPOINT_BEHIND"):
        check(workspace)
    begun(workspace, 1)
    check(workspace)
    check(workspace, generation=2)


def test_a_generation_that_was_fenced_off_does_not_begin_again(workspace: Workspace) -> None:
    wrote(workspace, 0)
    begun(workspace, 0)
    begun(workspace, 1)
    fence(workspace, table(), of(2, highest=2))
    with pytest.raises(StreamwardenError, match="is closed to it, since a later generation ran"):
        check(workspace)
    check(workspace, generation=2)


def test_a_checkpoint_without_its_document_is_no_new_job(workspace: Workspace) -> None:
    check_first_start(workspace, JOB)
    begun(workspace, 0)
    with pytest.raises(StreamwardenError, match=f"control/{JOB}/checkpoint.json: it is missing, .* has g000001"):
        check_first_start(workspace, JOB)


def test_no_generation_that_left_a_trace_is_used_again(workspace: Workspace) -> None:
    spec = desired().spec
    (workspace.config / "jobs").mkdir(exist_ok=True)
    (workspace.config / "jobs" / f"{JOB}.yaml").write_text(spec.model_dump_json())
    assert used_generations(workspace, JOB) == set()
    wrote(workspace, 4, generation=2)
    fence(workspace, table(), of(5, highest=6))
    assert used_generations(workspace, JOB) == {1, 2, 3, 4, 6}
    begun(workspace, 0)
    workspace.files.write(f"checkpoints/{JOB}/g000009/offsets/0", b"v1")
    assert max(used_generations(workspace, JOB)) == 9


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("spark.sql.shuffle.partitions", "7", "STATE_PARTITIONS_FIXED"),
        ("spark.sql.streaming.stateStore.providerClass", PROVIDERS["memory"], "STATE_BACKEND_FIXED"),
    ],
)
def test_what_a_checkpoint_has_fixed_cannot_be_changed(
    workspace: Workspace, setting: str, value: str, code: str
) -> None:
    spec = desired().spec
    conf = {
        "spark.sql.shuffle.partitions": str(spec.state.partitions),
        "spark.sql.streaming.stateStore.providerClass": PROVIDERS[spec.state.backend],
    }

    def recorded(conf: dict[str, str]) -> None:
        workspace.files.write(f"{PATH}/offsets/0", f"v1\n{json.dumps({'conf': conf})}\n-".encode())

    recorded({**conf, setting: value})
    reader = CheckpointReader(workspace.storage, PATH)
    # Without state nothing is fixed.
    check_fixed(spec, reader)
    workspace.files.write(f"{PATH}/state/0/_metadata/metadata", b"v1")
    with pytest.raises(StreamwardenError) as raised:
        check_fixed(spec, reader)
    assert raised.value.code == code and value.rpartition(".")[2] in raised.value.what
    recorded(conf)
    check_fixed(spec, reader)


def test_state_of_another_version_is_refused_by_its_name(workspace: Workspace) -> None:
    spec, reader = desired().spec, CheckpointReader(workspace.storage, PATH)
    # Without state a new version has nothing to read.
    check_version(spec, 2, 1, reader)
    workspace.files.write(f"{PATH}/state/0/_metadata/metadata", b"v1")
    check_version(spec, 1, 1, reader)
    check_version(spec, 2, None, reader)
    with pytest.raises(StreamwardenError, match="STATE_VERSION_FIXED") as raised:
        check_version(spec, 2, 1, reader)
    assert "version 2, and version 1 wrote the state" in raised.value.what
