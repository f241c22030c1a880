"""Change a running job's parallelism, keep its state, and roll back if the job is not healthy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.status import Cancel, CheckpointRef, ErrorInfo, Operation, Parallelism, Step, Width, utc_now
from streamwarden.operations.output_rollback import with_pending
from streamwarden.operations.rescale_plan import RescalePlan, plan_rescale
from streamwarden.operations.rescale_verify import ENOUGH, START, RescaleVerdict
from streamwarden.operations.state_copy import StateCopy
from streamwarden.operations.workflow import Interrupted, is_anothers, is_passing, named, stopped_since
from streamwarden.runtime.operation_lock import begin
from streamwarden.runtime.spare import Standby, standby
from streamwarden.savepoints.compatibility import readers_of
from streamwarden.savepoints.take import Report
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import widened
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.backlog import pending
from streamwarden.supervision.observe import Observation, Phase, observe

__all__ = ["OnTimeout", "Way", "cancel", "rescale"]

OnTimeout = Literal["roll back", "hold"]
"""The action for a job that is not healthy in time: roll back, or leave the job as it is for a person to inspect."""

Way = Literal["fast", "plain"]
"""How the state is repartitioned: ``fast`` online, while the job runs; ``plain`` offline, after its stop."""


_HEALTH_S = 300.0
"""The minimum time-out for the new driver's health: a first batch may be as large as its limits allow."""


def rescale(
    workspace: Workspace,
    job: str,
    *,
    partitions: int | None = None,
    cores: int | None = None,
    memory: str | None = None,
    on_timeout: OnTimeout = "roll back",
    way: Way = "fast",
    by: str,
    reason: str = "",
    approved_by: str = "",
    approved: str = "",
    stop_timeout: float = 300,
    health_timeout: float | None = None,
    report: Report | None = None,
) -> Operation:
    """Change a job's state partitions, cores or memory.

    While the job runs, the rescale checks its preconditions and starts the new driver's JVM beside it. It takes a
    pre-rescale savepoint, repartitions a copy under a new generation, and proves that the copy has the same state. Then
    the old driver stops between batches, and the new driver takes over. The new driver is healthy if it commits
    batches, its backlog is no larger than at the stop, and no health rule is newly critical. If it is not healthy,
    the job rolls back to the untouched checkpoint and the old width. If the number of partitions stays, nothing is
    copied: the new driver resumes where the old driver stopped.

    The operation's document records every step. If the process of a rescale died, the same call resumes it; the result
    is the new or the old state. It can be cancelled until the new driver starts. Does not write the YAML: the decided
    width is kept in a document, and counts until the same field changes in the YAML.

    Parameters
    ----------
    partitions
        State partitions; None keeps them.
    cores
        Cores, as ``resources.cores``; None keeps them.
    memory
        JVM heap, as ``resources.memory``; None keeps it.
    on_timeout
        For a job that runs without a failure but has not caught up in time. A failing job always rolls back.
    way
        ``fast`` (online) repartitions a copy of a savepoint while the job runs. The copy replays the job's batches, and
        the job stops only then. ``plain`` (offline) stops the job first; so does ``fast`` if the copy cannot keep up,
        and on a cluster. Both end with the same state. Both are the same for a job that does not run, or if the
        number of partitions stays.
    by, reason
        Actor and reason.
    approved_by
        Who approved the rescale beforehand; empty without an approval. Only recorded.
    approved
        The approved change, as :attr:`~.rescale_plan.RescalePlan.words`: a rescale that would now change anything else
        is refused. Empty without an approval.
    stop_timeout
        Seconds.
    health_timeout
        Seconds. None means 300, or three trigger intervals of the job if that is longer: a verdict takes up to three
        batches.
    report
        Called with the progress.

    Raises
    ------
    StreamwardenError
        Before any change: ``JOB_UNKNOWN``, ``CONFIG_INVALID``, ``OPERATION_RUNNING``, or one of ``RESCALE_…`` for the
        first obstacle; ``OPERATION_UNFINISHED`` while another rescale is half way. After the job has returned to its
        old state: ``STOP_TIMED_OUT``, ``SAVEPOINT_…``, ``RESCALE_STATE_DIFFERS``, ``RESCALE_FAILED``,
        ``OPERATION_CANCELLED``, ``RESCALE_UNHEALTHY``. Half way, to be resumed: ``S3_UNREACHABLE``, ``S3_THROTTLED``.
    """
    params: dict[str, Any] = {"partitions": partitions, "cores": cores, "memory": memory, "on_timeout": on_timeout}
    params |= {"way": way, "reason": reason}
    with begin(workspace, job, "rescale", by=by, params=params) as handle:
        if health_timeout is None:
            health_timeout = _time_for_health(workspace, job)
        # Not among the params: with other time-outs it is the same rescale. ``--resume`` reuses the recorded time-outs.
        handle.plan(stop_timeout=stop_timeout, health_timeout=health_timeout)
        if approved_by:
            handle.plan(approved_by=approved_by)
        if approved:
            handle.plan(approved=approved)
        work = _Rescale(workspace, handle, stop_timeout, health_timeout, report)
        with work.failure_on_record():
            return work.run()


def _time_for_health(workspace: Workspace, job: str) -> float:
    desired = JobDocuments(workspace.storage, job).desired.read()
    # The precheck reports a job that was never deployed.
    interval = desired.spec.trigger.interval.total_seconds() if desired is not None else 0.0
    return max(_HEALTH_S, ENOUGH * interval)


def cancel(workspace: Workspace, job: str, *, by: str) -> Operation:
    """Ask a job's rescale to return to the old state before its next step; if its process died, when it is resumed.

    After the start of the new driver, only the job's health decides.

    Raises
    ------
    StreamwardenError
        ``OPERATION_NONE`` if no rescale works on the job or waits to be resumed; ``OPERATION_TOO_LATE`` if its new
        driver was started.
    """
    found = JobDocuments(workspace.storage, job).operation.read()
    if found is None or found.kind != "rescale" or found.state != "running":
        raise StreamwardenError("OPERATION_NONE", f"{job}: no rescale works on it")
    if any(step.name == START for step in found.steps):
        raise StreamwardenError("OPERATION_TOO_LATE", f"{job}: rescale {found.id}, at {found.steps[-1].name}")
    documents = JobDocuments(workspace.storage, job)
    documents.cancel.write(Cancel(operation=found.id, by=by, at=utc_now()))
    # The rescale records its start before it reads the cancel document: either it reads ours, or we read its start.
    found = documents.operation.read() or found
    if any(step.name == START for step in found.steps):
        what = f"{job}: rescale {found.id}, at {found.steps[-1].name}; it may have heeded this at the last moment"
        raise StreamwardenError("OPERATION_TOO_LATE", what)
    return found


class _Rescale(RescaleVerdict):
    def run(self) -> Operation:
        failure = self._plan.get("failure")
        if failure is not None:
            self._roll_back(ErrorInfo.model_validate(failure).to_exception())
        if self._switched():
            overtaken = self._overtaken()
            if overtaken is not None:
                self._roll_back(overtaken)
            self._put_in_force()
            return self._start_and_judge()
        try:
            # Cancels and stops are checked before the preconditions.
            self._heed()
            self._heed_stop()
            self._finish_stop()
            self._await_started()
            planned = self._precheck()
        except Exception as error:
            self._go_on(error)
            raise
        # The standby's JVM starts while the job still runs, works on the state, and finally runs the job.
        # An online rescale works on state while the job runs, and needs no rehearsal of that work.
        state = planned.repartitions and self._way == "plain"
        with standby(self._workspace, widened(self._desired_before.spec, planned.to), state=state) as spare:
            self._prepare_and_switch(planned, spare)
            return self._start_and_judge(spare)

    def _overtaken(self) -> StreamwardenError | None:
        """Return the reason why a resumed rescale must roll back instead of continuing, or None."""
        stopped, current = stopped_since(self._documents), self._documents.checkpoint.read()
        assert current is not None
        after = self._plan.get("after")
        if stopped is not None or not after or current.generation == after["generation"]:
            return stopped
        # The switch's last write is missing: a supervisor may have restarted the job on the old checkpoint.
        stands = CheckpointReader(self._workspace.storage, current.path).last_offset()
        if stands == self._plan.get("stands") and not observe(self._workspace, self._job).phase.alive:
            return None
        what = f"{self._job}: the rescale was killed in the midst of its switch, and the job has run on since"
        return StreamwardenError("OPERATION_INTERRUPTED", what)

    def _heed_stop(self) -> None:
        """Raise if the job was stopped since a killed try observed it: to continue would start it."""
        if self._plan.get("desired") is not None and self._desired_before.state == "running":
            error = stopped_since(self._documents)
            if error is not None:
                raise error

    def _await_started(self) -> None:
        """Wait for a driver that a supervisor just started after a killed try's stop: it must not count as failed."""
        if self.handle.resumed:
            with suppress(StreamwardenError):
                driver_control.wait_for(
                    self._workspace,
                    self._job,
                    lambda seen: seen.phase is not Phase.STARTING,
                    timeout=self._health_timeout,
                    what="the driver to run",
                )

    def _finish_stop(self) -> None:
        """Wait for the end of a stop that a killed try requested: a stopping job would count as unhealthy."""
        if self._stopping and self._is_stopping(observe(self._workspace, self._job)):
            with self.handle.step("stop") as step:
                self._stop_driver(step)

    def _is_stopping(self, seen: Observation) -> bool:
        """Return whether the driver is stopping, or has an open stop request."""
        if not seen.phase.alive or seen.incarnation is None:
            return False
        return seen.phase is Phase.STOPPING or any(
            one.kind == "stop" for one in self._documents.open_requests(seen.incarnation)
        )

    def _precheck(self) -> RescalePlan:
        with self.handle.step("precheck") as step:
            planned = plan_rescale(self._workspace, self._job, operation=self.handle.id, **self._target())
            approved = self._plan.get("approved", planned.words)
            if planned.words != approved:
                what = f"{self._job}: {planned.words}, and {approved} was approved"
                raise StreamwardenError("RESCALE_NOT_AS_APPROVED", what)
            seen = observe(self._workspace, self._job)
            self._keep_way_back(seen, planned)
            step.detail = planned.words
            plain = self._plain_because() if planned.repartitions else ""
            self.handle.plan(plain=plain)
            if plain:
                step.detail += f"; the plain way: {plain}"
            return planned

    def _prepare_and_switch(self, planned: RescalePlan, spare: Standby) -> None:
        self._runs_on = observe(self._workspace, self._job).phase.alive
        try:
            with self._step("start Spark"):
                spare.await_ready(self._heed)
            copy = None
            if planned.repartitions and self._way == "fast" and observe(self._workspace, self._job).phase.alive:
                copy = self._prepare_ahead(planned, spare)
            if copy is None:
                self._stop(between=planned.repartitions)
                if planned.repartitions:
                    copy = self._copy(planned, spare, self._save())
                else:
                    self._save_if_any()
            self._switch(planned, copy)
        except BaseException as error:
            # Also on Ctrl-C: the job may be stopped already.
            self._go_on(error)
            raise

    def _plain_because(self) -> str:
        """Return why the job is stopped first although ``fast`` was requested; empty if it is not stopped first."""
        # Reads the requested way, not the way of an earlier try: otherwise the next try would drop the reason.
        if self._asked_way != "fast":
            return ""
        if self._workspace.profile.on_cluster:
            # The standby driver is a separate application; without a slot, its first digest waits for an hour.
            return "on a cluster its Spark may get no slots before the job has given back its own"
        bound = self._bound_tables()
        return f"{', '.join(bound)} can't be put back, should a replayed copy differ" if bound else ""

    def _bound_tables(self) -> list[str]:
        """Return the tables that could not be put back.

        These are tables with reading jobs, if they get appended rows or would be rewound; and append tables that a
        restore leaves as they are. Rows of an upsert are overwritten, as a rule.

        The replayed state is proved only after the job has committed a batch on it, so a rollback from there must be
        possible.
        """
        sinks = self._desired_before.spec.sinks
        read = readers_of(
            self._workspace, [one.table for one in sinks if one.mode == "append" or one.rewinds], but=self._job
        )
        left = [one.table for one in sinks if one.mode == "append" and one.on_restore == "leave"]
        return sorted({*read, *left})

    def _target(self) -> dict[str, Any]:
        return {name: self.handle.operation.params[name] for name in ("partitions", "cores", "memory")}

    def _keep_way_back(self, seen: Observation, planned: RescalePlan) -> None:
        # Records all values that a rollback needs, before any change.
        assert seen.desired is not None
        before, parallelism = self._documents.checkpoint.read(), self._documents.parallelism.read()
        assert before is not None
        last = seen.progress.last if seen.progress else None
        self.handle.plan(
            desired=seen.desired.model_dump(mode="json"),
            before=before.model_dump(mode="json"),
            parallelism=parallelism.model_dump(mode="json") if parallelism else None,
            was=planned.was.model_dump(mode="json"),
            over=planned.written.model_dump(mode="json"),
            to=planned.to.model_dump(mode="json"),
            critical=[one.rule for one in self._findings(seen)],
            backlog=self._plan.get("backlog", pending(last)),
            # Clears a killed try's values: of its copy, which this try does not use, and of its switch, never reached.
            proof=None,
            width=None,
            back_base=None,
        )

    def _prepare_ahead(self, planned: RescalePlan, spare: Standby) -> StateCopy | None:
        """Repartition a copy while the job runs, let the copy follow the job, and only then stop the job.

        Return None, with the job running, if the job is too fast for a savepoint or for its copy.
        """
        made = self._save_hot()
        if made is None:
            return None
        copy = self._copy(planned, spare, made)
        with self._step("follow") as step:
            first = copy.batch
            pays = copy.follow()
            step.detail = f"batches {first + 1} to {copy.batch}, {copy.behind} behind"
            if not pays:
                step.detail += ": the job is faster than its copy, and is stopped first"
                return None
        self._stop(between=True)
        with self._step("follow to the end") as step:
            first = copy.batch
            ahead = copy.follow_to_end(self._desired_before.spec.trigger.interval.total_seconds())
            step.detail = f"batches {first + 1} to {copy.batch}{', by the new query' if ahead else ''}"
        proof = copy.proof()
        self.handle.plan(proof={name: asdict(state) for name, state in proof.items()} if proof else None)
        return copy

    def _stop(self, *, between: bool) -> None:
        # From here on the driver's end is expected.
        self._runs_on = False
        self.handle.plan(stopping=True)
        with self._step("stop") as step:
            # The rest of the work on the state is done while the driver ends Spark.
            self._stop_driver(step, query_only=True)
            # Recorded now for a rollback before the driver has ended.
            self._note_stop(observe(self._workspace, self._job))
            if between:
                self._check_between()

    def _await_stop(self) -> None:
        """Wait until the driver and its lease have ended, and record where it stopped: all is written by then."""
        self._note_stop(driver_control.await_stop(self._workspace, self._job, self._stop_timeout))

    def _note_stop(self, seen: Observation) -> None:
        last = seen.progress.last if seen.progress else None
        idle_at = seen.heartbeat.idle_at if seen.heartbeat else None
        # The downtime of an idle job begins with its stop.
        at = max((one for one in (last.at if last else None, idle_at) if one is not None), default=None)
        self.handle.plan(stopped_at=at.isoformat() if at else None, backlog=pending(last))

    def _check_between(self) -> None:
        """Refuse a new generation if the driver died during a batch.

        The tables may have the batch already. A replay in the same generation writes it once, in a new one twice.
        """
        current = self._documents.checkpoint.read()
        assert current is not None
        reader = CheckpointReader(self._workspace.storage, current.path)
        begun, done = reader.last_offset(), reader.last_commit()
        if begun != done:
            what = f"{self._job}: its driver ended in the midst of batch {begun}"
            remedy = "Let the job run until it has finished the batch, and rescale it then."
            raise StreamwardenError("RESCALE_NOT_HEALTHY", what, remedy=remedy)

    def _save(self) -> Manifest:
        with self._step("pre-rescale savepoint") as step:
            return self._saved(step)

    def _save_hot(self) -> Manifest | None:
        """Take a savepoint of the running job; None if Spark removes files faster than they are copied."""
        with self._step("pre-rescale savepoint") as step:
            try:
                return self._saved(step)
            except StreamwardenError as error:
                if error.code != "SAVEPOINT_OUTRUN":
                    raise
                step.detail = f"{error.code}: the job is faster than its savepoint, and is stopped first"
                return None

    def _saved(self, step: Step) -> Manifest:
        made = self._take_and_hold(Origin.PRE_RESCALE)
        self.handle.plan(state_rows=made.state_rows)
        step.detail = f"{made.id} at batch {made.batch}"
        return made

    def _save_if_any(self) -> None:
        """Take a savepoint if possible: the new driver does not start from it, and no batch may be committed yet."""
        try:
            self._save()
        except StreamwardenError as error:
            if error.code != "SAVEPOINT_NOTHING":
                raise
            self.handle.plan(savepoint=None)

    def _copy(self, planned: RescalePlan, spare: Standby, made: Manifest) -> StateCopy:
        copy = StateCopy(
            self._workspace,
            self._job,
            self.handle.id,
            made,
            was=planned.was.partitions,
            partitions=planned.to.partitions,
            generation=self._next_generation,
            check=self.handle.check,
            spare=spare,
            step=self._step,
            heed=self._heed,
            say=self._say,
            report=self._report,
        )
        if self._plan.get("state_rows") is None:
            # The driver ended before it reported its last batch.
            self.handle.plan(state_rows=copy.rows)
        return copy

    def _check_copy(self, copy: StateCopy) -> None:
        """Refuse a copy that is behind the job: the missing batches would be computed and written twice.

        A driver without a visible heartbeat may have continued after its end was concluded.
        """
        self._check_between()
        if copy.behind:
            what = f"{self._job}: its driver has committed {copy.behind} batches more while it was to stop"
            raise StreamwardenError("RESCALE_NOT_HEALTHY", what, remedy="Rescale it again.")

    def _switch(self, planned: RescalePlan, copy: StateCopy | None) -> None:
        with self._step("switch") as step:
            self._await_stop()
            self._heed()
            if copy is not None:
                self._check_copy(copy)
            reference = copy.reference if copy is not None else None
            before = self._desired_before
            spec = widened(before.spec, planned.to)
            current = self._documents.checkpoint.read()
            assert current is not None
            base = (
                reference.base_batch
                if reference is not None
                else CheckpointReader(self._workspace.storage, current.path).last_commit()
            )
            after = None
            if reference is not None:
                # Tables that the old checkpoint's driver never put back become the new checkpoint's to put back.
                outputs = with_pending(reference.outputs, current)
                after = reference.model_copy(update={"partitions": planned.to.partitions, "outputs": outputs})
            # `over` is the YAML's width at the precheck: a later edit of the YAML takes precedence.
            width = Parallelism(now=planned.to, over=Width.model_validate(self._plan["over"]), by=self._by)
            self.handle.plan(
                width=width.model_dump(mode="json"),
                base=base,
                generation=(after or current).generation,
                after=after.model_dump(mode="json") if after else None,
                stands=CheckpointReader(self._workspace.storage, current.path).last_offset(),
            )
            if after is not None:
                # Records the checkpoint's number of partitions, which overrides the spec's. So number and state fit,
                # whichever of the following writes is the last before a crash.
                was = current.model_copy(update={"partitions": planned.was.partitions})
                self._decide(self._documents.checkpoint, was)
            driver_control.forgive(self._workspace, self._job, why=planned.words)
            self._decide(
                self._documents.desired,
                before.model_copy(
                    update={
                        "state": "running",
                        "spec": spec,
                        "digest": spec.digest(),
                        "updated_at": utc_now(),
                        "updated_by": self._by,
                        "note": self._reason or planned.words,
                        "operation": self.handle.id,
                    }
                ),
            )
            self._put_in_force()
            step.detail = planned.words

    def _put_in_force(self) -> None:
        # After the desired state: if the switch was cut off before that, it must not affect a deploy.
        self._decide(self._documents.parallelism, Parallelism.model_validate(self._plan["width"]))
        if not self._plan.get("after"):
            return
        after, current = CheckpointRef.model_validate(self._plan["after"]), self._documents.checkpoint.read()
        if current is None or current.generation != after.generation:
            if current is not None:
                self._count_on(current.generation, after.generation)
            self._decide(self._documents.checkpoint, after)

    def _count_on(self, old: int, new: int) -> None:
        """Start a generation with the totals of the previous generation: no input is read again."""
        totals = self._documents.totals(old).read()
        if totals is not None:
            # Overwrites the totals of an abandoned try: its generation was never in force, and its totals are older.
            self._documents.totals(new).write(totals.model_copy(update={"generation": new}))

    def _go_on(self, error: BaseException) -> None:
        """Start the job as it was, after a failure before the switch; roll back, after a failure during the switch."""
        if (self._half_way and is_passing(error)) or is_anothers(error):
            # Another process performs the operation now, or will resume it.
            return
        # Read only if a switch is possible: a store outage here must not hide the original failure.
        if self._half_way and self._switched():
            if isinstance(error, Exception) and not isinstance(error, Interrupted):
                # The switch is done in part, or in full with a lost answer.
                self._roll_back(named(error))
            # This process is ended from outside, and will be killed in seconds: a repeated call resumes the rescale.
            return
        # Failures from here on must not hide the original failure.
        with self._noted("is not started again"):
            self._start_before(error)
        with self._noted("keeps its savepoint in use"):
            self._release()

    def _start_before(self, error: BaseException) -> None:
        """Start the job again, if it was asked to stop, and wait until it is healthy."""
        seen = observe(self._workspace, self._job)
        # Reads the current desired state: this rescale has not changed it, but others may have since the stop request.
        wanted = seen.desired is not None and seen.desired.state == "running"
        if not (self._stopping and wanted) or (seen.phase.alive and not self._is_stopping(seen)):
            return
        # A process that is ended from outside will be killed in seconds.
        waits = isinstance(error, Exception) and not isinstance(error, Interrupted)
        with self.handle.step("start again") as step:
            try:
                # Waits for the stop first: a driver launched earlier finds the lease held, and gives up.
                self._await_stop()
            except StreamwardenError as late:
                if is_anothers(late):
                    raise
                waits = False
            self._mark_way_back()
            reason = "its rescale failed before the switch"
            step.detail = driver_control.start(self._workspace, self._job, by=self._by, reason=reason)
        if waits:
            self._await_health_of_before()

    @property
    def _stopping(self) -> bool:
        """Whether the driver was asked to stop: from then on the job is started again after any failure."""
        return bool(self._plan.get("stopping"))

    @property
    def _way(self) -> str:
        return "plain" if self._plan.get("plain") else self._asked_way

    @property
    def _asked_way(self) -> str:
        return str(self.handle.operation.params.get("way", "plain"))
