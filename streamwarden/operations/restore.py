"""Start a job from a savepoint, and roll back if the job does not become healthy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.savepoint import FORMAT, Manifest, Origin
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, Desired, ErrorInfo, Operation, OutputStart, utc_now
from streamwarden.operations.output_rollback import with_pending
from streamwarden.operations.workflow import Interrupted, JobOperation, is_anothers, is_passing, named, stopped_since
from streamwarden.runtime.operation_lock import begin
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.savepoints.compatibility import incompatibilities, missing_outputs, readers_of, taken_outputs
from streamwarden.savepoints.materialize import fresh_checkpoint
from streamwarden.savepoints.table_damage import (
    cut_off,
    damaged_outputs,
    forget_damaged_checkpoints,
    outdate_savepoints,
    unfit,
)
from streamwarden.savepoints.take import Report
from streamwarden.store.effective_spec import as_before, decide, effective_spec, widened, width_of
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe

__all__ = ["Outputs", "restore"]

Outputs = Literal["default", "rewind", "leave"]
"""How to treat the output tables: by each sink's ``on_restore``, or the same for all tables."""


def restore(
    workspace: Workspace,
    job: str,
    *,
    savepoint: str = catalog.LATEST,
    of: str | None = None,
    outputs: Outputs = "default",
    suspended: bool = False,
    by: str,
    reason: str = "",
    stop_timeout: float = 300,
    health_timeout: float = 300,
    report: Report | None = None,
) -> Operation:
    """Start a job from a savepoint, as its YAML says now.

    Checks the preconditions while the job runs. Then the driver stops between batches, a pre-restore savepoint is
    taken, and the savepoint becomes a fresh checkpoint under a new generation. A driver starts on it, and must become
    healthy: it commits batches, or the source has nothing new. If not, the job rolls back to its untouched checkpoint
    and to the tables' versions at the switch. The operation's document records every step. If the process of a restore
    died, the same call resumes it; meanwhile a supervisor starts the checkpoint that is in force.

    Does not undo what other jobs read from the outputs. Refuses to put back a table from which another job streams.

    Parameters
    ----------
    savepoint
        An id, a label, or ``latest`` for the newest verified savepoint. A damaged savepoint is refused.
    of
        The job that took the savepoint, if it is another job. Then `job` becomes its clone with its own outputs, which
        start as copies of the other job's tables at the savepoint's versions.
    outputs
        ``rewind`` puts every output table back to its version at the savepoint. ``leave`` keeps the tables, and
        replayed rows are written to them again. ``default`` follows each sink's ``on_restore``.
    suspended
        Put the savepoint in force and leave the job suspended: the next deploy starts it. For a job whose source is
        damaged, and is restored only afterwards.
    by, reason
        Actor and reason.
    stop_timeout, health_timeout
        Seconds.
    report
        Called with the progress.

    Raises
    ------
    StreamwardenError
        Before any change: ``JOB_UNKNOWN``, ``CONFIG_INVALID``, ``SAVEPOINT_NOT_FOUND``, ``SAVEPOINT_DAMAGED``,
        ``OPERATION_RUNNING``, or one of ``RESTORE_…`` for the first obstacle. After the job has returned to its old
        state: ``STOP_TIMED_OUT``, ``SAVEPOINT_…``, ``RESTORE_UNHEALTHY``.
    """
    params = {"savepoint": savepoint, "of": of, "outputs": outputs, "suspended": suspended, "reason": reason}
    with begin(workspace, job, "restore", by=by, params=params) as handle:
        work = _Restore(workspace, handle, stop_timeout, health_timeout, report)
        with work.failure_on_record():
            return work.run(savepoint, of or job, outputs)


class _Restore(JobOperation):
    def run(self, savepoint: str, of: str, outputs: Outputs) -> Operation:
        current, failure = self._documents.checkpoint.read(), self._plan.get("failure")
        if failure is not None or (current is not None and current.operation == self.handle.id):
            # Another process reached the switch; its plan is recorded.
            found = catalog.find(self._workspace, of, self._plan["savepoint"])
            after = CheckpointRef.model_validate(self._plan["after"])
            error = ErrorInfo.model_validate(failure).to_exception() if failure else self._stopped_meanwhile()
            if error is not None:
                with self._released(found):
                    self._roll_back(after, error)
            self._put_in_force(after)
            return self._launch_and_judge(found, after)
        with self.handle.step("precheck") as step:
            found, spec = self._precheck(savepoint, of, outputs, current)
            step.detail = f"savepoint {found.manifest.id} fits: batch {found.manifest.batch}"
            doubled = [sink.table for sink in spec.sinks if outputs == "leave" and not sink.keys]
            if doubled:
                step.detail += f"; left as asked, without keys: replayed rows will be twice in {', '.join(doubled)}"
        catalog.use(self._workspace, found, self.handle.id)
        was = observe(self._workspace, self._job)
        if "was_alive" not in self._plan:
            self.handle.plan(was_alive=was.phase.alive)
        try:
            self._stop()
            self._save(current)
            reference = self._make_checkpoint(found, outputs, spec)
            self._switch(reference, spec)
        except Exception as error:
            self._go_on(found, error)
            raise
        return self._launch_and_judge(found, reference)

    def _go_on(self, found: Savepoint, error: Exception) -> None:
        """Start the job where it was, after a failure before the switch; roll back, after a failure during it."""
        if is_anothers(error) or (self._half_way and (is_passing(error) or isinstance(error, Interrupted))):
            # Another process performs the operation now, or will resume it.
            return
        if self._half_way and self._switched():
            with self._released(found):
                self._roll_back(CheckpointRef.model_validate(self._plan["after"]), named(error))
        # Failures from here on must not hide the original failure. The start comes first: a supervisor may be down.
        if self._plan["was_alive"]:
            with self._noted("is not started again"):
                reason = "its restore failed before the switch"
                driver_control.start(self._workspace, self._job, by=self._by, reason=reason)
        with self._noted("keeps its savepoint in use"):
            catalog.release(self._workspace, found, self.handle.id)

    def _switched(self) -> bool:
        current = self._documents.checkpoint.read()
        return current is not None and current.operation == self.handle.id

    def _stopped_meanwhile(self) -> StreamwardenError | None:
        """Return the error that names who stopped the job since a killed try switched; None if it was not stopped."""
        found, before = self._documents.desired.read(), self._plan.get("desired")
        if (
            self._stays_suspended
            or found is None
            or (found.operation != self.handle.id and before and before["state"] != "running")
        ):
            # The switch was cut off before it wrote the desired state, and the job was down before.
            return None
        return stopped_since(self._documents)

    def _precheck(
        self, savepoint: str, of: str, outputs: Outputs, current: CheckpointRef | None
    ) -> tuple[Savepoint, JobSpec]:
        spec = effective_spec(self._workspace, self._job)
        found = catalog.find(self._workspace, of, savepoint)
        if found.manifest.partitions is not None:
            # The state has the savepoint's number of partitions, whatever the job was rescaled to since.
            spec = widened(spec, width_of(spec).model_copy(update={"partitions": found.manifest.partitions}))
        if found.record.verification is not None and found.verdict == "damaged":
            problems = "; ".join(found.record.verification.problems[:3])
            raise StreamwardenError("SAVEPOINT_DAMAGED", f"{of} {found.manifest.id}: {problems}")
        if found.manifest.format > FORMAT:
            raise StreamwardenError(
                "SAVEPOINT_UNSUPPORTED", f"{of} {found.manifest.id}: manifest {found.manifest.format}"
            )
        for sink in found.manifest.sinks:
            forget_damaged_checkpoints(self._workspace, sink.table)
        reasons = incompatibilities(self._workspace, found.manifest, spec, current)
        starts = _starts(found.manifest, spec, outputs)
        reasons += missing_outputs(self._workspace, with_pending(starts, current))
        rewound = [start.table for start in starts if start.source is None]
        if of != self._job:
            reasons += taken_outputs(self._workspace, spec, ran_before=current is not None)
        else:
            reasons += unfit(self._workspace, self._job, found.manifest, damaged_outputs(self._workspace, spec))
        for table, jobs in readers_of(self._workspace, rewound, but=self._job).items():
            reasons.append(StreamwardenError("RESTORE_BREAKS_READERS", f"{table} is read by {', '.join(jobs)}"))
        if reasons:
            for one in reasons[1:]:
                self._say(f"also: {one.code}: {one.what}")
            raise reasons[0]
        return found, spec

    def _stop(self) -> None:
        with self.handle.step("stop") as step:
            self._stop_driver(step)

    def _save(self, current: CheckpointRef | None) -> None:
        with self.handle.step("pre-restore savepoint") as step:
            if current is None:
                step.detail = "the job has no checkpoint yet"
                return
            try:
                made = self._take(Origin.PRE_RESTORE)
                step.detail = f"{made.id} at batch {made.batch}"
            except StreamwardenError as error:
                # A job is often restored because its checkpoint is damaged. That checkpoint is kept in any case.
                if error.code not in ("SAVEPOINT_NOTHING", "CHECKPOINT_DAMAGED", "TABLE_DAMAGED"):
                    raise
                step.detail = f"none: {error.code}: {error.what}"

    def _make_checkpoint(self, found: Savepoint, outputs: Outputs, spec: JobSpec) -> CheckpointRef:
        manifest = found.manifest
        with self.handle.step("fresh checkpoint") as step:
            made = fresh_checkpoint(
                self._workspace,
                self._job,
                manifest,
                self._next_generation(),
                outputs=_starts(manifest, spec, outputs),
                operation=self.handle.id,
                reason=f"restored from {manifest.job} {manifest.id}",
                check=self.handle.check,
                report=self._report,
            )
            step.detail = f"{made.path}: {len(manifest.files)} files, {manifest.bytes} bytes"
        return made

    def _switch(self, reference: CheckpointRef, spec: JobSpec) -> None:
        with self.handle.step("switch") as step:
            before = self._documents.checkpoint.read()
            # Includes tables that are left as they are: a table that no driver has put back yet holds undone rows.
            reference = reference.model_copy(update={"outputs": with_pending(reference.outputs, before)})
            desired = self._documents.desired.read()
            parallelism = self._documents.parallelism.read()
            now = Desired(
                job=self._job,
                state="suspended" if self._stays_suspended else "running",
                spec=spec,
                digest=spec.digest(),
                profile=self._workspace.profile.name,
                updated_at=utc_now(),
                updated_by=self._by,
                note=self._reason or reference.reason,
                operation=self.handle.id,
            )
            # Records all values for a rollback and for a resumption, before any change.
            self.handle.plan(
                now=now.model_dump(mode="json"),
                # A clone's tables are overwritten in any case.
                cut={} if self._clones else damaged_outputs(self._workspace, spec),
                parallelism=parallelism.model_dump(mode="json") if parallelism else None,
                savepoint=reference.savepoint,
                after=reference.model_dump(mode="json"),
                before=before.model_dump(mode="json") if before else None,
                desired=desired.model_dump(mode="json") if desired else None,
                versions={
                    start.table: DeltaLog(self._workspace.files, f"tables/{start.table}").latest
                    for start in reference.outputs
                    if start.source is None
                },
            )
            self._put_in_force(reference)
            step.detail = f"generation {reference.generation}, {reference.path}"

    def _put_in_force(self, reference: CheckpointRef) -> None:
        """Write the documents of the switch. Can be repeated by a process that resumes after a kill between two writes.

        The checkpoint comes first: it names the operation that switched, and its state's number of partitions, which
        overrides the spec's. So number and state fit if a supervisor starts the job in between.
        """
        if not self._switched():
            self._decide(self._documents.checkpoint, reference)
        now, found = Desired.model_validate(self._plan["now"]), self._documents.desired.read()
        if found is not None and found.operation == self.handle.id:
            return
        driver_control.forgive(self._workspace, self._job, why=self._reason or "restore")
        if width_of(now.spec) != width_of(effective_spec(self._workspace, self._job)):
            width = decide(self._workspace, self._job, width_of(now.spec), by=self._by)
            self._decide(self._documents.parallelism, width)
        self._decide(self._documents.desired, now)

    @property
    def _clones(self) -> bool:
        return self.handle.operation.params.get("of") not in (None, self._job)

    @property
    def _stays_suspended(self) -> bool:
        return bool(self.handle.operation.params.get("suspended"))

    @property
    def _half_way(self) -> bool:
        return bool(self._plan.get("after"))

    @contextmanager
    def _released(self, found: Savepoint) -> Iterator[None]:
        """Release the savepoint at the end, unless the operation is to be resumed from it."""
        try:
            yield
        finally:
            if self.handle.operation.state != "running":
                catalog.release(self._workspace, found, self.handle.id)

    def _launch_and_judge(self, found: Savepoint, reference: CheckpointRef) -> Operation:
        with self._released(found):
            self._start_and_judge(reference)
            return self.handle.end("done")

    def _start_and_judge(self, reference: CheckpointRef) -> None:
        try:
            for table, version in self._plan.get("cut", {}).items():
                # Only after the savepoint is in force: the old checkpoint counts the removed commits as written.
                with self.handle.step("cut the log") as step:
                    self.handle.check()
                    # First: a savepoint from after the cut must not look usable, not even after a kill in between.
                    marked = outdate_savepoints(self._workspace, table, version, by=self._by)
                    cut_off(self._workspace, table, version)
                    step.detail = f"{table}: from version {version} on, which is damaged"
                    if marked:
                        step.detail += f"; outdated savepoints: {', '.join(marked)}"
            if self._stays_suspended:
                return
            with self.handle.step("start") as step:
                seen = observe(self._workspace, self._job)
                # A driver without a generation yet was launched by a killed try after the switch. A second driver would
                # wait for its lease, and would receive every request.
                spoken = seen.heartbeat.generation if seen.heartbeat else 0
                if seen.phase.alive and spoken in (0, reference.generation):
                    step.detail = f"{seen.incarnation} runs already"
                else:
                    step.detail = driver_control.start(self._workspace, self._job, by=self._by, reason=reference.reason)
            with self.handle.step("wait for health") as step:
                step.detail = driver_control.await_health(
                    self._workspace,
                    self._job,
                    generation=reference.generation,
                    base=reference.base_batch,
                    timeout=self._health_timeout,
                    say=self._say,
                )
        except Exception as error:
            if is_passing(error) or isinstance(error, Interrupted):
                raise
            self._roll_back(reference, named(error))

    def _roll_back(self, reference: CheckpointRef, error: StreamwardenError) -> NoReturn:
        """Restore the old checkpoint and spec, and raise. Can be repeated.

        Raises
        ------
        StreamwardenError
            ``RESTORE_UNHEALTHY``, always.
        """
        # Recorded first: after a crash or an outage, the next try must continue the rollback.
        self.handle.plan(failure=ErrorInfo.of(error).model_dump(mode="json"))
        plan = self._plan
        with self.handle.step("roll back") as step:
            current = self._documents.checkpoint.read()
            # If a killed try has restored the checkpoint already, the running driver is the right one.
            mine = current is not None and current.operation == self.handle.id
            if mine:
                driver_control.end_driver(
                    self._workspace, self._job, by=self._by, reason=f"restore failed: {error.code}"
                )
            before = CheckpointRef.model_validate(plan["before"]) if plan["before"] and not plan.get("cut") else None
            if before is None:
                # A clone, a job that never ran, or tables without the commits of the old checkpoint: no rollback is
                # possible.
                self._suspend(reference, error)
                step.detail = "suspended: there was nothing to go back to"
            else:
                # A pending table must still be put back: its version at the switch holds undone rows. This holds
                # whether or not the restored generation has started.
                latest = {name: OutputStart(table=name, version=version) for name, version in plan["versions"].items()}
                outputs = list({**latest, **{one.table: one for one in before.outputs}}.values())
                # Keeps its own generation: its last batch in flight was written under this id. To put a table forward
                # again does not undo that write.
                if mine:
                    self._decide(
                        self._documents.checkpoint,
                        before.model_copy(update={"highest": reference.highest, "outputs": outputs, "fenced": False}),
                    )
                width = as_before(self._workspace, self._job, plan.get("parallelism"), by=self._by)
                if width is not None:
                    self._decide(self._documents.parallelism, width)
                was = Desired.model_validate(plan["desired"]) if plan["desired"] else None
                found = self._documents.desired.read()
                # A person may have stopped the job since.
                to_run = was is not None and found is not None and was.state == found.state == "running"
                if was is not None:
                    state = "running" if to_run else "suspended"
                    self._decide(self._documents.desired, was.model_copy(update={"state": state}))
                how = self._start_again() if to_run else "suspended"
                step.detail = f"{before.path}, generation {before.generation}: {how}"
        self.handle.end("rolled back", error)
        raise StreamwardenError("RESTORE_UNHEALTHY", f"{self._job}: {error.code}: {error.what}") from error

    def _suspend(self, reference: CheckpointRef, error: StreamwardenError) -> None:
        def change(found: Desired | None) -> Desired:
            self.handle.check()
            assert found is not None
            return found.model_copy(update={"state": "suspended", "note": f"{reference.reason} failed: {error.code}"})

        # A clone has no desired state if its switch was cut off.
        if self._documents.desired.read() is not None:
            self._documents.desired.update(change)


def _starts(manifest: Manifest, spec: JobSpec, outputs: Outputs) -> list[OutputStart]:
    """Return the starts of the output tables, without the tables that are left as they are."""
    if manifest.job != spec.name:
        # A clone: its tables are its own.
        by_output = {sink.output: sink.table for sink in manifest.spec.sinks}
        versions = {sink.table: sink.version for sink in manifest.sinks}
        return [
            OutputStart(table=sink.table, version=versions[by_output[sink.output]], source=by_output[sink.output])
            for sink in spec.sinks
            if sink.output in by_output
        ]
    versions = {sink.table: sink.version for sink in manifest.sinks}
    return [
        OutputStart(table=sink.table, version=versions[sink.table])
        for sink in spec.sinks
        if sink.table in versions and (outputs == "rewind" or (outputs == "default" and sink.rewinds))
    ]
