"""Plan a rescale and check its preconditions, while the job still runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pydantic import ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint_files import OperatorFiles, newest_closure
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Parallelism
from streamwarden.operations.spec_diff import CheckpointFacts, checkpoint_facts
from streamwarden.runtime.operation_lock import refuse_if_busy, refuse_if_half_way
from streamwarden.savepoints.compatibility import job_version, spark_version, stored_backend
from streamwarden.savepoints.history import job_is_on_history
from streamwarden.storage import FileStore, LocalFiles
from streamwarden.store.config import describe_validation
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import FIELDS, effective_spec, parallelism_of, with_parallelism
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Observation, Phase, observe

__all__ = ["SUPPORTED_OPERATORS", "RescalePlan", "current_parallelism", "plan_rescale", "refused_operators"]

SUPPORTED_OPERATORS = frozenset(
    {
        "stateStoreSave",
        "symmetricHashJoin",
        "dedupe",
        "dedupeWithinWatermark",
        "sessionWindowStateStoreSaveExec",
        "flatMapGroupsWithState",
        "applyInPandasWithState",
        "transformWithStateExec",
        "transformWithStateInPandasExec",
        "transformWithStateInPySparkExec",
    }
)
"""The operators that Spark 4.2.0 repartitions, by their names in its checkpoints (``StatefulOperatorsUtils``)."""

_SPARK = (4, 2)
"""The Spark version with tested repartitioning. Repartitioning is private to Spark, and the next version may differ."""


@dataclass(frozen=True)
class RescalePlan:
    """The effect of a rescale.

    Parameters
    ----------
    job
        The job.
    was, to
        The current and the new parallelism.
    written
        The parallelism in the YAML, which the rescale overrides.
    operators
        The job's stateful operators.
    bytes
        Size of the checkpoint's state files; 0 if nothing is copied.
    """

    job: str
    was: Parallelism
    to: Parallelism
    written: Parallelism
    operators: tuple[OperatorFiles, ...] = ()
    bytes: int = 0

    @property
    def repartitions(self) -> bool:
        """Whether the state is repartitioned."""
        return self.was.partitions != self.to.partitions

    @property
    def words(self) -> str:
        """The changes in words: ``partitions 2 -> 8, cores 1 -> 2``."""
        return ", ".join(
            f"{name} {_said(self.was, name)} -> {_said(self.to, name)}"
            for name in FIELDS
            if getattr(self.was, name) != getattr(self.to, name)
        )


def plan_rescale(
    workspace: Workspace,
    job: str,
    *,
    partitions: int | None = None,
    cores: int | None = None,
    executors: int | None = None,
    memory: str | None = None,
    operation: str | None = None,
) -> RescalePlan:
    """Check whether a job can be rescaled, and return the plan. Writes nothing.

    Parameters
    ----------
    partitions, cores, executors, memory
        As for :func:`~streamwarden.operations.rescale.rescale`.
    operation
        The id of the calling operation; any other operation on the job blocks the rescale.

    Raises
    ------
    StreamwardenError
        ``NOT_DEPLOYED``, ``OPERATION_RUNNING``, ``OPERATION_UNFINISHED``, ``RESCALE_NOTHING``, ``RESCALE_INVALID``,
        ``RESCALE_UNSUPPORTED``, ``RESCALE_NOT_HEALTHY``, ``RESCALE_NO_SPACE`` or ``JOB_MODULE_INVALID``.
    """
    seen = observe(workspace, job)
    documents = JobDocuments(workspace.storage, job)
    reference = documents.checkpoint.read()
    if seen.desired is None or reference is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    # Checked first: an operation that stops or starts the job would otherwise be reported as an unhealthy job.
    refuse_if_busy(workspace, job, but=operation)
    refuse_if_half_way(workspace, job, but=operation)
    # The deployed spec, not the YAML: a deploy rolls out the YAML.
    spec = seen.desired.spec
    was, facts = current_parallelism(workspace, job, spec)
    asked = {"partitions": partitions, "cores": cores, "executors": executors, "memory": memory}
    to = was.model_copy(update={name: value for name, value in asked.items() if value is not None})
    _check(spec, to)
    if to == was:
        raise StreamwardenError("RESCALE_NOTHING", f"{job} has {_words(was)} already")
    plan = RescalePlan(job, was, to, parallelism_of(workspace.job(job)))
    _check_yaml(workspace, job, spec, asked=[name for name, value in asked.items() if value is not None])
    _check_code(job, spec, facts)
    _check_health(job, seen)
    if not plan.repartitions:
        # Checks that a savepoint is possible: an obstacle must be found while the job runs.
        newest_closure(workspace.files, workspace.storage, reference.path)
        return plan
    if job_is_on_history(workspace, spec):
        remedy = f"Rescale it afterwards: `streamwarden status {job}` shows how much of the history is left."
        raise StreamwardenError("RESCALE_NOT_HEALTHY", f"{job}: it is still reading its history", remedy=remedy)
    if facts is None or facts.partitions is None:
        why = "it has no state" if facts is not None else "it has committed no batch yet"
        raise StreamwardenError("RESCALE_UNSUPPORTED", f"{job}: partitions are of state, and {why}")
    if stored_backend(facts.settings) != "rocksdb":
        raise StreamwardenError("RESCALE_UNSUPPORTED", f"{job}: its state backend is not rocksdb")
    _check_spark(job, facts.versions.get("spark"))
    newest = newest_closure(workspace.files, workspace.storage, reference.path)
    if newest is None:
        raise StreamwardenError("RESCALE_UNSUPPORTED", f"{job}: it has committed no batch yet")
    operators = newest.operators
    refused = refused_operators(operators)
    if refused:
        raise StreamwardenError("RESCALE_UNSUPPORTED", f"{job}: {', '.join(refused)}")
    size = sum(one.bytes for one in operators)
    _check_space(workspace, job, size)
    return replace(plan, operators=tuple(operators), bytes=size)


def refused_operators(operators: Iterable[OperatorFiles]) -> list[str]:
    """Return, in words, which of a job's operators cannot be repartitioned, and why."""
    refused = []
    for one in operators:
        if one.name not in SUPPORTED_OPERATORS:
            refused.append(f"operator {one.id} is {one.name}")
        elif one.single:
            refused.append(f"operator {one.id} ({one.name}) keeps its state in one partition")
        elif one.name == "symmetricHashJoin" and one.stores == ["default"]:
            # Spark 4.2.0 omits a column when it reads this state: no proof of equal state would be possible.
            refused.append(f"operator {one.id} is a join with state of format 3")
    return refused


def current_parallelism(workspace: Workspace, job: str, spec: JobSpec) -> tuple[Parallelism, CheckpointFacts | None]:
    """Return a job's current parallelism: from its spec, but with the checkpoint's number of partitions.

    Parameters
    ----------
    spec
        The deployed spec.

    Returns
    -------
    tuple
        The parallelism, and the facts of the checkpoint; None if no batch was begun on it.
    """
    parallelism = parallelism_of(spec)
    facts = checkpoint_facts(workspace, job, spec)
    if facts is not None and facts.partitions is not None:
        parallelism = parallelism.model_copy(update={"partitions": facts.partitions})
    return parallelism, facts


def _check(spec: JobSpec, to: Parallelism) -> None:
    try:
        JobSpec.model_validate(with_parallelism(spec, to).model_dump(mode="json"))
    except ValidationError as error:
        raise StreamwardenError("RESCALE_INVALID", f"{spec.name}: {describe_validation(error)}") from error


def _check_yaml(workspace: Workspace, job: str, spec: JobSpec, *, asked: Iterable[str]) -> None:
    """Refuse a job whose YAML has undeployed changes: the spec of the rescaled driver would be ambiguous.

    The requested fields may differ from the YAML: they replace its values. Other changed numbers would be lost.
    """
    wanted, runs = effective_spec(workspace, job), parallelism_of(spec)
    as_asked = parallelism_of(wanted).model_copy(update={name: getattr(runs, name) for name in asked})
    if with_parallelism(wanted, as_asked) != spec:
        raise StreamwardenError(
            "RESCALE_NOT_HEALTHY",
            f"{job}: its YAML has changed since it was deployed",
            remedy=f"Deploy it first: `streamwarden diff {job}` shows what changes.",
        )


def _check_code(job: str, spec: JobSpec, facts: CheckpointFacts | None) -> None:
    """Refuse a job whose module has a new VERSION: the new driver would run the new module on the old state."""
    if facts is None or facts.partitions is None:
        return
    before, now = facts.versions.get("job"), job_version(spec.module)
    if before is not None and now is not None and before != str(now):
        raise StreamwardenError(
            "RESCALE_NOT_HEALTHY",
            f"{job}: {spec.module} is version {now}, and {before} wrote the state",
            remedy=f"Bring back version {before}: `streamwarden diff {job}` says what stands against the other one.",
        )


def _check_health(job: str, seen: Observation) -> None:
    if seen.phase in (Phase.STOPPED, Phase.NOT_DEPLOYED) or (seen.desired and seen.desired.state == "suspended"):
        # Without a driver there is no health to check: only the parallelism changes.
        return
    if seen.phase not in (Phase.RUNNING, Phase.RETRYING):
        raise StreamwardenError("RESCALE_NOT_HEALTHY", f"{job} is {seen.phase}: {seen.reason}")
    # A rescale is meant for jobs that are behind, slow or large, and not for jobs with failing batches.
    if seen.heartbeat is not None and seen.heartbeat.failures:
        tries = seen.heartbeat.failures
        raise StreamwardenError("RESCALE_NOT_HEALTHY", f"{job}: {tries} failed tries: {seen.reason}")


def _check_space(workspace: Workspace, job: str, size: int) -> None:
    """Refuse state that does not fit into the checkpoint storage, or on the local disk of the driver."""
    # The repartitioned state is written in full; its source is linked or, on another file system, copied. Meanwhile
    # Spark has both on the local disk, also with checkpoints in a bucket, which has no size limit.
    kept, scratch = workspace.files, LocalFiles(workspace.scratch)
    places: list[tuple[str, FileStore, int]] = [
        ("where checkpoints are kept", kept, 2),
        (f"in {workspace.scratch}", scratch, 2),
    ]
    if kept.device() == scratch.device():
        places = [(f"where checkpoints are kept and in {workspace.scratch}, which is one disk", scratch, 4)]
    for where, files, times in places:
        free = files.free_bytes()
        if free is not None and free < times * size:
            what = f"{job}: {free} bytes are free {where}, and {times} times {size} are needed"
            raise StreamwardenError("RESCALE_NO_SPACE", what)


def _check_spark(job: str, written: str | None) -> None:
    here = spark_version()
    if tuple(int(part) for part in here.split(".")[:2]) != _SPARK:
        raise StreamwardenError("RESCALE_UNSUPPORTED", f"{job}: Spark {here}, tested with {_SPARK[0]}.{_SPARK[1]}")
    if written is not None and written != here:
        raise StreamwardenError("RESCALE_UNSUPPORTED", f"{job}: Spark {written} wrote the checkpoint, this is {here}")


def _words(parallelism: Parallelism) -> str:
    return ", ".join(f"{name} {value}" for name in FIELDS if (value := getattr(parallelism, name)) is not None)


def _said(parallelism: Parallelism, name: str) -> object:
    value = getattr(parallelism, name)
    return "any" if value is None else value
