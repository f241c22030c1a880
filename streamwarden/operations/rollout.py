"""Roll out a changed YAML on a running job, and roll back to the old spec if the job does not become healthy."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import InForce, Operation, OperationState, StepName
from streamwarden.model.savepoint import Origin
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.output_rollback import outputs_before
from streamwarden.operations.spec_diff import RolloutPlan, changes_between, checkpoint_facts
from streamwarden.operations.workflow import JobOperation
from streamwarden.runtime.operation_lock import active_operation, begin
from streamwarden.runtime.standby import Standby
from streamwarden.savepoints import catalog
from streamwarden.savepoints.fresh_checkpoint import fresh_checkpoint
from streamwarden.savepoints.take import Report
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Phase, observe

__all__ = ["interrupted_rollout", "is_same_rollout", "rollout", "settle"]

_log = logging.getLogger(__name__)


def rollout(
    workspace: Workspace,
    planned: RolloutPlan,
    *,
    by: str,
    reason: str = "",
    stop_timeout: float = 300,
    health_timeout: float = 300,
    report: Report | None = None,
) -> Operation:
    """Run a running job as its YAML says now, or roll back to the old spec.

    The driver stops between batches. If a change may affect results or state, a pre-rollout savepoint is taken. The new
    spec is put in force, and a driver starts on the same checkpoint. The job is healthy if a batch commits, or the
    source has nothing new. If it is not healthy, the old spec is put in force again. If the new spec has begun batches
    with changed results or state, the savepoint is restored too, so that nothing of these batches stays. If the process
    of a rollout died, a call with the same plan resumes it; meanwhile a supervisor starts the spec in force.

    Does not judge the plan: callers must not pass a refused plan. Does not wait for health after a rollback.

    Parameters
    ----------
    planned
        The changes.
    by, reason
        Actor and reason.
    stop_timeout, health_timeout
        Seconds.
    report
        Called with the progress.

    Raises
    ------
    StreamwardenError
        ``OPERATION_RUNNING``. Before the new spec is in force, with the old spec still running: ``STOP_TIMED_OUT``,
        ``ROLLOUT_REFUSED``, ``SAVEPOINT_…``, ``CHECKPOINT_DAMAGED``. After a rollback: ``ROLLOUT_UNHEALTHY``.
    """
    params = _params(planned.wanted, reason)
    with begin(workspace, planned.job, "rollout", by=by, params=params) as handle:
        work = _Rollout(workspace, handle, stop_timeout, health_timeout, report, planned=planned)
        with work.failure_on_record():
            return work.run()


def interrupted_rollout(workspace: Workspace, job: str) -> Operation | None:
    """Return a job's interrupted rollout that no process performs; None without such a rollout."""
    found = JobDocuments(workspace.storage, job).operation.read()
    left = found is not None and found.kind == "rollout" and found.state == "running"
    return found if left and active_operation(workspace, job) is None else None


def is_same_rollout(found: Operation, wanted: JobSpec, *, by: str, reason: str) -> bool:
    """Return whether a call of :func:`rollout` would resume an operation."""
    return (found.kind, found.by, found.params) == ("rollout", by, _params(wanted, reason))


def settle(workspace: Workspace, left: Operation, *, health_timeout: float = 300, report: Report | None = None) -> None:
    """Complete an interrupted rollout under its original actor: to a healthy job, or to a rollback.

    If its new spec is not in force yet, the rollout is abandoned without a start: the job is as it was, or stopped.

    Raises
    ------
    StreamwardenError
        ``OPERATION_RUNNING``. Does not raise after a rollback, which is only recorded.
    """
    with begin(workspace, left.job, "rollout", by=left.by, params=left.params) as handle:
        work = _Rollout(workspace, handle, 0, health_timeout, report, planned=None)
        if not work.in_force:
            error = StreamwardenError("OPERATION_INTERRUPTED", f"{left.job}: given up for another deploy")
            handle.end(OperationState.FAILED, error)
            return
        try:
            with work.failure_on_record():
                work.run()
        except StreamwardenError as error:
            if error.code != "ROLLOUT_UNHEALTHY":
                raise
            _log.warning("%s", error)


def _params(wanted: JobSpec, reason: str) -> dict[str, Any]:
    return {"digest": wanted.digest(), "reason": reason}


class _Rollout(JobOperation):
    unhealthy = "ROLLOUT_UNHEALTHY"

    def __init__(self, *args: Any, planned: RolloutPlan | None = None) -> None:
        super().__init__(*args)
        self._planned = planned

    @property
    def in_force(self) -> bool:
        """Whether the new spec is in force, or was in force and its rollback is unfinished."""
        return self._plan.failure is not None or self._switched()

    def _precheck(self) -> None:
        planned = self._planned
        # Without one, only a rollout whose spec is in force is performed: see `settle`.
        assert planned is not None
        with self.handle.step(StepName.PRECHECK) as step:
            seen = observe(self._workspace, self._job)
            assert seen.desired is not None
            self._note_beginning(seen)
            self.handle.plan(
                effect=planned.effect.value,
                waits=seen.phase is Phase.WAITING if self._plan.waits is None else self._plan.waits,
                edited=planned.has_columns and seen.desired.spec.module == planned.wanted.module,
            )
            step.detail = f"{planned.effect}: {planned.fields}"

    def _prepare_and_switch(self, spare: Standby | None) -> None:  # noqa: ARG002 - none is used
        planned = self._planned
        assert planned is not None
        with self.handle.step(StepName.STOP) as step:
            self._stop_driver(step)
        self._check_again(planned)
        self._save()
        self._switch(planned.wanted)

    def _check_again(self, planned: RolloutPlan) -> None:
        """Refuse changes that became impossible since the plan: the driver may have begun its very first batch."""
        desired = self._documents.desired.read()
        assert desired is not None
        facts = checkpoint_facts(self._workspace, self._job, desired.spec)
        replace(planned, changes=changes_between(desired.spec, planned.wanted, facts)).refuse()

    def _save(self) -> None:
        if Effect(self._plan.effect) is not Effect.SAVEPOINT:
            return
        # Taken of the stopped job: it has exactly the old spec's work, so that a rollback loses none of it.
        with self.handle.step(StepName.PRE_ROLLOUT_SAVEPOINT) as step:
            try:
                made = self._take_and_hold(Origin.PRE_ROLLOUT)
            except StreamwardenError as error:
                reference = self._documents.checkpoint.read()
                committed = self._reader(reference).last_commit() if reference else None
                if error.code != "SAVEPOINT_NOTHING" or committed is not None:
                    # A clone that never started: without a savepoint, a rollback to its state would be impossible.
                    raise
                self.handle.plan(savepoint=None)
                step.detail = "none: no batch is committed yet"
                return
            step.detail = f"{made.id} at batch {made.batch}"

    def _switch(self, wanted: JobSpec) -> None:
        with self.handle.step(StepName.SWITCH) as step:
            self._switch_to(InForce(desired=self._wanted(wanted)))
            base = self._plan.base
            step.detail = f"after batch {base}" if base is not None else "before the first batch"

    def _undo(self, error: StreamwardenError) -> str:
        # The checkpoint comes before the spec. The new spec on the old state is what the rollout tried; the old spec
        # must never run on state that the new spec has changed.
        checkpoint, words = self._state_before()
        self._write_back(checkpoint, error=error, before=self._before, went_back=True)
        return words

    def _caveat(self) -> str:
        if not self._plan.edited or self._before.desired is None:
            return ""
        # The spec only names the module, and does not contain its code.
        module = self._before.desired.spec.module
        return f"\n  Its module {module} is still as it was edited: restore the earlier one"

    def _state_before(self) -> tuple[CheckpointRef | None, str]:
        """Return a checkpoint for the old spec, if the new spec has changed its state, and a description.

        Can be repeated: a checkpoint that a killed try put in force counts as the checkpoint of the new spec.
        """
        reference = self._documents.checkpoint.read()
        base = self._plan.base
        if reference is None:
            return None, "no batch was ever begun"
        reader = self._reader(reference)
        # Pending table restores also mean that the new spec has begun no batch: tables are put back before the first
        # batch. An open batch then belongs to the old spec.
        if reader.last_offset() == base or reference.outputs:
            return None, f"the new spec began no batch, the old one goes on after {_batch(base)}"
        # Before the first batch, source and state may change without a savepoint: then the old spec must not use what
        # the new spec made of them.
        if base is not None and Effect(self._plan.effect) is not Effect.SAVEPOINT:
            last = _batch(reader.last_commit())
            return None, f"what changed does not affect results, the old spec continues after {last}"
        desired, before = self._documents.desired.read(), self._before.desired
        assert desired is not None and before is not None
        outputs, stuck = outputs_before(
            self._workspace,
            self._job,
            (*desired.spec.delta_sinks, *before.spec.delta_sinks),
            generation=reference.generation,
            base=base,
        )
        if stuck:
            # If these tables were put back, their readers would break; if left, replayed rows would be twice in them.
            return None, (
                f"{', '.join(stuck)} can't be put back under readers, so the batches after {_batch(base)} stay as the"
                f" new spec made them, and the old one goes on after {_batch(reader.last_commit())}"
            )
        name: str | None = self._plan.savepoint
        found = catalog.find(self._workspace, self._job, name) if name else None
        fresh = fresh_checkpoint(
            self._workspace,
            self._job,
            found.manifest if found else None,
            self._next_generation(),
            outputs=outputs,
            operation=self.handle.id,
            reason=f"rollout {self.handle.id} failed",
            check=self.handle.check,
            report=self._report,
        )
        tables = f", {', '.join(one.table for one in outputs)} put back" if outputs else ""
        where = f"goes on from savepoint {name} after {_batch(base)}" if found else "begins anew, as before any batch"
        # Without this operation's mark, which says that the switch is in force.
        return fresh.model_copy(update={"operation": None}), f"the old spec {where}{tables}"


def _batch(number: int | None) -> str:
    return f"batch {number}" if number is not None else "no batch at all"
