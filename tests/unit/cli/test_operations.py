"""An unfinished operation is ended by hand."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import InForce, Operation
from streamwarden.runtime.operation_lock import begin, is_half_way, refuse_if_half_way
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.unit.operations.test_takeover import JOB, PARAMS, workspace
from tests.unit.supervision.test_supervision import GONE

__all__ = ["workspace"]

pytestmark = pytest.mark.unit


def run(place: Workspace, *words: str, code: int = 0) -> str:
    options = ["--profile", "test", "--root", str(place.root)]
    done = CliRunner().invoke(app, ["operations", *words, *options], env={"STREAMWARDEN_CONFIG": str(place.config)})
    assert done.exit_code == code, done.output
    return done.output


def left_half_way(place: Workspace) -> Operation:
    with begin(place, JOB, "rescale", by="me", params=PARAMS) as handle:
        handle.plan(after=InForce())
    found = JobDocuments(place.storage, JOB).operation.read()
    assert found is not None and is_half_way(found)
    return found


def test_a_stuck_rescale_is_ended_and_its_record_kept(workspace: Workspace) -> None:
    left = left_half_way(workspace)
    with pytest.raises(StreamwardenError, match="OPERATION_UNFINISHED"):
        refuse_if_half_way(workspace, JOB)
    assert "Nothing was changed" in run(workspace, "abandon", JOB, code=1)
    said = json.loads(run(workspace, "abandon", JOB, "--yes", "--json"))
    assert said["in_force"]["checkpoint"] == f"checkpoints/{JOB}/g000001"
    assert said["operation"]["error"]["code"] == "OPERATION_ABANDONED"
    documents = JobDocuments(workspace.storage, JOB)
    filed = documents.past_operation(left.id).read()
    assert filed is not None and filed.state == "failed" and filed.plan == left.plan
    desired = documents.desired.read()
    assert desired is not None and desired.takeovers == 1, "who performed it and wakes writes nothing more"
    refuse_if_half_way(workspace, JOB)
    assert left.id in run(workspace, JOB) and left.id in run(workspace, "list", JOB)
    assert "OPERATION_NONE" in run(workspace, "abandon", JOB, "--yes", code=2)


def test_one_whose_process_lives_is_not_ended(workspace: Workspace) -> None:
    with begin(workspace, JOB, "rescale", by="me", params=PARAMS):
        assert "OPERATION_RUNNING" in run(workspace, "abandon", JOB, "--yes", code=2)
        assert "OPERATION_RUNNING" in run(workspace, "abandon", JOB, code=2)
    left = JobDocuments(workspace.storage, JOB).operation
    left.update(lambda now: now.model_copy(update={"process": GONE}))  # type: ignore[union-attr]
    run(workspace, "abandon", JOB, "--yes")
