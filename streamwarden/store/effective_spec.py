"""Parallelism decided by a rescale, which overrides the job's YAML.

The YAML has a job's initial numbers. A rescale writes its own to ``control/JOB/parallelism.json``, each beside the
YAML's number that it replaced. A number counts while the YAML still has the replaced one. An edit of the YAML that is
deployed later wins.
"""

from __future__ import annotations

from typing import Any

from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Parallelism, Width
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["FIELDS", "as_before", "decide", "effective_spec", "forget_overruled", "widened", "width_of"]

FIELDS = {"partitions": "state.partitions", "cores": "resources.cores", "memory": "resources.memory"}
"""The values that a rescale can change, with the spec's fields."""


def width_of(spec: JobSpec) -> Width:
    """Return a spec's width."""
    return Width(partitions=spec.state.partitions, cores=spec.resources.cores, memory=spec.resources.memory)


def widened(spec: JobSpec, width: Width) -> JobSpec:
    """Return a spec with another width."""
    return spec.model_copy(
        update={
            "state": spec.state.model_copy(update={"partitions": width.partitions}),
            "resources": spec.resources.model_copy(update={"cores": width.cores, "memory": width.memory}),
        }
    )


def effective_spec(workspace: Workspace, job: str) -> JobSpec:
    """Return a job's spec: its YAML with the profile's overrides and the decisions of a rescale.

    Raises
    ------
    StreamwardenError
        ``JOB_UNKNOWN`` or ``CONFIG_INVALID``.
    """
    spec = workspace.job(job)
    found = JobDocuments(workspace.storage, job).parallelism.read()
    return spec if found is None else widened(spec, _in_force(found, width_of(spec)))


def forget_overruled(workspace: Workspace, job: str, written: Width) -> None:
    """Remove decisions of a rescale whose numbers were deployed otherwise since.

    Otherwise they would count again if the YAML returned to the old number.

    Parameters
    ----------
    written
        The YAML's width at the deployment. A rollout takes minutes, so the YAML may have changed since.
    """
    document = JobDocuments(workspace.storage, job).parallelism
    found = document.read()
    if found is None or found.over == written:
        return

    def change(now: Parallelism | None) -> Parallelism:
        assert now is not None
        return now.model_copy(update={"now": _in_force(now, written), "over": written})

    document.update(change)


def _in_force(found: Parallelism, written: Width) -> Width:
    values: dict[str, Any] = {
        name: getattr(found.now if getattr(found.over, name) == getattr(written, name) else written, name)
        for name in FIELDS
    }
    return Width(**values)


def as_before(workspace: Workspace, job: str, kept: Parallelism | None, *, by: str) -> Parallelism | None:
    """Return the document that restores an earlier state; does not write it.

    Parameters
    ----------
    kept
        The earlier state; None if there was no document.

    Returns
    -------
    Parallelism or None
        None if there is nothing to write.
    """
    if kept is not None:
        return kept
    found = JobDocuments(workspace.storage, job).parallelism.read()
    # Equal numbers override nothing. The YAML is not read again: an error there must not block a rollback.
    return Parallelism(now=found.over, over=found.over, by=by) if found is not None else None


def decide(workspace: Workspace, job: str, width: Width, *, by: str) -> Parallelism:
    """Return the document that lets a width override the YAML's current one; does not write it."""
    return Parallelism(now=width, over=width_of(workspace.job(job)), by=by)
