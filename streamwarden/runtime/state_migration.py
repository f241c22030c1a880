"""Make a checkpoint from the state of a job's earlier version, with Spark, in a separate process."""

from __future__ import annotations

from collections.abc import Callable

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.runtime.state_reader import StateAt, spark_answers
from streamwarden.store.workspace import Workspace

__all__ = ["migrate_state"]

_CODE: ErrorCode = "MIGRATION_FAILED"


def migrate_state(
    workspace: Workspace, spec: JobSpec, old: StateAt, version: int, path: str, *, heed: Callable[[], object]
) -> int:
    """Have the job's module migrate a state.

    Parameters
    ----------
    spec
        The job's new spec.
    old
        The old state.
    version
        The ``VERSION`` of the module that wrote it.
    path
        Where to make the checkpoint, relative to the storage's root. It gets one batch, 0, without input.
    heed
        Called about every second; may raise, which ends it.

    Returns
    -------
    int
        The number of rows that the module has read out.

    Raises
    ------
    StreamwardenError
        ``MIGRATION_FAILED``.
    """
    arguments = ["--spec", spec.model_dump_json(), "--old", old.checkpoint, "--batch", str(old.batch)]
    arguments += ["--version", str(version), "--new", path]
    (answer,) = spark_answers(
        workspace, "streamwarden.driver.state_migration", arguments, number=1, code=_CODE, heed=heed
    )
    if "error" in answer:
        raise StreamwardenError(_CODE, f"{spec.name}: {answer['error']}")
    return int(answer["rows"])
