"""How a rescale's numbers and the YAML's get along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.model.status import Parallelism, ParallelismOverride
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import as_before, decide, effective_spec, forget_overruled, parallelism_of
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit

JOB = "lamp"


def write(workspace: Workspace, **values: Any) -> None:
    fields = {
        "name": JOB,
        "module": "spark_jobs.none",
        "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": JOB, "mode": "append"}],
    }
    (workspace.config / "jobs" / f"{JOB}.yaml").write_text(yaml.safe_dump({**fields, **values}))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    config = tmp_path / "config"
    (config / "jobs").mkdir(parents=True)
    (config / "profiles").mkdir()
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    found = open_workspace("test", config=config)
    write(found, state={"partitions": 2}, resources={"cores": 1, "memory": "1g"})
    return found


def parallelism(workspace: Workspace) -> tuple[int, int, str]:
    found = parallelism_of(effective_spec(workspace, JOB))
    return found.partitions, found.cores, found.memory


def rescaled(workspace: Workspace, partitions: int, cores: int) -> None:
    decided = decide(workspace, JOB, Parallelism(partitions=partitions, cores=cores, memory="1g"), by="test")
    JobDocuments(workspace.storage, JOB).parallelism.write(decided)


def put_back(workspace: Workspace, kept: ParallelismOverride | None, *, by: str) -> None:
    found = as_before(workspace, JOB, kept, by=by)
    if found is not None:
        JobDocuments(workspace.storage, JOB).parallelism.write(found)


def test_without_a_rescale_the_yaml_counts(workspace: Workspace) -> None:
    assert parallelism(workspace) == (2, 1, "1g")


def test_a_rescale_counts_over_the_yaml_until_the_same_field_changes_there(workspace: Workspace) -> None:
    rescaled(workspace, 8, 2)
    assert parallelism(workspace) == (8, 2, "1g")
    write(workspace, state={"partitions": 2}, resources={"cores": 4, "memory": "2g"})
    assert parallelism(workspace) == (8, 4, "2g"), "cores were edited, partitions were not"
    write(workspace, state={"partitions": 3}, resources={"cores": 1, "memory": "1g"})
    assert parallelism(workspace) == (3, 2, "1g")


def test_what_was_deployed_over_it_is_not_undone_by_the_old_number(workspace: Workspace) -> None:
    rescaled(workspace, 8, 2)
    forget_overruled(workspace, JOB, parallelism_of(workspace.job(JOB)))
    assert parallelism(workspace) == (8, 2, "1g"), "the YAML says what it said"
    write(workspace, state={"partitions": 2}, resources={"cores": 4, "memory": "1g"})
    deployed = parallelism_of(workspace.job(JOB))
    # Edited while the rollout waited for health, and deployed by nobody.
    write(workspace, state={"partitions": 6}, resources={"cores": 4, "memory": "1g"})
    forget_overruled(workspace, JOB, deployed)
    write(workspace, state={"partitions": 2}, resources={"cores": 4, "memory": "1g"})
    assert parallelism(workspace) == (8, 4, "1g")
    write(workspace, state={"partitions": 2}, resources={"cores": 1, "memory": "1g"})
    assert parallelism(workspace) == (8, 1, "1g"), "not two cores, as the rescale had it"


def test_it_is_put_back_to_what_it_was(workspace: Workspace) -> None:
    document = JobDocuments(workspace.storage, JOB).parallelism
    rescaled(workspace, 8, 2)
    put_back(workspace, None, by="test")
    assert parallelism(workspace) == (2, 1, "1g"), "there was none"
    rescaled(workspace, 8, 2)
    kept = document.read()
    assert kept is not None
    rescaled(workspace, 3, 1)
    put_back(workspace, kept, by="test")
    assert parallelism(workspace) == (8, 2, "1g")
