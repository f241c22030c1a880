"""The workflow of restores, rollouts and rescales: one order of steps, one switch, and one way to roll back.

precheck, then the operation's own preparation with the stop and the savepoint, then switch, start and verify. After a
kill at any write, another process can repeat each part. Until the switch, the job is started again as it was. From the
switch on, the plan has all values to finish or to roll back.

Source: the saga pattern (Garcia-Molina and Salem, 1987), with the recorded plan as its log.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar, NoReturn, TypeVar

from streamwarden.errors import OUTAGES, ErrorCode, StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.operation import InForce, Operation, OperationPlan, OperationState, Step, StepName
from streamwarden.model.record import Decided, ErrorInfo, utc_now
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, Desired
from streamwarden.operations.repair_documents import used_generations
from streamwarden.runtime.operation_lock import OperationHandle
from streamwarden.runtime.standby import Standby
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.savepoints.take import Report, take
from streamwarden.store.documents import Document, JobDocuments
from streamwarden.store.effective_spec import as_before
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import record_decision
from streamwarden.supervision.observe import Observation, Phase, observe
from streamwarden.supervision.silence import Silence

__all__ = ["Interrupted", "JobOperation", "is_anothers", "is_passing", "named", "stopped_since"]

_log = logging.getLogger(__name__)

D = TypeVar("D", bound=Decided)


def is_passing(error: BaseException | None) -> bool:
    """Return whether an error is not the job's: another process performs the operation, or the store has an outage."""
    return is_anothers(error) or (isinstance(error, StreamwardenError) and error.code in OUTAGES)


class Interrupted(Exception):
    """The process of an operation is ended from outside: the operation has not failed, and the next try resumes it."""


def is_anothers(error: BaseException | None) -> bool:
    """Return whether an error means that another process has taken over the operation."""
    return isinstance(error, StreamwardenError) and error.code == "OPERATION_INTERRUPTED"


def named(error: Exception) -> StreamwardenError:
    """Return an error of an operation as a catalogued error: ``OPERATION_FAILED`` if it has no code of its own."""
    if isinstance(error, StreamwardenError):
        return error
    words = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return StreamwardenError("OPERATION_FAILED", words)


def stopped_since(documents: JobDocuments) -> StreamwardenError | None:
    """Return the error that names who stopped a job since a killed try started it; None if it was not stopped."""
    desired = documents.desired.read()
    if desired is None or desired.state == "running":
        return None
    return StreamwardenError("OPERATION_CANCELLED", f"{desired.job}: it was stopped since, by {desired.updated_by}")


class JobOperation(ABC):
    """An operation that stops a job and starts it in another way.

    Parameters
    ----------
    workspace, handle
        The workspace, and the operation's record.
    stop_timeout, health_timeout
        Seconds.
    report
        Called with the progress.
    """

    unhealthy: ClassVar[ErrorCode]
    """The code of the error that reports a rollback."""

    def __init__(
        self,
        workspace: Workspace,
        handle: OperationHandle,
        stop_timeout: float,
        health_timeout: float,
        report: Report | None,
    ) -> None:
        self.handle = handle
        self._workspace = workspace
        self._job = handle.operation.job
        self._documents = JobDocuments(workspace.storage, self._job)
        self._stop_timeout = stop_timeout
        self._health_timeout = health_timeout
        self._report = report
        self._silence = Silence()

    # -- the order of steps ------------------------------------------------------------------------------------------

    def run(self) -> Operation:
        """Perform the operation, or resume it where a process that died has left it.

        Raises
        ------
        StreamwardenError
            Before the switch: the failed step's error, with the job as it was. After it: :attr:`unhealthy`, with the
            job rolled back.
        """
        if self._plan.failure is not None:
            self._roll_back(self._plan.failure.to_exception())
        if self._switched():
            overtaken = self._overtaken()
            if overtaken is not None:
                self._roll_back(overtaken)
            with self._recovering():
                self._put_in_force()
            return self._start_and_judge()
        with self._recovering():
            self._precheck()
        with self._spare() as spare:
            with self._recovering():
                self._prepare_and_switch(spare)
            return self._start_and_judge(spare)

    @abstractmethod
    def _precheck(self) -> None:
        """Check the preconditions while the job runs, and record what a rollback needs to know of it."""

    def _spare(self) -> AbstractContextManager[Standby | None]:
        """Return a standby driver for the time of the operation; none by default."""
        return nullcontext()

    @abstractmethod
    def _prepare_and_switch(self, spare: Standby | None) -> None:
        """Stop the job, take a savepoint, make what the job will start from, and call :meth:`_switch_to`."""

    def _before_start(self) -> None:  # noqa: B027 - a hook
        """Do what must be done between the switch and the start; nothing by default."""

    def _verify(self) -> None:
        """Wait until the started job is healthy.

        Raises
        ------
        StreamwardenError
            Why it is not: it is rolled back.
        """
        with self.handle.step(StepName.WAIT_FOR_HEALTH) as step:
            step.detail = self._await_health()

    def _await_health(self) -> str:
        return driver_control.await_health(
            self._workspace,
            self._job,
            generation=self._plan.generation,
            base=self._plan.base,
            timeout=self._health_timeout,
            say=self._say,
            may_wait=bool(self._plan.waits),
        )

    @abstractmethod
    def _undo(self, error: StreamwardenError) -> str:
        """Put in force what was in force before, and say what that is. Can be repeated."""

    def _before_start_again(self, *, rolled_back: bool) -> None:  # noqa: B027 - a hook
        """Record what is needed before the job starts as it was; nothing by default."""

    def _after_start_again(self) -> None:  # noqa: B027 - a hook
        """Follow a job that was started as it was; does nothing by default."""

    # -- the switch --------------------------------------------------------------------------------------------------

    def _switch_to(self, after: InForce) -> None:
        """Record what is in force and what is to be, and put it in force. The job must be stopped.

        Raises
        ------
        StreamwardenError
            ``OPERATION_CANCELLED`` if the job was stopped since the operation began; ``OPERATION_FAILED`` if it runs.
        """
        stopped = self._stopped_meanwhile()
        if stopped is not None:
            raise stopped
        seen = observe(self._workspace, self._job)
        if seen.phase.alive:
            # By a supervisor that had seen it down before this began, or to which this seemed dead in an outage.
            what = f"{self._job}: driver {seen.incarnation} was started although the {self._kind} had stopped the job"
            raise StreamwardenError("OPERATION_FAILED", what)
        before = self._in_force()
        base = None
        if after.checkpoint is not None:
            base = after.checkpoint.base_batch
        elif before.checkpoint is not None:
            base = self._reader(before.checkpoint).last_commit()
        self.handle.plan(before=before, after=after, base=base)
        self._put_in_force()

    def _put_in_force(self) -> None:
        """Write the documents of the switch. Can be repeated by a process that resumes after a kill between two writes.

        The checkpoint comes first: it has its state's number of partitions, which overrides the spec's. So number and
        state fit if a supervisor starts the job in between. The first document written names this operation, so that
        :meth:`_switched` is true from the first write on.
        """
        after, now = self._after, self._in_force()
        assert after.desired is not None
        if after.checkpoint is not None and (now.checkpoint is None or now.checkpoint.operation != self.handle.id):
            self._before_generation(after.checkpoint)
            self._decide(self._documents.checkpoint, after.checkpoint)
        if now.desired is None or now.desired.operation != self.handle.id:
            driver_control.forgive(self._workspace, self._job, why=after.desired.note or self._kind)
            self._decide(self._documents.desired, after.desired)
        if after.parallelism is not None and (now.parallelism is None or now.parallelism.by != after.parallelism.by):
            self._decide(self._documents.parallelism, after.parallelism)

    def _before_generation(self, checkpoint: CheckpointRef) -> None:  # noqa: B027 - a hook
        """Do what must be done before a new checkpoint is in force; nothing by default."""

    def _in_force(self) -> InForce:
        documents = self._documents
        return InForce(
            checkpoint=documents.checkpoint.read(),
            desired=documents.desired.read(),
            parallelism=documents.parallelism.read(),
        )

    def _switched(self) -> bool:
        """Return whether a document of the switch is in force."""
        current, desired = self._documents.checkpoint.read(), self._documents.desired.read()
        return (current is not None and current.operation == self.handle.id) or (
            desired is not None and desired.operation == self.handle.id
        )

    def _wanted(self, spec: JobSpec, *, state: str = "running", note: str = "", went_back: bool = False) -> Desired:
        """Return the desired state for the switch, which names this operation."""
        return Desired.model_validate(
            {
                "job": self._job,
                "state": state,
                "spec": spec,
                "digest": spec.digest(),
                "profile": self._workspace.profile.name,
                "updated_at": utc_now(),
                "updated_by": self._by,
                "note": self._reason or note,
                "operation": self.handle.id,
                "went_back": went_back,
            }
        )

    def _overtaken(self) -> StreamwardenError | None:
        """Return why a resumed operation must roll back instead of continuing: somebody has stopped the job since."""
        after, before, found = self._plan.after, self._plan.before, self._documents.desired.read()
        if after is not None and after.desired is not None and after.desired.state != "running":
            return None
        was = before.desired if before is not None else None
        if found is None or (found.operation != self.handle.id and was is not None and was.state != "running"):
            # The switch was cut off before it wrote the desired state, and the job was not to run before.
            return None
        return stopped_since(self._documents)

    def _stopped_meanwhile(self) -> StreamwardenError | None:
        """Return who has stopped the job since the operation began; None if nobody has."""
        return stopped_since(self._documents) if self._plan.was_running else None

    # -- start and verify --------------------------------------------------------------------------------------------

    def _start_and_judge(self, spare: Standby | None = None) -> Operation:
        try:
            self._before_start()
            if self._after.desired is not None and self._after.desired.state == "running":
                with self.handle.step(StepName.START) as step:
                    self._start(step, spare)
                self._verify()
        except Exception as error:
            if is_passing(error) or isinstance(error, Interrupted):
                # The error says nothing about the job: the process that resumes the operation judges.
                raise
            self._roll_back(named(error))
        self._release()
        return self.handle.end(OperationState.DONE)

    def _start(self, step: Step, spare: Standby | None) -> None:
        """Start the driver, unless a killed try or a supervisor has started it as the switch says."""
        seen = observe(self._workspace, self._job)
        # The desired state as it is now: a deploy over a dead driver may have changed the spec since the switch.
        if seen.phase.alive and self._runs(seen, self._after.model_copy(update={"desired": seen.desired})):
            incarnation = seen.incarnation or ""
            step.detail = f"{incarnation} runs already"
        else:
            if seen.phase.alive:
                # A supervisor started it between two writes of the switch: with the old spec on the new checkpoint.
                self._end_driver(f"{self._kind}: started during the switch")
            incarnation = driver_control.start(
                self._workspace, self._job, by=self._by, reason=self._start_reason, spare=spare
            )
            step.detail = incarnation
        self.handle.plan(incarnation=incarnation)

    @property
    def _start_reason(self) -> str:
        return self._reason or self._kind

    def _runs(self, seen: Observation, wanted: InForce | None) -> bool:
        """Return whether a living driver was started with a spec, and on a checkpoint."""
        if wanted is None or wanted.desired is None or seen.incarnation is None:
            return False
        launched = self._documents.launch(seen.incarnation).read()
        # A driver does not say its generation before it has the lease.
        spoken = seen.heartbeat.generation if seen.heartbeat else 0
        fits = wanted.checkpoint is None or spoken in (0, wanted.checkpoint.generation)
        return fits and launched is not None and launched.digest == wanted.desired.digest

    # -- failures ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Recover from whatever fails inside, and raise it on."""
        try:
            yield
        except BaseException as error:
            # Also on Ctrl-C: the job may be stopped already.
            self._recover(error)
            raise

    def _recover(self, error: BaseException) -> None:
        """Start the job as it was, after a failure before the switch; roll back, after a failure during the switch."""
        if is_anothers(error) or (self._half_way and is_passing(error)):
            # Another process performs the operation now, or will resume it.
            return
        # Read only if a switch is possible: a store outage here must not hide the original failure.
        if self._half_way and self._switched():
            if isinstance(error, Exception) and not isinstance(error, Interrupted):
                # The switch is done in part, or in full with a lost answer.
                self._roll_back(named(error))
            # This process is ended from outside, and will be killed in seconds: a repeated call resumes the operation.
            return
        # Failures from here on must not hide the original failure. The start comes first: a supervisor may be down.
        with self._noted("is not started again"):
            self._start_as_before(error)
        with self._noted("keeps its savepoint in use"):
            self._release()

    def _start_as_before(self, error: BaseException) -> None:
        """Start the job again as it was, if this operation has stopped it."""
        seen = observe(self._workspace, self._job)
        # Reads the current desired state: this operation has not changed it, but a person may have stopped the job.
        wanted = seen.desired is not None and seen.desired.state == "running"
        if not (self._plan.stopping and self._plan.was_alive and wanted):
            return
        if seen.phase.alive and not self._is_stopping(seen):
            return
        # A process that is ended from outside will be killed in seconds.
        waits = isinstance(error, Exception) and not isinstance(error, Interrupted)
        with self.handle.step(StepName.START_AGAIN) as step:
            try:
                # Waits for the stop first: a driver launched earlier finds the lease held, and gives up.
                self._await_stop()
            except StreamwardenError as late:
                if is_anothers(late):
                    raise
                waits = False
            self._before_start_again(rolled_back=False)
            reason = f"its {self._kind} failed before the switch"
            step.detail = driver_control.start(self._workspace, self._job, by=self._by, reason=reason)
        if waits:
            self._after_start_again()

    def _roll_back(self, error: StreamwardenError) -> NoReturn:
        """Put the old state in force again, start the job on it, and raise. Can be repeated.

        Raises
        ------
        StreamwardenError
            :attr:`unhealthy`, always.
        """
        # Recorded first: after a crash or an outage, the next try must continue the rollback, and not try again.
        self.handle.plan(failure=ErrorInfo.of(error))
        with self.handle.step(StepName.ROLL_BACK) as step:
            if self._switched():
                seen = observe(self._workspace, self._job)
                # A killed try may have started the job as before; that driver is the right one.
                if not (seen.phase.alive and self._runs(seen, self._plan.before)):
                    self._end_driver(f"{self._kind} failed: {error.code}")
                self.handle.plan(undone=self._undo(error))
            undone, desired = self._plan.undone, self._documents.desired.read()
            to_run = desired is not None and desired.state == "running"
            if to_run:
                self._before_start_again(rolled_back=True)
            step.detail = f"{undone}: {self._start_again()}" if to_run else f"{undone}; suspended"
        if to_run:
            self._after_start_again()
        self._release()
        record_decision(self._workspace, self._job, "roll back", f"{error.code}: {error.what}")
        self.handle.end(OperationState.ROLLED_BACK, error)
        what = f"{self._job}: {error.code}: {error.what}\n  Rolled back: {self._plan.undone}{self._caveat()}"
        raise StreamwardenError(self.unhealthy, what) from error

    def _caveat(self) -> str:
        """Return what a rollback could not undo; empty by default."""
        return ""

    def _write_back(
        self,
        checkpoint: CheckpointRef | None,
        *,
        error: StreamwardenError,
        before: InForce,
        spec: JobSpec | None = None,
        went_back: bool = False,
    ) -> None:
        """Put old documents in force again: the checkpoint first, and the mark of this operation's switch last.

        Parameters
        ----------
        checkpoint
            None leaves the checkpoint that is in force.
        spec
            The spec to put in force; None: the one from before the switch.
        """
        if checkpoint is not None:
            self._decide(self._documents.checkpoint, checkpoint)
        parallelism = as_before(self._workspace, self._job, before.parallelism, by=self._by)
        if parallelism is not None:
            self._decide(self._documents.parallelism, parallelism)
        was, found = before.desired, self._documents.desired.read()
        if was is None or found is None:
            return
        # A person may have stopped the job since.
        state = "running" if was.state == found.state == "running" else "suspended"
        note = f"its {self._kind} failed: {error.code}"
        update = {"state": state, "updated_at": utc_now(), "note": note, "went_back": went_back or was.went_back}
        if spec is not None:
            update |= {"spec": spec, "digest": spec.digest()}
        self._decide(self._documents.desired, was.model_copy(update=update))

    @contextmanager
    def failure_on_record(self) -> Iterator[None]:
        """Record a failed operation as failed, unless it has already ended or another process has taken it over.

        Raises
        ------
        StreamwardenError
            The original error; ``OPERATION_FAILED`` for system errors and all other exceptions.
        """
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            failure = named(error)
            # If the error is retryable, an operation that is half way stays open: a repeated call resumes it.
            left = self._half_way and failure.retryable
            if self.handle.operation.state == OperationState.RUNNING and not is_anothers(failure) and not left:
                self.handle.end(OperationState.FAILED, failure)
            raise failure from error

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Log a failure and continue: the failure must not hide the error that is being handled."""
        try:
            yield
        except (OSError, StreamwardenError) as error:
            _log.warning("%s, %s %s: %s: %s", self._job, self._kind, self.handle.id, what, error)

    # -- shared by the steps -----------------------------------------------------------------------------------------

    @property
    def _half_way(self) -> bool:
        """Whether the operation may have changed the job, judged by its plan alone: an outage hides all else."""
        return self._plan.after is not None or self._plan.failure is not None

    @property
    def _before(self) -> InForce:
        return self._recorded(self._plan.before)

    @property
    def _after(self) -> InForce:
        return self._recorded(self._plan.after)

    def _recorded(self, part: InForce | None) -> InForce:
        """Return a recorded part of the plan.

        Raises
        ------
        StreamwardenError
            ``OPERATION_UNFINISHED`` if another version of Streamwarden recorded it, in another form.
        """
        if part is None or self._plan.after is None or self._plan.after.desired is None:
            what = f"{self._job}: {self._kind} {self.handle.id} was begun by another version"
            command = f"streamwarden operations abandon {self._job} --yes"
            remedy = f"Finish it with the version that began it, or give it up: `{command}`."
            raise StreamwardenError("OPERATION_UNFINISHED", what, remedy=remedy)
        return part

    @property
    def _kind(self) -> str:
        return self.handle.operation.kind

    @property
    def _plan(self) -> OperationPlan:
        return self.handle.operation.plan

    @property
    def _by(self) -> str:
        return f"{self._kind} {self.handle.id} by {self.handle.operation.by}"

    @property
    def _reason(self) -> str:
        return str(self.handle.operation.params.get("reason") or "")

    def _note_beginning(self, seen: Observation) -> None:
        """Record whether the job runs, before anything changes; a repeated call keeps what was recorded first.

        Also forgets a killed try's switch, which was never reached.
        """
        alive, desired = seen.phase.alive, seen.desired
        running = desired is not None and desired.state == "running"
        self.handle.plan(
            was_alive=alive if self._plan.was_alive is None else self._plan.was_alive,
            was_running=running if self._plan.was_running is None else self._plan.was_running,
            before=None,
            after=None,
        )

    def _decide(self, document: Document[D], value: D) -> None:
        """Write a deciding document, with a compare-and-swap on the version that was read before the ownership check.

        Raises
        ------
        StreamwardenError
            ``OPERATION_INTERRUPTED``, with nothing written: another process has taken over, and decides itself.
        """

        def change(found: D | None) -> D:
            self.handle.check()
            return value if found is None else value.model_copy(update={"takeovers": found.takeovers})

        document.update(change)

    def _next_generation(self) -> int:
        """Reserve and return a generation that was never used, not even by another try of an operation.

        The Spark of a killed try may still write into its folder when the next try begins, and a paused try may wake.
        """

        def use_up(found: CheckpointRef | None) -> CheckpointRef:
            self.handle.check()
            assert found is not None
            return found.model_copy(update={"highest": max(found.generation, found.highest, *used) + 1})

        # The document knows them all, unless it was removed and the job deployed as a new one.
        used = used_generations(self._workspace, self._job)
        if self._documents.checkpoint.read() is None:
            return max(used, default=0) + 1
        return self._documents.checkpoint.update(use_up).highest

    def _stop_driver(self, step: Step, *, query_only: bool = False) -> None:
        self.handle.plan(stopping=True)
        step.detail = driver_control.stop_in_turn(
            self._workspace,
            self._job,
            by=self._by,
            reason=self._kind,
            timeout=self._stop_timeout,
            query_only=query_only,
            check=self.handle.check,
        )

    def _end_driver(self, reason: str) -> None:
        driver_control.end_driver(self._workspace, self._job, by=self._by, reason=reason, check=self.handle.check)

    def _await_stop(self) -> Observation:
        """Wait until the driver and its lease have ended: all is written by then."""
        return driver_control.await_stop(self._workspace, self._job, self._stop_timeout)

    def _is_stopping(self, seen: Observation) -> bool:
        """Return whether the driver is stopping, or was asked to stop."""
        if not seen.phase.alive or seen.incarnation is None:
            return False
        return seen.phase is Phase.STOPPING or self._documents.stop(seen.incarnation).read() is not None

    def _start_again(self) -> str:
        """Start the job again, if no supervisor has started it; return the incarnation."""
        seen = observe(self._workspace, self._job)
        if seen.phase.alive and seen.incarnation is not None:
            return seen.incarnation
        return driver_control.start(self._workspace, self._job, by=self._by, reason=f"its {self._kind} failed")

    def _take(self, origin: Origin) -> Manifest:
        note = f"before {self._kind} {self.handle.id}"
        return take(self._workspace, self._job, origin=origin, by=self._by, note=note, report=self._report)

    def _take_and_hold(self, origin: Origin) -> Manifest:
        """Take the savepoint for the operation's start or rollback, and keep it in use until :meth:`_release`."""
        # Releases a killed try's savepoint: a supervisor may have restarted the job since.
        self._release()
        made = self._take(origin)
        self._hold(catalog.find(self._workspace, self._job, made.id))
        return made

    def _hold(self, found: Savepoint) -> None:
        self.handle.plan(savepoint=found.manifest.id)
        catalog.use(self._workspace, found, self.handle.id)

    @property
    def _savepoint_job(self) -> str:
        """The job whose savepoint is held."""
        return self._job

    def _release(self) -> None:
        if not self._plan.savepoint:
            return
        try:
            found = catalog.find(self._workspace, self._savepoint_job, self._plan.savepoint)
        except StreamwardenError as error:
            if error.code != "SAVEPOINT_NOT_FOUND":
                raise
            return
        catalog.release(self._workspace, found, self.handle.id)

    def _reader(self, reference: CheckpointRef) -> CheckpointReader:
        return CheckpointReader(self._workspace.storage, reference.path)

    def _say(self, text: str) -> None:
        if self._report is not None:
            self._report(text, 0, 0)
