"""Parallelism decided by a rescale, which overrides the job's YAML.

The YAML has a job's initial numbers. A rescale writes its own to ``control/JOB/parallelism.json``, each beside the
YAML's number that it replaced. A number counts while the YAML still has the replaced one. An edit of the YAML that is
deployed later wins.
"""

from __future__ import annotations

from typing import Any

from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Parallelism, ParallelismOverride
from streamwarden.store.documents import JobDocuments
from streamwarden.store.row_rules import with_kept_quarantine
from streamwarden.store.workspace import Workspace

__all__ = ["FIELDS", "as_before", "decide", "effective_spec", "forget_overruled", "parallelism_of", "with_parallelism"]

FIELDS = {
    "partitions": "state.partitions",
    "cores": "resources.cores",
    "executors": "resources.executors",
    "memory": "resources.memory",
}
"""The values that a rescale can change, with the spec's fields."""


def parallelism_of(spec: JobSpec) -> Parallelism:
    """Return a spec's parallelism."""
    resources = spec.resources
    return Parallelism(
        partitions=spec.state.partitions,
        cores=resources.cores,
        executors=resources.executors,
        memory=resources.memory,
    )


def with_parallelism(spec: JobSpec, parallelism: Parallelism) -> JobSpec:
    """Return a spec with another parallelism."""
    return spec.model_copy(
        update={
            "state": spec.state.model_copy(update={"partitions": parallelism.partitions}),
            "resources": spec.resources.model_copy(
                update={name: getattr(parallelism, name) for name in ("cores", "executors", "memory")}
            ),
        }
    )


def effective_spec(workspace: Workspace, job: str) -> JobSpec:
    """Return a job's spec: its YAML with the profile's overrides and the decisions of a rescale.

    Quarantine tables of the deployed spec stay in it, also without a rule; see
    :func:`~streamwarden.store.row_rules.with_kept_quarantine`.

    Raises
    ------
    StreamwardenError
        ``JOB_UNKNOWN`` or ``CONFIG_INVALID``.
    """
    spec, documents = workspace.job(job), JobDocuments(workspace.storage, job)
    deployed, found = documents.desired.read(), documents.parallelism.read()
    if deployed is not None:
        spec = with_kept_quarantine(spec, deployed.spec)
    return spec if found is None else with_parallelism(spec, _in_force(found, parallelism_of(spec)))


def forget_overruled(workspace: Workspace, job: str, written: Parallelism) -> None:
    """Remove decisions of a rescale whose numbers were deployed otherwise since.

    Otherwise they would count again if the YAML returned to the old number.

    Parameters
    ----------
    written
        The YAML's parallelism at the deployment. A rollout takes minutes, so the YAML may have changed since.
    """
    document = JobDocuments(workspace.storage, job).parallelism
    found = document.read()
    if found is None or found.over == written:
        return

    def change(now: ParallelismOverride | None) -> ParallelismOverride:
        assert now is not None
        return now.model_copy(update={"now": _in_force(now, written), "over": written})

    document.update(change)


def _in_force(found: ParallelismOverride, written: Parallelism) -> Parallelism:
    values: dict[str, Any] = {
        name: getattr(found.now if getattr(found.over, name) == getattr(written, name) else written, name)
        for name in FIELDS
    }
    return Parallelism(**values)


def as_before(
    workspace: Workspace, job: str, kept: ParallelismOverride | None, *, by: str
) -> ParallelismOverride | None:
    """Return the document that restores an earlier state; does not write it.

    Parameters
    ----------
    kept
        The earlier state; None if there was no document.

    Returns
    -------
    ParallelismOverride or None
        None if there is nothing to write.
    """
    if kept is not None:
        return kept
    found = JobDocuments(workspace.storage, job).parallelism.read()
    # Equal numbers override nothing. The YAML is not read again: an error there must not block a rollback.
    return ParallelismOverride(now=found.over, over=found.over, by=by) if found is not None else None


def decide(workspace: Workspace, job: str, parallelism: Parallelism, *, by: str) -> ParallelismOverride:
    """Return the document that lets a parallelism override the YAML's current one; does not write it."""
    return ParallelismOverride(now=parallelism, over=parallelism_of(workspace.job(job)), by=by)
