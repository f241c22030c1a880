"""What a rescale would do, and everything that stands against it: asked while the job still runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version

from pydantic import ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint_files import OperatorFiles, newest_closure
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Width
from streamwarden.operations.spec_diff import CheckpointFacts, checkpoint_facts
from streamwarden.runtime.operation_lock import refuse_if_busy, refuse_if_half_way
from streamwarden.savepoints.compatibility import job_version, stored_backend
from streamwarden.storage import FileStore, LocalFiles
from streamwarden.store.config import describe_validation
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import FIELDS, effective_spec, widened, width_of
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Observation, Phase, observe

__all__ = ["SUPPORTED_OPERATORS", "RescalePlan", "current_width", "plan_rescale", "refused_operators"]

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
"""What Spark 4.2.0 repartitions, by the names that its checkpoints give them (``StatefulOperatorsUtils``)."""

_SPARK = (4, 2)
"""The version whose way of repartitioning was tested. It is private to Spark, and may be another in the next one."""


@dataclass(frozen=True)
class RescalePlan:
    """What a rescale would do.

    Parameters
    ----------
    job
        The job.
    was, to
        How wide it runs, and how wide it shall.
    written
        What the YAML says, over which a rescale decides.
    operators
        Its stateful operators.
    bytes
        Size of the checkpoint's state files; 0 where nothing is copied.
    """

    job: str
    was: Width
    to: Width
    written: Width
    operators: tuple[OperatorFiles, ...] = ()
    bytes: int = 0

    @property
    def repartitions(self) -> bool:
        """Whether the state is spread anew."""
        return self.was.partitions != self.to.partitions

    @property
    def words(self) -> str:
        """What changes: ``partitions 2 -> 8, cores 1 -> 2``."""
        return ", ".join(
            f"{name} {getattr(self.was, name)} -> {getattr(self.to, name)}"
            for name in FIELDS
            if getattr(self.was, name) != getattr(self.to, name)
        )


def plan_rescale(
    workspace: Workspace,
    job: str,
    *,
    partitions: int | None = None,
    cores: int | None = None,
    memory: str | None = None,
    operation: str | None = None,
) -> RescalePlan:
    """Look whether a job can be rescaled, and to what. Writes nothing.

    Parameters
    ----------
    partitions, cores, memory
        As for :func:`~streamwarden.operations.rescale.rescale`.
    operation
        The operation that asks; any other that works on the job stands against a rescale.

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
    # First: what stops the job or starts it otherwise would be told as a job that is not healthy.
    refuse_if_busy(workspace, job, but=operation)
    refuse_if_half_way(workspace, job, but=operation)
    # What runs, and not what the YAML says: that is rolled out by a deploy.
    spec = seen.desired.spec
    was, facts = current_width(workspace, job, spec)
    asked = {"partitions": partitions, "cores": cores, "memory": memory}
    to = was.model_copy(update={name: value for name, value in asked.items() if value is not None})
    _check(spec, to)
    if to == was:
        raise StreamwardenError("RESCALE_NOTHING", f"{job} has {_words(was)} already")
    plan = RescalePlan(job, was, to, width_of(workspace.job(job)))
    _check_yaml(workspace, job, spec, asked=[name for name, value in asked.items() if value is not None])
    _check_code(job, spec, facts)
    _check_health(job, seen)
    if not plan.repartitions:
        # For its savepoint: what stands against that is to be found while the job runs.
        newest_closure(workspace.files, workspace.storage, reference.path)
        return plan
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
    """Return, in words, which of a job's operators can't have another number of partitions, and why."""
    refused = []
    for one in operators:
        if one.name not in SUPPORTED_OPERATORS:
            refused.append(f"operator {one.id} is {one.name}")
        elif one.single:
            refused.append(f"operator {one.id} ({one.name}) keeps its state in one partition")
        elif one.name == "symmetricHashJoin" and one.stores == ["default"]:
            # Spark 4.2.0 reads it with a column less than there is: nothing could prove that it stayed the same.
            refused.append(f"operator {one.id} is a join with state of format 3")
    return refused


def current_width(workspace: Workspace, job: str, spec: JobSpec) -> tuple[Width, CheckpointFacts | None]:
    """Return how wide a job runs: as its spec says, but with the partitions that its checkpoint has.

    Parameters
    ----------
    spec
        The deployed one.

    Returns
    -------
    tuple
        The width, and what the checkpoint was written by; None where no batch was begun on it.
    """
    width = width_of(spec)
    facts = checkpoint_facts(workspace, job, spec)
    if facts is not None and facts.partitions is not None:
        width = width.model_copy(update={"partitions": facts.partitions})
    return width, facts


def _check(spec: JobSpec, to: Width) -> None:
    try:
        JobSpec.model_validate(widened(spec, to).model_dump(mode="json"))
    except ValidationError as error:
        raise StreamwardenError("RESCALE_INVALID", f"{spec.name}: {describe_validation(error)}") from error


def _check_yaml(workspace: Workspace, job: str, spec: JobSpec, *, asked: Iterable[str]) -> None:
    """Refuse a job whose YAML waits to be rolled out: the rescaled driver would not know which of both it runs.

    What is asked for replaces what the YAML says, whatever that is. Its other numbers would be lost with it.
    """
    wanted, runs = effective_spec(workspace, job), width_of(spec)
    as_asked = width_of(wanted).model_copy(update={name: getattr(runs, name) for name in asked})
    if widened(wanted, as_asked) != spec:
        raise StreamwardenError(
            "RESCALE_NOT_HEALTHY",
            f"{job}: its YAML has changed since it was deployed",
            remedy=f"Deploy it first: `streamwarden diff {job}` shows what changes.",
        )


def _check_code(job: str, spec: JobSpec, facts: CheckpointFacts | None) -> None:
    """Refuse a job whose module has another VERSION by now: the new driver would run that on the old one's state."""
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
        # It has nothing to be healthy with, and is only made wider.
        return
    if seen.phase not in (Phase.RUNNING, Phase.RETRYING):
        raise StreamwardenError("RESCALE_NOT_HEALTHY", f"{job} is {seen.phase}: {seen.reason}")
    # Behind, slow or large is what a rescale is for; a batch that fails is not.
    if seen.heartbeat is not None and seen.heartbeat.failures:
        tries = seen.heartbeat.failures
        raise StreamwardenError("RESCALE_NOT_HEALTHY", f"{job}: {tries} failed tries: {seen.reason}")


def _check_space(workspace: Workspace, job: str, size: int) -> None:
    """Refuse state for which there is no room where it is kept, or on the disk where a driver works on it."""
    # The repartitioned state is written anew; what it is made of is linked or, on another file system, copied. Spark
    # has both of them on the local disk meanwhile, also where they are kept in a bucket, which has no size.
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
    here = version("pyspark")
    if tuple(int(part) for part in here.split(".")[:2]) != _SPARK:
        raise StreamwardenError("RESCALE_UNSUPPORTED", f"{job}: Spark {here}, tested with {_SPARK[0]}.{_SPARK[1]}")
    if written is not None and written != here:
        raise StreamwardenError("RESCALE_UNSUPPORTED", f"{job}: Spark {written} wrote the checkpoint, this is {here}")


def _words(width: Width) -> str:
    return ", ".join(f"{name} {getattr(width, name)}" for name in FIELDS)
