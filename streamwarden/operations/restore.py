"""Start a job from a savepoint, and roll back if the job does not become healthy."""

from __future__ import annotations

from typing import Any, Literal

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.operation import InForce, Operation, StepName
from streamwarden.model.savepoint import FORMAT, Manifest, Origin
from streamwarden.model.spec import RULES_OUTPUT, JobSpec
from streamwarden.model.status import CheckpointRef, Desired, OutputStart
from streamwarden.operations.output_rollback import with_pending
from streamwarden.operations.workflow import JobOperation
from streamwarden.runtime.operation_lock import begin
from streamwarden.runtime.standby import Standby
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.savepoints.compatibility import (
    incompatibilities,
    migrates,
    missing_outputs,
    readers_of,
    taken_outputs,
)
from streamwarden.savepoints.fresh_checkpoint import fresh_checkpoint
from streamwarden.savepoints.migrated_checkpoint import migrated_checkpoint
from streamwarden.savepoints.older_copies import lost_versions
from streamwarden.savepoints.table_damage import (
    cut_off,
    damaged_outputs,
    forget_damaged_checkpoints,
    outdate_savepoints,
    unfit,
)
from streamwarden.savepoints.take import Report
from streamwarden.savepoints.verify import verify
from streamwarden.store.effective_spec import decide, effective_spec, parallelism_of, with_parallelism
from streamwarden.store.workspace import Workspace
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

    A savepoint of an earlier ``VERSION`` of the job's module is migrated, if the module can: its state is read out and
    becomes the new version's initial state.

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
        state: ``STOP_TIMED_OUT``, ``SAVEPOINT_…``, ``MIGRATION_FAILED``, ``RESTORE_UNHEALTHY``.
    """
    params = {"savepoint": savepoint, "of": of, "outputs": outputs, "suspended": suspended, "reason": reason}
    with begin(workspace, job, "restore", by=by, params=params) as handle:
        work = _Restore(workspace, handle, stop_timeout, health_timeout, report, savepoint=savepoint, outputs=outputs)
        with work.failure_on_record():
            return work.run()


class _Restore(JobOperation):
    unhealthy = "RESTORE_UNHEALTHY"

    def __init__(self, *args: Any, savepoint: str = catalog.LATEST, outputs: Outputs = "default") -> None:
        super().__init__(*args)
        self._asked, self._outputs = savepoint, outputs

    def _precheck(self) -> None:
        with self.handle.step(StepName.PRECHECK) as step:
            current = self._documents.checkpoint.read()
            self._found, self._spec = self._check(current)
            manifest = self._found.manifest
            step.detail = f"savepoint {manifest.id} fits: batch {manifest.batch}"
            doubled = [sink.table for sink in self._spec.delta_sinks if self._outputs == "leave" and not sink.keys]
            if doubled:
                step.detail += f"; left as asked, without keys: replayed rows will be twice in {', '.join(doubled)}"
            if topics := ", ".join(sink.topic for sink in self._spec.kafka_sinks):
                step.detail += f"; topics get replayed rows again: {topics}"
            if self._clones and (warning := _missing_rules(manifest, self._spec)):
                step.detail += f"; {warning}"
                self._say(warning)
        self._note_beginning(observe(self._workspace, self._job))
        self._release()
        self._hold(self._found)

    def _check(self, current: CheckpointRef | None) -> tuple[Savepoint, JobSpec]:
        spec = effective_spec(self._workspace, self._job)
        found = catalog.find(self._workspace, self._savepoint_job, self._asked)
        manifest, name = found.manifest, f"{self._savepoint_job} {found.manifest.id}"
        if manifest.partitions is not None and not migrates(manifest, spec):
            # The state has the savepoint's number of partitions, whatever the job was rescaled to since.
            spec = with_parallelism(spec, parallelism_of(spec).model_copy(update={"partitions": manifest.partitions}))
        if found.record.verification is not None and found.verdict == "damaged":
            problems = "; ".join(found.record.verification.problems[:3])
            raise StreamwardenError("SAVEPOINT_DAMAGED", f"{name}: {problems}")
        if manifest.format > FORMAT:
            raise StreamwardenError("SAVEPOINT_UNSUPPORTED", f"{name}: manifest {manifest.format}")
        for sink in manifest.sinks:
            forget_damaged_checkpoints(self._workspace, sink.table)
        reasons = incompatibilities(self._workspace, manifest, spec, current)
        starts = _starts(manifest, spec, self._outputs)
        reasons += missing_outputs(self._workspace, with_pending(starts, current))
        rewound = [start.table for start in starts if start.source is None]
        reasons += self._older_copies(manifest, spec, rewound)
        if self._clones:
            reasons += taken_outputs(self._workspace, spec, ran_before=current is not None)
        else:
            reasons += unfit(self._workspace, self._job, manifest, damaged_outputs(self._workspace, spec))
        for table, jobs in readers_of(self._workspace, rewound, but=self._job).items():
            reasons.append(StreamwardenError("RESTORE_BREAKS_READERS", f"{table} is read by {', '.join(jobs)}"))
        if reasons:
            for one in reasons[1:]:
                self._say(f"also: {one.code}: {one.what}")
            raise reasons[0]
        return found, spec

    def _older_copies(self, manifest: Manifest, spec: JobSpec, rewound: list[str]) -> list[StreamwardenError]:
        """Return why tables that stay as they are lack rows that the savepoint counts as written."""
        if self._clones or self._outputs == "leave":
            return []
        left = {sink.table for sink in spec.delta_sinks} - set(rewound)
        remedy = (
            f"The table is an older copy. `streamwarden doctor {self._job}` names the newest savepoint that fits it. To"
            " go on without the missing rows: --outputs leave."
        )
        lost = lost_versions(self._workspace, manifest, left)
        return [StreamwardenError("RESTORE_OUTPUT_GONE", what, remedy=remedy) for what in lost]

    def _prepare_and_switch(self, spare: Standby | None) -> None:  # noqa: ARG002 - none is used
        with self.handle.step(StepName.STOP) as step:
            self._stop_driver(step)
        self._save()
        reference = self._make_checkpoint()
        with self.handle.step(StepName.SWITCH) as step:
            current = self._documents.checkpoint.read()
            # Includes tables that are left as they are: a table that no driver has put back yet holds undone rows.
            reference = reference.model_copy(update={"outputs": with_pending(reference.outputs, current)})
            self.handle.plan(
                # A clone's tables are overwritten in any case.
                cut={} if self._clones else damaged_outputs(self._workspace, self._spec),
                versions={
                    start.table: DeltaLog(self._workspace.files, start.table).latest
                    for start in reference.outputs
                    if start.source is None
                },
            )
            state = "suspended" if self.handle.operation.params.get("suspended") else "running"
            desired = self._wanted(self._spec, state=state, note=reference.reason)
            parallelism, override = parallelism_of(self._spec), None
            if parallelism != parallelism_of(effective_spec(self._workspace, self._job)):
                override = decide(self._workspace, self._job, parallelism, by=self._by)
            self._switch_to(InForce(checkpoint=reference, desired=desired, parallelism=override))
            step.detail = f"generation {reference.generation}, {reference.path}"

    def _save(self) -> None:
        with self.handle.step(StepName.PRE_RESTORE_SAVEPOINT) as step:
            if self._documents.checkpoint.read() is None:
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

    def _make_checkpoint(self) -> CheckpointRef:
        manifest = self._found.manifest
        given: dict[str, Any] = {
            "outputs": _starts(manifest, self._spec, self._outputs),
            "operation": self.handle.id,
            "reason": f"restored from {manifest.job} {manifest.id}",
            "check": self.handle.check,
        }
        with self.handle.step(StepName.FRESH_CHECKPOINT) as step:
            generation = self._next_generation()
            try:
                if migrates(manifest, self._spec):
                    made, what = migrated_checkpoint(self._workspace, self._spec, manifest, generation, **given)
                    step.detail = f"{made.path}: {what}"
                    return made
                made = fresh_checkpoint(self._workspace, self._job, manifest, generation, report=self._report, **given)
            except StreamwardenError as error:
                if error.code == "SAVEPOINT_DAMAGED":
                    # Recorded, so that `latest` and the errors of the job name another one from now on.
                    verify(self._workspace, [self._found], by=self._by, state=False)
                raise
            step.detail = f"{made.path}: {len(manifest.files)} files, {manifest.bytes} bytes"
        return made

    def _before_start(self) -> None:
        for table, version in self._plan.cut.items():
            # Only after the savepoint is in force: the old checkpoint counts the removed commits as written.
            with self.handle.step(StepName.CUT_LOG) as step:
                self.handle.check()
                # First: a savepoint from after the cut must not look usable, not even after a kill in between.
                marked = outdate_savepoints(self._workspace, table, version, by=self._by)
                cut_off(self._workspace, table, version)
                step.detail = f"{table}: from version {version} on, which is damaged"
                if marked:
                    step.detail += f"; outdated savepoints: {', '.join(marked)}"

    def _undo(self, error: StreamwardenError) -> str:
        before, reference = self._before, self._documents.checkpoint.read()
        assert reference is not None
        if before.checkpoint is None or self._plan.cut:
            # A clone, a job that never ran, or tables without the commits of the old checkpoint: no rollback is
            # possible.
            self._suspend(error)
            return "there was nothing to roll back to"
        checkpoint = None
        if reference.generation != before.checkpoint.generation:
            # A pending table must still be put back: its version at the switch holds undone rows. This holds whether or
            # not the restored generation has started.
            latest = {name: OutputStart(table=name, version=version) for name, version in self._plan.versions.items()}
            outputs = list({**latest, **{one.table: one for one in before.checkpoint.outputs}}.values())
            # Keeps its own generation: its last batch in flight was written under this id. To put a table forward again
            # does not undo that write.
            update = {"highest": reference.highest, "outputs": outputs, "fenced": False}
            checkpoint = before.checkpoint.model_copy(update=update)
        self._write_back(checkpoint, error=error, before=before)
        return f"{before.checkpoint.path}, generation {before.checkpoint.generation}"

    def _suspend(self, error: StreamwardenError) -> None:
        def change(found: Desired | None) -> Desired:
            self.handle.check()
            assert found is not None
            return found.model_copy(update={"state": "suspended", "note": f"its restore failed: {error.code}"})

        # A clone has no desired state if its switch was cut off.
        if self._documents.desired.read() is not None:
            self._documents.desired.update(change)

    @property
    def _start_reason(self) -> str:
        assert self._after.checkpoint is not None
        return self._after.checkpoint.reason

    @property
    def _savepoint_job(self) -> str:
        return self.handle.operation.params.get("of") or self._job

    @property
    def _clones(self) -> bool:
        return self._savepoint_job != self._job


def _starts(manifest: Manifest, spec: JobSpec, outputs: Outputs) -> list[OutputStart]:
    """Return the starts of the output tables, without the tables that are left as they are."""
    if manifest.job != spec.name:
        # A clone: its tables are its own.
        by_output = {sink.output: sink.table for sink in manifest.spec.delta_sinks}
        versions = {sink.table: sink.version for sink in manifest.sinks}
        copies = [
            OutputStart(table=sink.table, version=versions[by_output[sink.output]], source=by_output[sink.output])
            for sink in spec.delta_sinks
            if sink.output in by_output
        ]
        return copies + _begun_by_rules(spec, set(by_output), "output")
    versions = {sink.table: sink.version for sink in manifest.sinks}
    begun = _begun_by_rules(spec, set(versions), "table") if outputs != "leave" else []
    return begun + [
        OutputStart(table=sink.table, version=versions[sink.table])
        for sink in spec.delta_sinks
        if sink.table in versions and (outputs == "rewind" or (outputs == "default" and sink.rewinds))
    ]


def _begun_by_rules(spec: JobSpec, known: set[str], name: Literal["output", "table"]) -> list[OutputStart]:
    """Return the quarantine tables of row rules that are younger than a savepoint: their rows are read again."""
    return [
        OutputStart(table=sink.table, version=None)
        for sink in spec.delta_sinks
        if sink.output.startswith(RULES_OUTPUT) and getattr(sink, name) not in known
    ]


def _missing_rules(manifest: Manifest, spec: JobSpec) -> str | None:
    """Return a warning for a clone: suites go by a table's name, and the clone's tables have other names."""
    without = {sink.output: sink.table for sink in spec.delta_sinks if not sink.row_rules}
    lost = [
        (one.table, without[one.output]) for one in manifest.spec.delta_sinks if one.row_rules and one.output in without
    ]
    if not lost:
        return None
    tables = ", ".join(f"those of {original} do not judge {clone}" for original, clone in lost)
    suites = ", ".join(f"expectations/{clone}.json" for _, clone in lost)
    return f"row rules: {tables}, which gets the rows that they quarantine; give it {suites}"
