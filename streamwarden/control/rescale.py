"""Changing a running job's parallelism, keeping its state, and going back if it is not healthy."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal, NoReturn

from streamwarden.control import running
from streamwarden.control.catching_up import has_caught_up, pending
from streamwarden.control.checkpoint import CheckpointReader
from streamwarden.control.documents import (
    Cancel,
    CheckpointRef,
    Desired,
    ErrorInfo,
    JobDocuments,
    Operation,
    Parallelism,
    Step,
    Supervision,
    Width,
    utc_now,
)
from streamwarden.control.going_back import outputs_before
from streamwarden.control.health.rules import Level
from streamwarden.control.job_operation import JobOperation, is_anothers, is_passing, stopped_since
from streamwarden.control.operation import begin, is_half_way
from streamwarden.control.parallelism import as_before, decide, widened, width_of
from streamwarden.control.rescale_plan import RescalePlan, plan_rescale
from streamwarden.control.savepoints.compat import readers_of
from streamwarden.control.savepoints.manifest import Manifest, Origin
from streamwarden.control.savepoints.take import Report
from streamwarden.control.standby import Standby, standby
from streamwarden.control.state_copy import StateCopy, differing
from streamwarden.control.state_reader import StateAt, read_state
from streamwarden.control.supervision import START_TIMEOUT, Observation, Phase, assess, observe, record_decision
from streamwarden.control.supervision import decide as judge
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError

__all__ = ["OnTimeout", "Way", "cancel", "rescale"]

OnTimeout = Literal["roll back", "hold"]
"""What becomes of a job that is not healthy in time: back to what ran before, or left as it is for a person to see."""

Way = Literal["fast", "plain"]
"""How the state is repartitioned: while the job runs on, or after it was stopped."""

_POLL_S = 0.25

_ENOUGH = 3
"""Batches after which the new driver may count as healthy, if it does not find before that nothing is left to read. 3:
most health rules judge three batches, and what is wrong with a width often shows in the second."""

_LOOK_S = 2.0
"""How often the driver that runs on is looked at, while its rescale is prepared. 2 s, as by its supervisor."""

_UNREAD = "RESCALE_FAILED"

_START = "start"
"""The step from whose beginning on a rescale can't be cancelled: batches may be there that the old job has not seen."""


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
    health_timeout: float = 300,
    report: Report | None = None,
) -> Operation:
    """Change how many state partitions, cores or how much memory a job has.

    Looks first, while the job runs, whether it can, and starts the new driver's JVM beside it. A pre-rescale savepoint
    is taken, a copy of it is repartitioned under a new generation, its state is proved to be the same, the old driver
    stops between batches, the new one takes over, and its health is waited for: batches are committed, the backlog is
    no larger than it was at the stop, and no health rule is critical that was not before. If that does not come, the
    job goes back to the untouched checkpoint, as wide as it was. Without another number of partitions nothing is
    copied: the new driver goes on where the old one stopped.

    Every step is on record in the operation's document. A rescale whose process died goes on when it is called again
    with the same arguments, and ends in the new or in the old state. It can be cancelled until the new driver starts.

    Does not write the YAML. What it decides is kept beside, and counts until somebody changes the same field there.

    Parameters
    ----------
    partitions
        State partitions; None leaves them.
    cores
        Cores, as ``resources.cores``; None leaves them.
    memory
        JVM heap, as ``resources.memory``; None leaves it.
    on_timeout
        For a job that runs without a failure and is only not caught up in time. One that fails always goes back.
    way
        ``fast`` repartitions a copy of a savepoint while the job runs on, and lets the copy follow the job, batch for
        batch, before the job is stopped; ``plain`` stops it first, as ``fast`` does where the copy can't keep up. Both
        end with the same state. Without another number of partitions, or of a job that does not run, they are the same.
    by, reason
        Who and why.
    approved_by
        Who was asked beforehand and has approved it; empty if nobody was. Only kept.
    approved
        What they have approved, as :attr:`~.rescale_plan.RescalePlan.words`: a rescale that would change anything else
        by now is refused. Empty if nobody was asked.
    stop_timeout, health_timeout
        Seconds.
    report
        Told how far it is.

    Raises
    ------
    StreamwardenError
        Before anything was touched: ``JOB_UNKNOWN``, ``CONFIG_INVALID``, ``OPERATION_RUNNING``, or one of
        ``RESCALE_…`` for the first thing that does not fit; ``OPERATION_UNFINISHED`` while another rescale is half way.
        After the job went on as before: ``STOP_TIMED_OUT``, ``SAVEPOINT_…``, ``RESCALE_STATE_DIFFERS``,
        ``RESCALE_FAILED``, ``OPERATION_CANCELLED``, ``RESCALE_UNHEALTHY``. Half way, to be gone on with:
        ``S3_UNREACHABLE``, ``S3_THROTTLED``.
    """
    params: dict[str, Any] = {"partitions": partitions, "cores": cores, "memory": memory, "on_timeout": on_timeout}
    params |= {"way": way, "reason": reason}
    with begin(workspace, job, "rescale", by=by, params=params) as handle:
        # Not among the params: with other ones it is the same rescale, and a resumed one goes by those it was given.
        handle.plan(stop_timeout=stop_timeout, health_timeout=health_timeout)
        if approved_by:
            handle.plan(approved_by=approved_by)
        if approved:
            handle.plan(approved=approved)
        work = _Rescale(workspace, handle, stop_timeout, health_timeout, report)
        with work.failure_on_record():
            return work.run()


def cancel(workspace: Workspace, job: str, *, by: str) -> Operation:
    """Ask a job's rescale to go back; it does so before its next step, and one whose process died when it is resumed.

    Once its new driver starts, its health decides.

    Raises
    ------
    StreamwardenError
        ``OPERATION_NONE`` if no rescale works on the job, nor waits to be resumed; ``OPERATION_TOO_LATE`` if its new
        driver was started.
    """
    found = JobDocuments(workspace.storage, job).operation.read()
    if found is None or found.kind != "rescale" or found.state != "running":
        raise StreamwardenError("OPERATION_NONE", f"{job}: no rescale works on it")
    if any(step.name == _START for step in found.steps):
        raise StreamwardenError("OPERATION_TOO_LATE", f"{job}: rescale {found.id}, at {found.steps[-1].name}")
    documents = JobDocuments(workspace.storage, job)
    documents.cancel.write(Cancel(operation=found.id, by=by, at=utc_now()))
    # The rescale writes that it starts before it looks for this: either it has seen it, or we see that here.
    found = documents.operation.read() or found
    if any(step.name == _START for step in found.steps):
        raise StreamwardenError("OPERATION_TOO_LATE", f"{job}: rescale {found.id}, at {found.steps[-1].name}")
    return found


class _Rescale(JobOperation):
    _runs_on = False
    _looked = 0.0

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
            # Whether it is to go on at all comes before whether it can.
            self._heed()
            self._heed_stop()
            self._finish_stop()
            self._await_started()
            planned = self._precheck()
        except Exception as error:
            self._go_on(error)
            raise
        # Its JVM starts while the job still runs, works on the state, and is the job's in the end.
        # The fast way works on state while the job runs, and needs no rehearsal of that.
        state = planned.repartitions and self._way == "plain"
        with standby(self._workspace, widened(self._desired_before.spec, planned.to), state=state) as spare:
            self._prepare_and_switch(planned, spare)
            return self._start_and_judge(spare)

    def _overtaken(self) -> StreamwardenError | None:
        """Tell what was done since a killed try has switched, so that this one must not go on, but back."""
        stopped, current = stopped_since(self._documents), self._documents.checkpoint.read()
        assert current is not None
        after = self._plan.get("after")
        if stopped is not None or not after or current.generation == after["generation"]:
            return stopped
        # Its last write is missing: on the checkpoint that is in force yet, a supervisor may have let the job run on.
        stands = CheckpointReader(self._workspace.storage, current.path).last_offset()
        if stands == self._plan.get("stands") and not observe(self._workspace, self._job).phase.alive:
            return None
        what = f"{self._job}: the rescale was killed in the midst of its switch, and the job has run on since"
        return StreamwardenError("OPERATION_INTERRUPTED", what)

    # -- until the switch --------------------------------------------------------------------------------------------

    def _heed_stop(self) -> None:
        """Raise if somebody has stopped the job since a killed try looked at it: going on would start it."""
        if self._plan.get("desired") is not None and self._desired_before.state == "running":
            error = stopped_since(self._documents)
            if error is not None:
                raise error

    def _await_started(self) -> None:
        """Wait for a driver that a supervisor has just started after a killed try's stop: it is not unhealthy."""
        if self.handle.resumed:
            with suppress(StreamwardenError):
                running.wait_for(
                    self._workspace,
                    self._job,
                    lambda seen: seen.phase is not Phase.STARTING,
                    timeout=self._health_timeout,
                    what="the driver to run",
                )

    def _finish_stop(self) -> None:
        """Wait for the end of a stop that a killed try has asked for: a job that stops would count as not healthy."""
        if self._stopping and self._is_stopping(observe(self._workspace, self._job)):
            with self.handle.step("stop") as step:
                self._stop_driver(step)

    def _is_stopping(self, seen: Observation) -> bool:
        """Tell whether the driver stops, or will as soon as it finds what it was asked."""
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
            bound = self._bound_tables() if planned.repartitions and self._way == "fast" else []
            self.handle.plan(bound=bound)
            if bound:
                step.detail += f"; the plain way: {', '.join(bound)} can't be put back, should a replayed copy differ"
            return planned

    def _prepare_and_switch(self, planned: RescalePlan, spare: Standby) -> None:
        self._runs_on = observe(self._workspace, self._job).phase.alive
        try:
            with self._step("start Spark"):
                spare.await_ready(self._heed)
            reference = None
            if planned.repartitions and self._way == "fast" and observe(self._workspace, self._job).phase.alive:
                reference = self._prepare_ahead(planned, spare)
            if reference is None:
                self._stop(between=planned.repartitions)
                if planned.repartitions:
                    reference = self._copy(planned, spare).reference
                else:
                    self._save_if_any()
            self._switch(planned, reference)
        except BaseException as error:
            # Ctrl-C, too: the job may be stopped.
            self._go_on(error)
            raise

    def _bound_tables(self) -> list[str]:
        """Return the tables that can't be put back: they have no keys, and other jobs read them.

        What was replayed is proved only once the job has committed a batch on it, so it must be possible to go back
        from there.
        """
        sinks = [sink.table for sink in self._desired_before.spec.sinks if sink.rewinds]
        return sorted(readers_of(self._workspace, sinks, but=self._job))

    def _target(self) -> dict[str, Any]:
        return {name: self.handle.operation.params[name] for name in ("partitions", "cores", "memory")}

    def _keep_way_back(self, seen: Observation, planned: RescalePlan) -> None:
        # What it takes to go back, kept before there is anything to go back from.
        assert seen.desired is not None
        before, parallelism = self._documents.checkpoint.read(), self._documents.parallelism.read()
        assert before is not None
        last = seen.progress.last if seen.progress else None
        self.handle.plan(
            desired=seen.desired.model_dump(mode="json"),
            before=before.model_dump(mode="json"),
            parallelism=parallelism.model_dump(mode="json") if parallelism else None,
            was=planned.was.model_dump(mode="json"),
            to=planned.to.model_dump(mode="json"),
            critical=[one.rule for one in self._findings(seen)],
            backlog=self._plan.get("backlog", pending(last)),
            # Of a copy that a killed try has made, and this one does not use; and of its switch, which never came.
            proof=None,
            width=None,
        )

    def _prepare_ahead(self, planned: RescalePlan, spare: Standby) -> CheckpointRef | None:
        """Repartition a copy while the job runs on, let it follow, and stop the job only then.

        Return None, with the job running, if the copy does not catch up with it.
        """
        copy = self._copy(planned, spare)
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
        return copy.reference

    def _stop(self, *, between: bool) -> None:
        # From here on its end is wanted.
        self._runs_on = False
        self.handle.plan(stopping=True)
        with self._step("stop") as step:
            # What is left for the state to be moved is done while the driver ends Spark.
            self._stop_driver(step, query_only=True)
            if between:
                self._check_between()

    def _await_stop(self) -> None:
        """Wait until the driver has gone, with its lease, and keep where it stopped: all is written by now."""
        seen = running.await_stop(self._workspace, self._job, self._stop_timeout)
        last = seen.progress.last if seen.progress else None
        idle_at = seen.heartbeat.idle_at if seen.heartbeat else None
        # An idle job is missed from its stop on.
        at = max((one for one in (last.at if last else None, idle_at) if one is not None), default=None)
        self.handle.plan(stopped_at=at.isoformat() if at else None, backlog=pending(last))

    def _check_between(self) -> None:
        """Refuse another generation behind a driver that died in the midst of a batch: under its own it is done once.

        Its tables may have the batch already, and under another generation they would take it once more.
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
            made = self._take_and_hold(Origin.PRE_RESCALE)
            self.handle.plan(state_rows=made.state_rows)
            step.detail = f"{made.id} at batch {made.batch}"
            return made

    def _save_if_any(self) -> None:
        """Take the savepoint of a job that needs none to start from: it may have committed no batch yet."""
        try:
            self._save()
        except StreamwardenError as error:
            if error.code != "SAVEPOINT_NOTHING":
                raise
            self.handle.plan(savepoint=None)

    def _copy(self, planned: RescalePlan, spare: Standby) -> StateCopy:
        copy = StateCopy(
            self._workspace,
            self._job,
            self.handle.id,
            self._save(),
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
            # The driver ended before it had told of its last batch.
            self.handle.plan(state_rows=copy.rows)
        return copy

    def _switch(self, planned: RescalePlan, reference: CheckpointRef | None) -> None:
        with self._step("switch") as step:
            self._await_stop()
            self._heed()
            before = self._desired_before
            spec = widened(before.spec, planned.to)
            current = self._documents.checkpoint.read()
            assert current is not None
            base = (
                reference.base_batch
                if reference is not None
                else CheckpointReader(self._workspace.storage, current.path).last_commit()
            )
            after = reference.model_copy(update={"partitions": planned.to.partitions}) if reference else None
            # Now, as it reads the YAML: whatever is wrong with that shall be found while the job is as it was.
            width = decide(self._workspace, self._job, planned.to, by=self._by)
            self.handle.plan(
                width=width.model_dump(mode="json"),
                base=base,
                generation=(after or current).generation,
                after=after.model_dump(mode="json") if after else None,
                stands=CheckpointReader(self._workspace.storage, current.path).last_offset(),
            )
            if after is not None:
                # With its number of partitions, which counts over the spec's: so the driver meets what fits, whichever
                # of the following writes is the last one before a crash.
                was = current.model_copy(update={"partitions": planned.was.partitions})
                self._decide(self._documents.checkpoint, was)
            running.forgive(self._workspace, self._job, why=planned.words)
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
        # After the desired state: of a switch that was cut off before that, a deploy shall see nothing.
        self._decide(self._documents.parallelism, Parallelism.model_validate(self._plan["width"]))
        if not self._plan.get("after"):
            return
        after, current = CheckpointRef.model_validate(self._plan["after"]), self._documents.checkpoint.read()
        if current is None or current.generation != after.generation:
            self._decide(self._documents.checkpoint, after)

    def _switched(self) -> bool:
        desired = self._documents.desired.read()
        return desired is not None and desired.operation == self.handle.id

    @property
    def _half_way(self) -> bool:
        return is_half_way(self.handle.operation)

    def _go_on(self, error: BaseException) -> None:
        """Start the job as it was, after what failed before the switch; go back, after what failed in its midst."""
        if (self._half_way and is_passing(error)) or is_anothers(error):
            # Somebody else performs it now, or is to go on with it.
            return
        if self._switched():
            if isinstance(error, (OSError, StreamwardenError)):
                # Half of the switch is done, or all of it, and its answer was lost.
                self._roll_back(_told(error))
            # Ended from outside, and killed in seconds: gone on with by whoever repeats it.
            return
        self._release()
        seen = observe(self._workspace, self._job)
        # What is wanted of the job now: nothing was decided yet, and others may have, since a killed try asked to stop.
        wanted = seen.desired is not None and seen.desired.state == "running"
        if not (self._stopping and wanted) or (seen.phase.alive and not self._is_stopping(seen)):
            return
        with suppress(StreamwardenError):
            # One that is launched before finds the lease held by a driver that lives, and gives up.
            running.await_stop(self._workspace, self._job, self._stop_timeout)
        running.start(self._workspace, self._job, by=self._by, reason="its rescale failed before the switch")

    # -- after it ----------------------------------------------------------------------------------------------------

    def _start_and_judge(self, spare: Standby | None = None) -> Operation:
        begun = any(step.name == _START for step in self.handle.operation.steps)
        try:
            with self.handle.step(_START) as step:
                if not begun:
                    # It may have been cancelled while it switched. Not later: from here on a cancel is refused.
                    self._heed()
                seen = observe(self._workspace, self._job)
                if seen.phase.alive:
                    step.detail = f"{seen.incarnation} runs already"
                else:
                    step.detail = running.start(
                        self._workspace, self._job, by=self._by, reason=self._reason or "rescale", spare=spare
                    )
            deadline = time.monotonic() + self._health_timeout
            with self.handle.step("first batch") as step:
                step.detail = self._await_first_batch()
                # While its first batch is among those that its progress holds: catching up may take hours, and a killed
                # try may have seen it then.
                if "downtime_s" not in self._plan:
                    self._note_downtime(observe(self._workspace, self._job))
            deadline += self._prove_replayed()
            with self.handle.step("catch up") as step:
                step.detail = self._await_caught_up(deadline)
        except (OSError, StreamwardenError) as error:
            if is_passing(error):
                # The job is not to blame: whoever goes on with it judges.
                raise
            self._roll_back(_told(error))
        self._release()
        return self.handle.end("done")

    def _await_first_batch(self) -> str:
        try:
            return running.await_health(
                self._workspace,
                self._job,
                generation=self._plan["generation"],
                base=self._plan["base"],
                timeout=self._health_timeout,
                say=self._say,
            )
        except StreamwardenError as error:
            seen = observe(self._workspace, self._job)
            failures = seen.heartbeat.failures if seen.heartbeat else 0
            if error.code != "DRIVER_DID_NOT_START" or not self._holds(seen) or failures:
                raise
            # After a long way its first batch is a large one.
            return f"none yet: {error.what}"

    def _holds(self, seen: Observation) -> bool:
        return self.handle.operation.params["on_timeout"] == "hold" and seen.phase is Phase.RUNNING

    def _prove_replayed(self) -> float:
        """Compare the state at which the job was stopped with that of the copy, which has come there by replaying.

        Only now, when nobody waits for it. Rows and watermark were compared after each of those batches. Where a state
        can't be read any more, that is on record, and no verdict. The job's end meanwhile is seen: nobody else restarts
        it.

        Returns
        -------
        float
            What it took, seconds.
        """
        if not self._plan.get("proof"):
            return 0.0
        started = time.monotonic()

        def heed() -> None:
            self._see_it_live(time.monotonic() + self._health_timeout)

        with self.handle.step("digest at the stop") as step:
            asked = {name: StateAt(**state) for name, state in self._plan["proof"].items()}
            try:
                found = read_state(self._workspace, asked, code=_UNREAD, heed=heed)
            except StreamwardenError as error:
                if error.code != _UNREAD:
                    raise
                found = {name: {"error": error.what} for name in asked}
            wrong = [f"{asked[name]}: {answer['error']}" for name, answer in found.items() if "error" in answer]
            if wrong:
                step.detail = f"not compared: {'; '.join(wrong)}"
            elif stores := differing(found["job"]["digests"], found["copy"]["digests"]):
                what = f"{self._job}: {', '.join(stores)}, after batch {asked['job'].batch} was replayed"
                raise StreamwardenError("RESCALE_STATE_DIFFERS", what)
            else:
                step.detail = f"the same after batch {asked['job'].batch}"
        return time.monotonic() - started

    def _await_caught_up(self, deadline: float) -> str:
        """Wait until the backlog is what it was and nothing is newly wrong; return by what."""
        known, backlog = set(self._plan["critical"]), self._plan["backlog"]
        while True:
            seen = self._see_it_live(deadline)
            if "downtime_s" not in self._plan:
                self._note_downtime(seen)
            recent = seen.progress.recent if seen.progress else []
            last = recent[-1] if recent else None
            left = pending(last)
            wrong = [f"{one.rule}: {one.what}" for one in self._findings(seen) if one.rule not in known]
            idle = seen.heartbeat is not None and seen.heartbeat.idle
            if last is None and not idle:
                # Its first try fails, or its progress could not be written, which says what is left.
                wrong.append("a batch without progress")
            over = time.monotonic() >= deadline
            what = f"{left} left to read, {backlog or 0} before"
            if not wrong and (idle or has_caught_up(recent, backlog or 0)):
                # Of a job whose batches are long apart fewer are enough.
                if idle or over or len(recent) >= _ENOUGH:
                    return "nothing is left to read" if idle or not left else what
                what = f"{len(recent)} of {_ENOUGH} batches committed"
            what = "; ".join(wrong) or what
            self._say(what)
            if over:
                if self._holds(seen):
                    return f"held as asked, though not healthy in time: {what}"
                raise StreamwardenError("RESCALE_SLOW", what)
            time.sleep(_POLL_S)

    def _see_it_live(self, deadline: float) -> Observation:
        """Observe the job, also where the store is away until then; raise what its driver ended by."""
        seen = running.observe_by(self._workspace, self._job, deadline)
        if not seen.phase.alive:
            raise seen.error.to_exception() if seen.error else StreamwardenError("DRIVER_DIED", seen.reason)
        return seen

    def _roll_back(self, error: StreamwardenError) -> NoReturn:
        """Put what ran before in force again, and raise.

        Raises
        ------
        StreamwardenError
            ``RESCALE_UNHEALTHY``, always.
        """
        # First of all on record: whoever goes on after a crash must go on back, and not try the new width again.
        self.handle.plan(failure=ErrorInfo.of(error).model_dump(mode="json"))
        with self.handle.step("roll back") as step:
            if self._switched():
                running.end_driver(self._workspace, self._job, by=self._by, reason=f"rescale failed: {error.code}")
                self.handle.plan(way=self._put_back(error))
            way = self._plan.get("way", "")
            desired = self._documents.desired.read()
            to_run = desired is not None and desired.state == "running"
            step.detail = f"{way}: {self._start_again()}" if to_run else f"{way}; suspended"
        if to_run:
            self._await_health_of_before()
        self._release()
        record_decision(self._workspace, self._job, "roll back", f"{error.code}: {error.what}")
        self.handle.end("rolled back", error)
        raise StreamwardenError(
            "RESCALE_UNHEALTHY", f"{self._job}: {error.code}: {error.what}\n  Back: {self._plan.get('way', '')}"
        ) from error

    def _put_back(self, error: StreamwardenError) -> str:
        """Put checkpoint and width of before in force; return how, in words. Can be repeated."""
        reference = self._documents.checkpoint.read()
        before = CheckpointRef.model_validate(self._plan["before"])
        assert reference is not None
        note = f"its rescale failed: {error.code}"
        if reference.generation == before.generation:
            # Only cores or memory were changed, which have no part in results; or a killed try has put it back.
            self._put_documents_back(note=note)
            if self._plan.get("after"):
                return f"{before.path}, generation {before.generation}"
            return "the job goes on where it is, as wide as before"
        sinks = self._desired_before.spec.sinks
        outputs, stuck = outputs_before(
            self._workspace, self._job, sinks, generation=reference.generation, base=reference.base_batch
        )
        if stuck:
            # Put back, these tables would break their readers; left, they would have replayed rows twice. The state is
            # the same in either number of partitions, so it stays where it is.
            was = Width.model_validate(self._plan["was"])
            width = was.model_copy(update={"partitions": self._plan["to"]["partitions"]})
            # Over what it said at the switch. Not read again: a slip in the YAML must not hold up a way back.
            decided = Parallelism.model_validate(self._plan["width"]).model_copy(update={"now": width})
            self._decide(self._documents.parallelism, decided)
            self._decide(self._documents.desired, self._desired_back(width, note=note))
            return (
                f"{', '.join(stuck)} can't be put back under readers, so the new number of partitions stays;"
                " cores and memory are as before"
            )
        self._decide(
            self._documents.checkpoint,
            # Its own generation: what its last batch in flight has written, it has written under this id.
            # With its number of partitions, as at the switch: a driver may be started before the spec is put back.
            before.model_copy(
                update={
                    "highest": reference.highest,
                    "outputs": outputs,
                    "fenced": False,
                    "partitions": self._plan["was"]["partitions"],
                }
            ),
        )
        self._put_documents_back(note=note)
        tables = f", {', '.join(one.table for one in outputs)} put back" if outputs else ""
        return f"{before.path}, generation {before.generation}{tables}"

    def _put_documents_back(self, *, note: str) -> None:
        width = as_before(self._workspace, self._job, self._plan.get("parallelism"), by=self._by)
        if width is not None:
            self._decide(self._documents.parallelism, width)
        self._decide(self._documents.desired, self._desired_back(width_of(self._desired_before.spec), note=note))

    def _desired_back(self, width: Width, *, note: str) -> Desired:
        """Return what is wanted of the job without this rescale: all but the width as others want it by now.

        A person may have stopped it, or deployed something else, after a try was killed.
        """
        before, found = self._desired_before, self._documents.desired.read()
        assert found is not None
        spec = widened(found.spec, width)
        to_run = found.state == before.state == "running"
        return found.model_copy(
            update={
                "state": "running" if to_run else "suspended",
                "spec": spec,
                "digest": spec.digest(),
                "operation": before.operation,
                "updated_at": utc_now(),
                "updated_by": before.updated_by if found.updated_by == self._by else found.updated_by,
                "note": note,
            }
        )

    def _await_health_of_before(self) -> None:
        reference = self._documents.checkpoint.read()
        assert reference is not None
        base = CheckpointReader(self._workspace.storage, reference.path).last_commit()
        with self.handle.step("wait for health after the way back") as step:
            try:
                step.detail = running.await_health(
                    self._workspace,
                    self._job,
                    generation=reference.generation,
                    base=base,
                    # The new one's time may have been what was too short. A start is given its time here.
                    timeout=max(self._health_timeout, START_TIMEOUT.total_seconds()),
                    say=self._say,
                )
                self._note_downtime(observe(self._workspace, self._job))
            except StreamwardenError as error:
                if error.code == "OPERATION_INTERRUPTED":
                    raise
                # There is nothing further to go back to; the supervisor has it from here.
                step.detail = f"not healthy either: {error.code}: {error.what}"

    # -- shared ------------------------------------------------------------------------------------------------------

    def _note_downtime(self, seen: Observation) -> None:
        """Keep how long the job was away: from its last batch, or its stop, to the first batch after it.

        Or to the moment when it looked for one in vain: a source without news has missed nothing.
        """
        if self._desired_before.state != "running":
            # Nobody waited for it.
            return
        stopped = self._plan.get("stopped_at")
        recent = seen.progress.recent if seen.progress else []
        back = recent[0].at if recent else seen.heartbeat.idle_at if seen.heartbeat else None
        if stopped is not None and back is not None:
            took = (back - datetime.fromisoformat(stopped)).total_seconds()
            self.handle.plan(downtime_s=round(took, 2))

    def _findings(self, seen: Observation) -> list[Any]:
        memory = self._documents.supervision.read() or Supervision()
        health = assess(seen, memory, judge(seen, memory))
        return [one for one in health.findings if one.level is Level.CRITICAL and one.rule != "restarts"]

    def _step(self, name: str) -> AbstractContextManager[Step]:
        self._heed()
        return self.handle.step(name)

    def _heed(self) -> None:
        """Raise if somebody has cancelled this operation, or the driver that was to run on meanwhile has ended."""
        self._see_it_run_on()
        asked = self._documents.cancel.read()
        if asked is not None and asked.operation == self.handle.id:
            raise StreamwardenError("OPERATION_CANCELLED", f"{self._job}: rescale {self.handle.id}, by {asked.by}")

    def _see_it_run_on(self) -> None:
        # Nobody else restarts it while an operation works on the job, and preparing may take long.
        if not self._runs_on or time.monotonic() < self._looked + _LOOK_S:
            return
        self._looked = time.monotonic()
        seen = observe(self._workspace, self._job)
        if seen.phase in (Phase.DEAD, Phase.FAILED, Phase.STOPPED):
            what = f"{self._job}: its driver ended meanwhile: {seen.reason}"
            raise StreamwardenError("RESCALE_NOT_HEALTHY", what)

    @property
    def _stopping(self) -> bool:
        """Whether the driver was asked to stop: from then on the job is started again, whatever fails."""
        return bool(self._plan.get("stopping"))

    @property
    def _desired_before(self) -> Desired:
        return Desired.model_validate(self._plan["desired"])

    @property
    def _way(self) -> str:
        return "plain" if self._plan.get("bound") else str(self.handle.operation.params.get("way", "plain"))


def _told(error: Exception) -> StreamwardenError:
    return error if isinstance(error, StreamwardenError) else StreamwardenError("OPERATION_FAILED", str(error))
