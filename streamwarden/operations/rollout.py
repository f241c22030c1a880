"""Roll out a changed YAML on a running job, and roll back to the old spec if the job does not become healthy."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NoReturn

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.savepoint import Origin
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, Desired, ErrorInfo, Operation, utc_now
from streamwarden.operations.output_rollback import outputs_before
from streamwarden.operations.spec_diff import Effect, RolloutPlan, changes_between, checkpoint_facts
from streamwarden.operations.workflow import Interrupted, JobOperation, is_anothers, is_passing, named, stopped_since
from streamwarden.runtime.operation_lock import active_operation, begin
from streamwarden.savepoints import catalog
from streamwarden.savepoints.materialize import fresh_checkpoint
from streamwarden.savepoints.take import Report
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import record_decision
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
        work = _Rollout(workspace, handle, stop_timeout, health_timeout, report)
        with work.failure_on_record():
            return work.run(planned)


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
        work = _Rollout(workspace, handle, 0, health_timeout, report)
        if not work.in_force:
            error = StreamwardenError("OPERATION_INTERRUPTED", f"{left.job}: given up for another deploy")
            handle.end("failed", error)
            return
        try:
            with work.failure_on_record():
                work.run(None)
        except StreamwardenError as error:
            if error.code != "ROLLOUT_UNHEALTHY":
                raise
            _log.warning("%s", error)


def _params(wanted: JobSpec, reason: str) -> dict[str, Any]:
    return {"digest": wanted.digest(), "reason": reason}


class _Rollout(JobOperation):
    def run(self, planned: RolloutPlan | None) -> Operation:
        """Perform the rollout, or resume it after another process was killed; without a plan only resume it."""
        failure = self._plan.get("failure")
        if failure is not None:
            self._roll_back(ErrorInfo.model_validate(failure).to_exception())
        if self.in_force:
            stopped = stopped_since(self._documents)
            if stopped is not None:
                self._roll_back(stopped)
        else:
            assert planned is not None
            self._precheck(planned)
            try:
                self._stop()
                self._check_again(planned)
                self._save()
                self._switch(planned.wanted)
            except Exception as error:
                self._go_on(error)
                raise
        return self._start_and_judge()

    @property
    def _before(self) -> Desired:
        return Desired.model_validate(self._plan["before"])

    @property
    def _half_way(self) -> bool:
        return "base" in self._plan

    @property
    def in_force(self) -> bool:
        """Whether the new spec is in force, or was in force and its rollback is unfinished."""
        return self._switched() or bool(self._plan.get("failure"))

    def _switched(self) -> bool:
        desired = self._documents.desired.read()
        return desired is not None and desired.operation == self.handle.id

    def _precheck(self, planned: RolloutPlan) -> None:
        with self.handle.step("precheck") as step:
            seen = observe(self._workspace, self._job)
            assert seen.desired is not None
            # Records all values for a rollback, before any change. The desired state is read now: a job that was
            # stopped since a killed try must stay down if this try fails.
            self.handle.plan(
                before=seen.desired.model_dump(mode="json"),
                effect=planned.effect.value,
                waits=self._plan.get("waits", seen.phase is Phase.WAITING),
                edited=planned.has_columns and seen.desired.spec.module == planned.wanted.module,
            )
            step.detail = f"{planned.effect}: {planned.fields}"

    def _stop(self) -> None:
        with self.handle.step("stop") as step:
            self._stop_driver(step)

    def _check_again(self, planned: RolloutPlan) -> None:
        """Refuse changes that became impossible since the plan: the driver may have begun its very first batch."""
        before = self._before.spec
        facts = checkpoint_facts(self._workspace, self._job, before)
        replace(planned, changes=changes_between(before, planned.wanted, facts)).refuse()

    def _save(self) -> None:
        if Effect(self._plan["effect"]) is not Effect.SAVEPOINT:
            return
        # Taken of the stopped job: it has exactly the old spec's work, so that a rollback loses none of it.
        with self.handle.step("pre-rollout savepoint") as step:
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
        with self.handle.step("switch") as step:
            reference = self._documents.checkpoint.read()
            base = self._reader(reference).last_commit() if reference else None
            self.handle.plan(base=base)
            driver_control.forgive(self._workspace, self._job, why=self._reason or step.name)
            self._decide(
                self._documents.desired,
                Desired(
                    job=self._job,
                    state="running",
                    spec=wanted,
                    digest=wanted.digest(),
                    profile=self._workspace.profile.name,
                    updated_at=utc_now(),
                    updated_by=self._by,
                    note=self._reason,
                    operation=self.handle.id,
                ),
            )
            step.detail = f"after batch {base}" if base is not None else "before the first batch"

    def _go_on(self, error: Exception) -> None:
        """Start the job as it was, after a failure before the switch."""
        if is_anothers(error):
            # Another process performs the operation now.
            return
        # Failures from here on must not hide the original failure. The start comes first: a supervisor may be down.
        with self._noted("is not started again"):
            if self._before.state == "running" and not self._switched():
                reason = "its rollout failed before the switch"
                driver_control.start(self._workspace, self._job, by=self._by, reason=reason)
        with self._noted("keeps its savepoint in use"):
            self._release()

    def _start_and_judge(self) -> Operation:
        try:
            with self.handle.step("start") as step:
                seen = observe(self._workspace, self._job)
                if seen.phase.alive:
                    # A supervisor started it with the spec in force: the old driver had ended before the switch.
                    step.detail = f"{seen.incarnation} runs already"
                else:
                    step.detail = driver_control.start(
                        self._workspace, self._job, by=self._by, reason=self._reason or "rollout"
                    )
            with self.handle.step("wait for health") as step:
                reference = self._documents.checkpoint.read()
                step.detail = driver_control.await_health(
                    self._workspace,
                    self._job,
                    generation=reference.generation if reference else 1,
                    base=self._plan["base"],
                    timeout=self._health_timeout,
                    say=self._say,
                    may_wait=bool(self._plan.get("waits")),
                )
        except Exception as error:
            if is_passing(error) or isinstance(error, Interrupted):
                raise
            self._roll_back(named(error))
        self._release()
        return self.handle.end("done")

    def _roll_back(self, error: StreamwardenError) -> NoReturn:
        """Restore the old spec, and its state if needed, and raise.

        Raises
        ------
        StreamwardenError
            ``ROLLOUT_UNHEALTHY``, always.
        """
        # Recorded first: after a crash, the next try must continue the rollback, and not try the new spec again.
        self.handle.plan(failure=ErrorInfo.of(error).model_dump(mode="json"))
        with self.handle.step("roll back") as step:
            before = self._before
            if self._switched():
                driver_control.end_driver(
                    self._workspace, self._job, by=self._by, reason=f"rollout failed: {error.code}"
                )
                # The checkpoint comes before the spec. The new spec on the old state is what the rollout tried; the old
                # spec must never run on state that the new spec has changed.
                self.handle.plan(way=self._put_state_back())
                note = f"its rollout failed: {error.code}"
                found = self._documents.desired.read()
                # A person may have stopped the job since.
                state = "suspended" if found is not None and found.state == "suspended" else before.state
                put_back = before.model_copy(
                    update={"state": state, "updated_at": utc_now(), "note": note, "went_back": True}
                )
                self._decide(self._documents.desired, put_back)
            way = self._plan.get("way", "")
            desired = self._documents.desired.read()
            to_run = desired is not None and desired.state == "running"
            step.detail = f"{way}: {self._start_again()}" if to_run else f"{way}; suspended"
        self._release()
        record_decision(self._workspace, self._job, "roll back", f"{error.code}: {error.what}")
        self.handle.end("rolled back", error)
        what = f"{self._job}: {error.code}: {error.what}\n  Back to the spec of before: {way}"
        if self._plan.get("edited"):
            # The spec only names the module, and does not contain its code.
            what += f"\n  Its module {self._before.spec.module} is still as it was edited: bring back the one of before"
        raise StreamwardenError("ROLLOUT_UNHEALTHY", what) from error

    def _put_state_back(self) -> str:
        """Make the checkpoint fit for the old spec, if the new spec has changed it; return a description.

        Can be repeated: a checkpoint that a killed try put in force counts as the checkpoint of the new spec.
        """
        reference = self._documents.checkpoint.read()
        base: int | None = self._plan["base"]
        if reference is None:
            return "no batch was ever begun"
        reader = self._reader(reference)
        # Pending table restores also mean that the new spec has begun no batch: tables are put back before the first
        # batch. An open batch then belongs to the old spec.
        if reader.last_offset() == base or reference.outputs:
            return f"the new spec began no batch, the old one goes on after {_batch(base)}"
        # Before the first batch, source and state may change without a savepoint: then the old spec must not use what
        # the new spec made of them.
        if base is not None and Effect(self._plan["effect"]) is not Effect.SAVEPOINT:
            return f"what changed has no part in results, the old spec goes on after {_batch(reader.last_commit())}"
        desired = self._documents.desired.read()
        assert desired is not None
        outputs, stuck = outputs_before(
            self._workspace,
            self._job,
            (*desired.spec.sinks, *self._before.spec.sinks),
            generation=reference.generation,
            base=base,
        )
        if stuck:
            # If these tables were put back, their readers would break; if left, replayed rows would be twice in them.
            return (
                f"{', '.join(stuck)} can't be put back under readers, so the batches after {_batch(base)} stay as the"
                f" new spec made them, and the old one goes on after {_batch(reader.last_commit())}"
            )
        name: str | None = self._plan.get("savepoint")
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
        self._decide(self._documents.checkpoint, fresh)
        tables = f", {', '.join(one.table for one in outputs)} put back" if outputs else ""
        where = f"goes on from savepoint {name} after {_batch(base)}" if found else "begins anew, as before any batch"
        return f"the old spec {where}{tables}"

    def _reader(self, reference: CheckpointRef) -> CheckpointReader:
        return CheckpointReader(self._workspace.storage, reference.path)


def _batch(number: int | None) -> str:
    return f"batch {number}" if number is not None else "no batch at all"
