"""Advice on a job: collect its batches, state and history, apply the rule, and check whether it may be acted upon."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from streamwarden.autoscaler.ds2 import Recommendation, StateShare, recommend
from streamwarden.autoscaler.load import BatchSeen
from streamwarden.errors import OUTAGES, StreamwardenError
from streamwarden.formats.checkpoint_files import newest_closure
from streamwarden.model.advisor_spec import AdvisorSpec
from streamwarden.model.durations import format_duration
from streamwarden.model.operation import Operation, StepName
from streamwarden.model.progress import BatchProgress
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.operations.rescale_plan import current_parallelism, plan_rescale
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.store.documents import JobDocuments, dump
from streamwarden.store.effective_spec import parallelism_of
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Observation, observe

__all__ = ["Advice", "advise", "batches_seen", "holds_back"]

_MORE_BATCHES = 50
"""Batches read beyond the window: if it had little load, they give the cost of a batch."""

_DAY = timedelta(days=1)

_FIRST_LOOK = StepName.PRECHECK

_AWAY = frozenset({StepName.STOP, StepName.SWITCH})
"""Steps of a rescale during which the job is down."""

_CANCELLED = "OPERATION_CANCELLED"

_SAYS_NOTHING = OUTAGES | {_CANCELLED, "OPERATION_INTERRUPTED", "RESCALE_NOT_HEALTHY"}
"""Error codes that end a rescale and say nothing of its target: an unreachable store, a cancellation, or a running
driver that ended or was within a batch."""

_LAUNCHES = 20
"""Launches searched for the last change of the job's parallelism."""


@dataclass(frozen=True)
class Advice:
    """A recommendation for a job, and the reasons against applying it automatically.

    Parameters
    ----------
    job, at
        The job, and the time.
    recommendation
        The recommended parallelism, and the reasons.
    holds
        Reasons against applying it automatically; empty: apply it.
    """

    job: str
    at: datetime
    recommendation: Recommendation
    holds: tuple[str, ...] = ()

    @property
    def acts(self) -> bool:
        """Whether to trigger the rescale now."""
        return bool(self.recommendation.changes) and not self.holds

    @property
    def change(self) -> str:
        """The recommended change in words; empty for none."""
        said = self.recommendation
        return ", ".join(f"{name} {getattr(said.now, name)} -> {value}" for name, value in said.changes.items())

    def lines(self) -> list[tuple[str, str]]:
        """Return the advice for a terminal or a log: pairs of topic and text."""
        said = self.recommendation
        found = [
            (
                "recommended",
                self.change
                or f"no change of the parallelism: partitions {said.now.partitions}, cores {said.now.cores}",
            )
        ]
        found += [("reason", line) for line in said.why]
        if said.changes:
            found.append(("automatic", f"no: {'; '.join(self.holds)}" if self.holds else "yes"))
        figures = {
            "input": (said.rows_per_second, "{:,.0f} rows/s"),
            "capacity": (said.capacity, "{:,.0f} rows/s in batches as long as the interval"),
            "busy": (said.busy, "{:.0%} of advisor.window"),
            "backlog": (said.backlog_rows, "{:,.0f} rows"),
        }
        found += [(name, text.format(value)) for name, (value, text) in figures.items() if value is not None]
        if said.expected_busy is not None:
            now, then = said.expected_busy
            found.append(("a batch", f"takes {now:.0%} of the interval now, {then:.0%} as recommended"))
        return [*found, ("state skew", f"largest partition {said.skew:.1f} times the mean")]

    def as_json(self) -> dict[str, Any]:
        """Return the advice as plain JSON values."""
        said = self.recommendation
        return {
            "job": self.job,
            "at": self.at.isoformat(),
            **{**asdict(said), "now": dump(said.now), "to": dump(said.to), "why": list(said.why)},
            "changes": said.changes,
            "holds": list(self.holds),
            "acts": self.acts,
        }


def advise(workspace: Workspace, job: str, *, now: datetime | None = None) -> Advice:
    """Recommend a job's parallelism. Changes nothing.

    Reads the table of batches if the profile has one, else the driver's progress document, which holds 50.

    Parameters
    ----------
    now
        The time; default the real one.

    Raises
    ------
    StreamwardenError
        ``NOT_DEPLOYED``, ``PROGRESS_TABLE_FAILED`` or ``CHECKPOINT_DAMAGED``.
    """
    at = now or utc_now()
    seen = observe(workspace, job)
    if seen.desired is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    spec = seen.desired.spec
    parallelism, facts = current_parallelism(workspace, job, spec)
    if not seen.phase.alive:
        why = f"{job} is {seen.phase}: there is no load to measure"
        return Advice(job, at, Recommendation(parallelism, parallelism, (why,)))
    stateful = facts is not None and facts.partitions is not None
    said = recommend(
        batches_seen(workspace, job, spec, seen, now=at),
        at,
        parallelism,
        _since(workspace, job, spec, at),
        spec.trigger.interval,
        _limits(spec),
        _state(workspace, job, parallelism.partitions) if stateful else None,
        idle=seen.heartbeat is not None and seen.heartbeat.idle,
    )
    most = _limits(spec).max_partitions
    if said.to.partitions == most < spec.advisor.max_partitions:
        said = replace(said, why=(*said.why, f"{spec.state.buckets} buckets allow {most} partitions (state.buckets)"))
    return Advice(job, at, said, holds_back(workspace, job, said.changes, now=at) if said.changes else ())


def holds_back(
    workspace: Workspace, job: str, changes: Mapping[str, int], *, now: datetime | None = None
) -> tuple[str, ...]:
    """Return the reasons against an automatic rescale; none: it may start.

    Call it for the recommendation, and again when the rescale starts: hours may lie between.

    Parameters
    ----------
    changes
        The recommended partitions and cores, by name.
    now
        The time; default the real one.

    Raises
    ------
    StreamwardenError
        ``NOT_DEPLOYED``.
    """
    desired = JobDocuments(workspace.storage, job).desired.read()
    if desired is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    return tuple(_holds(workspace, job, desired.spec.advisor, changes, now or utc_now()))


def batches_seen(
    workspace: Workspace, job: str, spec: JobSpec, seen: Observation, *, now: datetime | None = None
) -> list[BatchSeen]:
    """Return a job's batches for the advisor, oldest first: those in its window, and some earlier ones.

    Parameters
    ----------
    spec
        The spec in force.
    seen
        The observed job: its progress document has batches that are not in the table yet.
    now
        The time; default the real one.

    Raises
    ------
    StreamwardenError
        ``PROGRESS_TABLE_FAILED``.
    """
    looked_at = spec.advisor.down_after + spec.advisor.window
    found: dict[tuple[str, int], BatchSeen] = {}
    if workspace.profile.progress_table.enabled:
        # Imported here, because the import takes a good part of a second.
        from streamwarden.formats.progress_table import ProgressTable

        last = math.ceil(looked_at / spec.trigger.interval) + _MORE_BATCHES
        try:
            # An interval may have several batches during catch-up, or a batch may take longer than the interval.
            rows = ProgressTable(workspace).read(job, last, since=(now or utc_now()) - looked_at)
        except StreamwardenError as error:
            if error.code != "PROGRESS_TABLE_MISSING":
                raise
            rows = []
        for row in rows:
            found[row["incarnation"], row["batch"]] = BatchSeen(
                incarnation=row["incarnation"],
                at=row["at"],
                seconds=row["duration_ms"] / 1000,
                fixed_seconds=row["checkpoint_ms"] / 1000,
                rows=row["rows_in"],
                taken=row["source_taken"],
                pending=row["source_pending"],
            )
    if seen.progress is not None:
        # Batches that the driver has not written to the table yet.
        for done in seen.progress.recent:
            found.setdefault((seen.progress.incarnation, done.batch), _seen(seen.progress.incarnation, done))
    return sorted(found.values(), key=lambda one: one.at)


def _limits(spec: JobSpec) -> AdvisorSpec:
    """Return a job's limits: keyed state allows at most an eighth as many partitions as it has buckets."""
    if spec.state.buckets is None:
        return spec.advisor
    most = min(spec.advisor.max_partitions, spec.state.buckets // 8)
    least = min(spec.advisor.min_partitions, most)
    return spec.advisor.model_copy(update={"max_partitions": most, "min_partitions": least})


def _seen(incarnation: str, done: BatchProgress) -> BatchSeen:
    return BatchSeen(
        incarnation=incarnation,
        at=done.at,
        seconds=done.duration_ms / 1000,
        fixed_seconds=done.checkpoint_ms / 1000,
        rows=done.rows_in,
        taken=done.source.taken if done.source else None,
        pending=done.source.pending if done.source else None,
    )


def _since(workspace: Workspace, job: str, spec: JobSpec, now: datetime) -> datetime:
    """Return since when the job has had its current parallelism."""
    documents = JobDocuments(workspace.storage, job)
    since = now
    for incarnation in documents.incarnations()[: -_LAUNCHES - 1 : -1]:
        launch = documents.launch(incarnation).read()
        if launch is None or launch.spec is None or parallelism_of(launch.spec) != parallelism_of(spec):
            break
        since = launch.at
    return since


def _state(workspace: Workspace, job: str, partitions: int) -> StateShare:
    reference = JobDocuments(workspace.storage, job).checkpoint.read()
    found = newest_closure(workspace.files, workspace.storage, reference.path) if reference is not None else None
    sizes = [0] * partitions
    for path, size in found.files.items() if found is not None else ():
        parts = path.split("/")
        # state/OPERATOR/PARTITION/...; an operator's metadata lies beside its partitions.
        if parts[0] == "state" and parts[2].isdigit() and int(parts[2]) < partitions:
            sizes[int(parts[2])] += size
    return StateShare(tuple(sizes))


def _holds(
    workspace: Workspace, job: str, settings: AdvisorSpec, changes: Mapping[str, int], now: datetime
) -> Iterator[str]:
    if not settings.apply:
        yield "advisor.apply is off in the job's YAML"
    active = active_operation(workspace, job)
    if active is not None:
        yield f"{active.kind} {active.id} works on the job"
    past = list(_past(workspace, job, now - max(_DAY, settings.cool_down)))
    interrupted = next((one for one in past if one.state == "running" and active is None), None)
    if interrupted is not None:
        # A new operation would replace the interrupted one, and nobody would resume that.
        yield f"{interrupted.kind} {interrupted.id} was interrupted, and must be resumed"
    rescales = [one for one in past if one.kind == "rescale" and one.started_at >= now - _DAY]
    away = sum(any(step.name in _AWAY for step in one.steps) for one in rescales)
    if away >= settings.per_day:
        yield f"{away} rescales in 24 hours; {settings.per_day} is the limit (advisor.per_day)"
    ended = max((one.ended_at for one in past if one.ended_at is not None and _was_felt(one)), default=None)
    if ended is not None and now < ended + settings.cool_down:
        left = format_duration(timedelta(seconds=math.ceil((ended + settings.cool_down - now).total_seconds())))
        yield f"cooling down for {left} more since the last operation (advisor.cool_down)"
    failed = _failed_before(rescales, changes)
    if failed is not None:
        why = f": {failed.error.code}" if failed.error else ""
        yield f"rescale {failed.id} to the same parallelism ended as: {failed.state}{why}"
    if active is None and interrupted is None:
        try:
            plan_rescale(workspace, job, partitions=changes.get("partitions"), cores=changes.get("cores"))
        except StreamwardenError as error:
            yield f"a rescale would be refused: {error.code}: {error.what}"


def _was_felt(one: Operation) -> bool:
    """Return whether an operation affected the job, so that the cool-down applies after it.

    A rescale refused by its precheck had no effect. Later steps put a second JVM on the job's cores, even if the job
    did not stop. And after a cancellation, the next check must not start the same rescale.
    """
    if one.kind != "rescale" or (one.error is not None and one.error.code == _CANCELLED):
        return True
    return any(step.name != _FIRST_LOOK for step in one.steps)


def _failed_before(rescales: list[Operation], changes: Mapping[str, int]) -> Operation | None:
    """Return the failed rescale to the same target, unless a later one succeeded."""
    for one in rescales:
        target = one.plan.to
        if one.state == "done":
            return None
        # Without a target it did not pass its precheck, which runs again anyway.
        same = target is not None and all(getattr(target, name) == value for name, value in changes.items())
        tried = one.error is None or one.error.code not in _SAYS_NOTHING
        if same and tried and one.state in ("failed", "rolled back"):
            return one
    return None


def _past(workspace: Workspace, job: str, since: datetime) -> Iterator[Operation]:
    documents = JobDocuments(workspace.storage, job)
    current = documents.operation.read()
    if current is not None and (current.ended_at is None or current.ended_at >= since):
        yield current
    for name in reversed(documents.past_operations()):
        found = documents.past_operation(name).read()
        if found is None or (current is not None and found.id == current.id):
            continue
        if (found.ended_at or found.started_at) < since:
            return
        yield found
