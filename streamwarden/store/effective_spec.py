"""How wide a job runs, where a rescale has decided that: values that stand above those of its YAML.

The YAML's numbers are what a job begins with. A rescale keeps its own in ``control/JOB/parallelism.json``, each beside
the YAML's number that it replaced. It counts for as long as the YAML says that number still: who edits the YAML
afterwards, and deploys that, has the last word.
"""

from __future__ import annotations

from typing import Any

from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Parallelism, Width
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["FIELDS", "as_before", "decide", "effective_spec", "forget_overruled", "widened", "width_of"]

FIELDS = {"partitions": "state.partitions", "cores": "resources.cores", "memory": "resources.memory"}
"""What a rescale can change, with the spec's fields."""


def width_of(spec: JobSpec) -> Width:
    """Return how wide a spec says that its job runs."""
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
    """Return a job's spec: its YAML with the profile's overrides, and with what a rescale has decided.

    Raises
    ------
    StreamwardenError
        ``JOB_UNKNOWN`` or ``CONFIG_INVALID``.
    """
    spec = workspace.job(job)
    found = JobDocuments(workspace.storage, job).parallelism.read()
    return spec if found is None else widened(spec, _in_force(found, width_of(spec)))


def forget_overruled(workspace: Workspace, job: str, written: Width) -> None:
    """Forget what a rescale decided over numbers of the YAML that were deployed otherwise since.

    Otherwise it would count again, should the YAML say the old number once more.

    Parameters
    ----------
    written
        What the YAML said when it was deployed: a rollout takes minutes, and it may say something else by now.
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


def as_before(workspace: Workspace, job: str, kept: dict[str, Any] | None, *, by: str) -> Parallelism | None:
    """Return the document that puts it back to what it was, as JSON values; does not write it.

    Parameters
    ----------
    kept
        What it was; None: there was none.

    Returns
    -------
    Parallelism or None
        None where there is nothing to write.
    """
    if kept is not None:
        return Parallelism.model_validate(kept)
    found = JobDocuments(workspace.storage, job).parallelism.read()
    # Over the YAML's own numbers it says nothing. Not read again: a slip there must not hold up a way back.
    return Parallelism(now=found.over, over=found.over, by=by) if found is not None else None


def decide(workspace: Workspace, job: str, width: Width, *, by: str) -> Parallelism:
    """Return the document that makes a width count over what the YAML says now; does not write it."""
    return Parallelism(now=width, over=width_of(workspace.job(job)), by=by)
