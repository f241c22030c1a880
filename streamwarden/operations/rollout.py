"""Carrying out a changed YAML on a running job, and going back to what ran before if it does not become healthy."""

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
    """Let a running job run as its YAML says now, or as before if it can't.

    The driver stops between batches; where what changed may change results or state, a pre-rollout savepoint is taken
    then; the new spec is put in force, a driver starts on the same checkpoint, and its health is waited for: a batch
    commits, or the source has nothing new. If that does not come, the spec of before is put in force again; where the
    new one has begun batches under changed results or state, together with the savepoint, so that nothing of them
    stays. A rollout whose process died goes on when it is called again with the same plan; a supervisor starts
    whichever spec is in force meanwhile.

    Does not judge the plan: a refused one must not come here. Does not wait for the health of the driver that it goes
    back to.

    Parameters
    ----------
    planned
        What changes.
    by, reason
        Who and why.
    stop_timeout, health_timeout
        Seconds.
    report
        Told how far it is.

    Raises
    ------
    StreamwardenError
        ``OPERATION_RUNNING``. Before the new spec was in force, with the old one going on: ``STOP_TIMED_OUT``,
        ``ROLLOUT_REFUSED``, ``SAVEPOINT_…``, ``CHECKPOINT_DAMAGED``. After going back: ``ROLLOUT_UNHEALTHY``.
    """
    params = _params(planned.wanted, reason)
    with begin(workspace, planned.job, "rollout", by=by, params=params) as handle:
        work = _Rollout(workspace, handle, stop_timeout, health_timeout, report)
        with work.failure_on_record():
            return work.run(planned)


def interrupted_rollout(workspace: Workspace, job: str) -> Operation | None:
    """Return the rollout of a job that was interrupted, and that nobody works on; None if there is none."""
    found = JobDocuments(workspace.storage, job).operation.read()
    left = found is not None and found.kind == "rollout" and found.state == "running"
    return found if left and active_operation(workspace, job) is None else None


def is_same_rollout(found: Operation, wanted: JobSpec, *, by: str, reason: str) -> bool:
    """Tell whether a call of :func:`rollout` would go on with an operation."""
    return (found.kind, found.by, found.params) == ("rollout", by, _params(wanted, reason))


def settle(workspace: Workspace, left: Operation, *, health_timeout: float = 300, report: Report | None = None) -> None:
    """Bring an interrupted rollout to its end in the name of who began it: to health, or back.

    One whose new spec is not in force yet is given up, and nothing started: the job is as it was, or stopped.

    Raises
    ------
    StreamwardenError
        ``OPERATION_RUNNING``. Not if it goes back: that is on record.
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
        """Do it, or go on where another process was killed; without a plan only the latter."""
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
        """Whether the new spec is in force, or was, and the way back is not at its end."""
        return self._switched() or bool(self._plan.get("failure"))

    def _switched(self) -> bool:
        desired = self._documents.desired.read()
        return desired is not None and desired.operation == self.handle.id

    def _precheck(self, planned: RolloutPlan) -> None:
        with self.handle.step("precheck") as step:
            seen = observe(self._workspace, self._job)
            assert seen.desired is not None
            # What it takes to go back, kept before there is anything to go back from. What is wanted before counts at
            # this moment: who stopped the job since a killed try wants it down if this one fails.
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
        """Refuse what became impossible since it was planned: the driver may have begun its very first batch."""
        before = self._before.spec
        facts = checkpoint_facts(self._workspace, self._job, before)
        replace(planned, changes=changes_between(before, planned.wanted, facts)).refuse()

    def _save(self) -> None:
        if Effect(self._plan["effect"]) is not Effect.SAVEPOINT:
            return
        # Of the stopped job: exactly what the old spec has made, so that going back loses none of it.
        with self.handle.step("pre-rollout savepoint") as step:
            try:
                made = self._take_and_hold(Origin.PRE_ROLLOUT)
            except StreamwardenError as error:
                reference = self._documents.checkpoint.read()
                committed = self._reader(reference).last_commit() if reference else None
                if error.code != "SAVEPOINT_NOTHING" or committed is not None:
                    # Of a clone that never started: without a savepoint there would be no way back to its state.
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
        """Start the job as it was, after what failed before the switch."""
        if is_anothers(error):
            # Somebody else performs it now.
            return
        # What goes wrong from here on must not hide why it failed. The start comes first: a supervisor may be away.
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
                    # A supervisor's, of the spec that is in force: the old one's driver had ended before the switch.
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
        """Put what ran before in force again, and raise.

        Raises
        ------
        StreamwardenError
            ``ROLLOUT_UNHEALTHY``, always.
        """
        # First of all on record: whoever goes on after a crash must go on back, and not try the new spec again.
        self.handle.plan(failure=ErrorInfo.of(error).model_dump(mode="json"))
        with self.handle.step("roll back") as step:
            before = self._before
            if self._switched():
                driver_control.end_driver(
                    self._workspace, self._job, by=self._by, reason=f"rollout failed: {error.code}"
                )
                # The checkpoint before the spec: the new spec on the old state is what was tried; the old spec on state
                # that the new one has changed was never meant to be.
                self.handle.plan(way=self._put_state_back())
                note = f"its rollout failed: {error.code}"
                found = self._documents.desired.read()
                # A person may have stopped it since.
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
            # The spec names it, and does not hold it.
            what += f"\n  Its module {self._before.spec.module} is still as it was edited: bring back the one of before"
        raise StreamwardenError("ROLLOUT_UNHEALTHY", what) from error

    def _put_state_back(self) -> str:
        """Make the checkpoint fit for the old spec, if the new one has changed it; return how, in words.

        Can be repeated: what was put in force by a killed try counts as the checkpoint that the new spec ran on.
        """
        reference = self._documents.checkpoint.read()
        base: int | None = self._plan["base"]
        if reference is None:
            return "no batch was ever begun"
        reader = self._reader(reference)
        # Nor has it where tables are still to be put in place, which comes before the first batch: one that was begun
        # is the old spec's then.
        if reader.last_offset() == base or reference.outputs:
            return f"the new spec began no batch, the old one goes on after {_batch(base)}"
        # Before the first batch source and state may change without a savepoint: what the new spec has made of them is
        # not for the old one.
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
            # Put back, these tables would break their readers; left, they would have replayed rows twice.
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
