"""Change a running job's parallelism, keep its state, and roll back if the job is not healthy."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from typing import Any, Literal

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.operation import Cancel, InForce, Operation, Step, StepName
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, ParallelismOverride
from streamwarden.operations.output_rollback import with_pending
from streamwarden.operations.rescale_plan import RescalePlan, plan_rescale
from streamwarden.operations.rescale_verify import ENOUGH, START, RescaleVerdict
from streamwarden.operations.state_copy import StateCopy
from streamwarden.runtime.operation_lock import begin
from streamwarden.runtime.standby import Standby, standby
from streamwarden.savepoints.compatibility import readers_of
from streamwarden.savepoints.take import Report
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import FIELDS, with_parallelism
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.backlog import pending
from streamwarden.supervision.observe import Observation, Phase, observe

__all__ = ["Mode", "OnTimeout", "cancel", "mode_of", "rescale"]

OnTimeout = Literal["roll back", "hold"]
"""The action for a job that is not healthy in time: roll back, or leave the job as it is for a person to inspect."""

Mode = Literal["online", "offline"]
"""When the state is repartitioned: ``online`` while the job runs, ``offline`` after its stop."""

_MODES: dict[str, Mode] = {"online": "online", "offline": "offline", "fast": "online", "plain": "offline"}


def mode_of(text: str) -> Mode:
    """Return the mode that a text names; ``fast`` and ``plain`` are its names before version 0.2.

    Raises
    ------
    StreamwardenError
        ``RESCALE_INVALID``.
    """
    if text not in _MODES:
        raise StreamwardenError("RESCALE_INVALID", f"mode {text!r} is neither online nor offline")
    return _MODES[text]


_HEALTH_S = 300.0
"""The minimum time-out for the new driver's health: a first batch may be as large as its limits allow."""

_PROVED_WITHIN_S = 300.0
"""How long the new driver must keep the state of the stop for a copy to be proved later. Five minutes: the digests need
a process of their own, and took 71 s for a million keys beside the job on two cores."""

_SLOTS_S = 60.0
"""How long a cluster may take to give the new driver an executor beside the running job. 60 s: an executor's start on a
loaded machine. The job runs meanwhile."""


def rescale(
    workspace: Workspace,
    job: str,
    *,
    partitions: int | None = None,
    cores: int | None = None,
    executors: int | None = None,
    memory: str | None = None,
    on_timeout: OnTimeout = "roll back",
    mode: Mode = "online",
    by: str,
    reason: str = "",
    approved_by: str = "",
    approved: str = "",
    stop_timeout: float = 300,
    health_timeout: float | None = None,
    report: Report | None = None,
) -> Operation:
    """Change a job's state partitions, cores, executors or memory.

    While the job runs, the rescale checks its preconditions and starts the new driver's JVM beside it. It takes a
    pre-rescale savepoint, repartitions a copy under a new generation, and proves that the copy has the same state. Then
    the old driver stops between batches, and the new driver takes over. The new driver is healthy if it commits
    batches, its backlog is no larger than at the stop, and no health rule is newly critical. If it is not healthy,
    the job rolls back to the untouched checkpoint and the old parallelism. If the number of partitions stays, nothing
    is copied: the new driver resumes where the old driver stopped.

    The operation's document records every step. If the process of a rescale died, the same call resumes it; the result
    is the new or the old state. It can be cancelled until the new driver starts. Does not write the YAML: the decided
    parallelism is kept in a document, and counts until the same field changes in the YAML.

    Parameters
    ----------
    partitions
        State partitions; None keeps them.
    cores
        Cores, as ``resources.cores``; None keeps them.
    executors
        Executors, as ``resources.executors``; None keeps them.
    memory
        JVM heap, as ``resources.memory``; None keeps it.
    on_timeout
        For a job that runs without a failure but has not caught up in time. A failing job always rolls back.
    mode
        ``online`` repartitions a copy of a savepoint while the job runs. The copy replays the job's batches, and the
        job stops only then. ``offline`` stops the job first; so does ``online`` if the copy cannot keep up, and on a
        cluster without free slots. Both end with the same state. Both are the same for a job that does not run, or if
        the number of partitions stays.
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
    params |= {"mode": mode, "reason": reason}
    if executors is not None:
        params["executors"] = executors
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
    _planned: RescalePlan
    # Whether the digests of a copy were equal before the job was stopped. The next copy need not be proved while the
    # job is down: an online rescale can go back from a state that turns out to differ.
    _proved_once = False

    def _precheck(self) -> None:
        # Cancels and stops are checked before the preconditions.
        self._heed()
        stopped = self._stopped_meanwhile()
        if stopped is not None:
            raise stopped
        self._finish_stop()
        self._await_started()
        with self.handle.step(StepName.PRECHECK) as step:
            planned = plan_rescale(self._workspace, self._job, operation=self.handle.id, **self._target())
            approved = self._plan.approved or planned.words
            if planned.words != approved:
                what = f"{self._job}: {planned.words}, and {approved} was approved"
                raise StreamwardenError("RESCALE_NOT_AS_APPROVED", what)
            seen = observe(self._workspace, self._job)
            self._note(seen, planned)
            step.detail = planned.words
            offline = self._offline_because(seen) if planned.repartitions else ""
            self.handle.plan(offline=offline)
            if offline:
                step.detail += f"; offline: {offline}"
            self._planned = planned

    def _spare(self) -> AbstractContextManager[Standby | None]:
        # The standby's JVM starts while the job still runs, works on the state, and finally runs the job.
        # An online rescale works on state while the job runs, and needs no rehearsal of that work.
        state = self._planned.repartitions and self._mode == "offline"
        return standby(self._workspace, with_parallelism(self._spec_now(), self._planned.to), state=state)

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
        if self._plan.stopping and self._is_stopping(observe(self._workspace, self._job)):
            with self.handle.step(StepName.STOP) as step:
                self._stop_driver(step)

    def _prepare_and_switch(self, spare: Standby | None) -> None:
        assert spare is not None
        planned = self._planned
        self._runs_on = observe(self._workspace, self._job).phase.alive
        with self._step(StepName.START_SPARK) as step:
            spare.await_ready(self._heed)
            self._await_slots(spare, step)
        copy = None
        if planned.repartitions and self._mode == "online" and observe(self._workspace, self._job).phase.alive:
            copy = self._prepare_ahead(planned, spare)
        if copy is None:
            self._stop(between=planned.repartitions)
            if planned.repartitions:
                copy = self._copy(planned, spare, self._save(), proved_later=self._can_be_proved_later)
                self._note_proof(copy)
            else:
                self._save_if_any()
        self._switch(planned, copy)

    def _await_slots(self, spare: Standby, step: Step) -> None:
        """Wait for slots of a cluster beside the running job's; without any, the job is stopped first.

        The standby driver is an application of its own, and works on the state with its own executors.
        """
        ahead = self._planned.repartitions and self._mode == "online" and self._runs_on
        if not (ahead and self._workspace.profile.on_cluster):
            return
        missing = spare.missing_executor(_SLOTS_S, self._heed)
        if missing is not None:
            why = f"after {_SLOTS_S:.0f} s beside the job: {missing}"
            self.handle.plan(offline=why)
            step.detail = f"offline: {why}"

    def _offline_because(self, seen: Observation) -> str:
        """Return why the job is stopped first although ``online`` was requested; empty if it is not stopped first."""
        # Reads the requested mode, not the mode of an earlier try: otherwise the next try would drop the reason.
        if self._asked_mode != "online":
            return ""
        assert seen.desired is not None
        bound = self._bound_tables(seen.desired.spec)
        return f"{', '.join(bound)} can't be put back, should a replayed copy differ" if bound else ""

    def _bound_tables(self, spec: JobSpec) -> list[str]:
        """Return the tables and topics that could not be put back.

        These are topics; tables with reading jobs, if they get appended rows or would be rewound; and append tables
        that a restore leaves as they are. Rows of an upsert are overwritten, as a rule.

        The replayed state is proved only after the job has committed a batch on it, so a rollback from there must be
        possible.
        """
        sinks = spec.delta_sinks
        read = readers_of(
            self._workspace, [one.table for one in sinks if one.mode == "append" or one.rewinds], but=self._job
        )
        left = [one.table for one in sinks if one.mode == "append" and one.on_restore == "leave"]
        return sorted({*read, *left, *(f"topic {one.topic}" for one in spec.kafka_sinks)})

    def _target(self) -> dict[str, Any]:
        return {name: self.handle.operation.params.get(name) for name in FIELDS}

    def _note(self, seen: Observation, planned: RescalePlan) -> None:
        """Record what the verdict and a rollback compare with, before any change; forget a killed try's values."""
        last = seen.progress.last if seen.progress else None
        self._note_beginning(seen)
        self.handle.plan(
            was=planned.was,
            over=planned.written,
            to=planned.to,
            critical=[one.rule for one in self._findings(seen)],
            backlog=pending(last) if self._plan.backlog is None else self._plan.backlog,
            proof=None,
            back_base=None,
        )

    def _spec_now(self) -> JobSpec:
        desired = self._documents.desired.read()
        assert desired is not None
        return desired.spec

    def _prepare_ahead(self, planned: RescalePlan, spare: Standby) -> StateCopy | None:
        """Repartition a copy while the job runs, let the copy follow the job, and only then stop the job.

        Return None, with the job running, if the job is too fast for a savepoint or for its copy.
        """
        made = self._save_hot()
        if made is None:
            return None
        copy = self._copy(planned, spare, made)
        self._proved_once = True
        with self._step(StepName.FOLLOW) as step:
            first = copy.batch
            pays = copy.follow()
            step.detail = f"batches {first + 1} to {copy.batch}, {copy.behind} behind"
            if not pays:
                step.detail += ": the job is faster than its copy, and is stopped first"
                return None
        self._stop(between=True)
        with self._step(StepName.FOLLOW_TO_END) as step:
            first = copy.batch
            ahead = copy.follow_to_end(self._spec_now().trigger.interval.total_seconds())
            step.detail = f"batches {first + 1} to {copy.batch}{', by the new query' if ahead else ''}"
        self._note_proof(copy)
        return copy

    def _note_proof(self, copy: StateCopy) -> None:
        proof = copy.proof()
        states = {name: asdict(state) for name, state in proof.items()} if proof else None
        self.handle.plan(proof=states, unproved=copy.proved_later)

    @property
    def _can_be_proved_later(self) -> bool:
        spec = self._spec_now()
        kept_s = spec.state.min_batches_to_retain * spec.trigger.interval.total_seconds()
        return self._proved_once and kept_s >= _PROVED_WITHIN_S

    def _stop(self, *, between: bool) -> None:
        # From here on the driver's end is expected.
        self._runs_on = False
        with self._step(StepName.STOP) as step:
            # The rest of the work on the state is done while the driver ends Spark.
            self._stop_driver(step, query_only=True)
            # Recorded now for a rollback before the driver has ended.
            self._note_stop(observe(self._workspace, self._job))
            if between:
                self._check_between()

    def _await_stop(self) -> Observation:
        seen = super()._await_stop()
        self._note_stop(seen)
        return seen

    def _note_stop(self, seen: Observation) -> None:
        last = seen.progress.last if seen.progress else None
        idle_at = seen.heartbeat.idle_at if seen.heartbeat else None
        # The downtime of an idle job begins with its stop.
        at = max((one for one in (last.at if last else None, idle_at) if one is not None), default=None)
        self.handle.plan(stopped_at=at, backlog=pending(last))

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
        with self._step(StepName.PRE_RESCALE_SAVEPOINT) as step:
            return self._saved(step)

    def _save_hot(self) -> Manifest | None:
        """Take a savepoint of the running job; None if Spark removes files faster than they are copied."""
        with self._step(StepName.PRE_RESCALE_SAVEPOINT) as step:
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

    def _copy(self, planned: RescalePlan, spare: Standby, made: Manifest, *, proved_later: bool = False) -> StateCopy:
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
            # Of a savepoint without rows nothing could be said until then.
            proved_later=proved_later and made.state_rows is not None,
        )
        if self._plan.state_rows is None:
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
        with self._step(StepName.SWITCH) as step:
            self._await_stop()
            self._heed()
            if copy is not None:
                self._check_copy(copy)
            desired, current = self._documents.desired.read(), self._documents.checkpoint.read()
            assert desired is not None and current is not None and self._plan.over is not None
            checkpoint = None
            if copy is not None:
                # Tables that the old checkpoint's driver never put back become the new checkpoint's to put back.
                outputs = with_pending(copy.reference.outputs, current)
                # Records its number of partitions, which overrides the spec's.
                update = {"partitions": planned.to.partitions, "outputs": outputs, "tables": current.tables}
                checkpoint = copy.reference.model_copy(update=update)
            spec = with_parallelism(desired.spec, planned.to)
            self._switch_to(
                InForce(
                    checkpoint=checkpoint,
                    desired=self._wanted(spec, note=planned.words, went_back=desired.went_back),
                    # `over` is the YAML's parallelism at the precheck: a later edit of the YAML takes precedence.
                    parallelism=ParallelismOverride(now=planned.to, over=self._plan.over, by=self._by),
                )
            )
            step.detail = planned.words

    def _before_generation(self, checkpoint: CheckpointRef) -> None:
        """Start the generation with the totals of the previous generation: no input is read again."""
        current = self._documents.checkpoint.read()
        assert current is not None
        totals = self._documents.totals(current.generation).read()
        if totals is not None:
            # Overwrites the totals of an abandoned try: its generation was never in force, and its totals are older.
            generation = checkpoint.generation
            self._documents.totals(generation).write(totals.model_copy(update={"generation": generation}))

    @property
    def _mode(self) -> Mode:
        return "offline" if self._plan.offline else self._asked_mode

    @property
    def _asked_mode(self) -> Mode:
        params = self.handle.operation.params
        return mode_of(str(params.get("mode") or params.get("way") or "offline"))
