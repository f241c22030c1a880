"""Restore a job's damaged deciding documents from other records; see :mod:`~streamwarden.operations.repair`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog, application_id
from streamwarden.model.operation import Operation
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, Desired, Heartbeat, Lease, ParallelismOverride
from streamwarden.operations.last_writer import last_writer
from streamwarden.runtime.operation_lock import operations_of
from streamwarden.runtime.processes import current_process, is_alive
from streamwarden.savepoints import catalog
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import parallelism_of, with_parallelism
from streamwarden.store.layout import CHECKPOINTS, CONTROL, TOTALS, checkpoint_key, generation_of, job_key
from streamwarden.store.workspace import Workspace

__all__ = ["Restored", "used_generations"]

_RECENT = 5
"""How many of the newest incarnations are checked for life. 5: each end of a driver starts one new driver."""

_FORGOTTEN = 1000
"""How many drivers may have come after the last batch, if no driver is recorded any more. 1000: more than ever did."""

_GAP = 8
"""Numbers without a trace in the tables after which no higher one is looked for. Each operation uses one, and its start
then leaves a trace of every number below; 8: so many operations in a row that never started a driver."""


def used_generations(workspace: Workspace, job: str) -> set[int]:
    """Return the generations that a job has left traces of: folders, savepoints, and transactions of its tables."""
    # Not at the top: Airflow's parser of DAG files imports this module, and delta-rs takes half a second.
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    found = {generation_of(name) for name in workspace.files.folders(job_key(CHECKPOINTS, job))}
    used = {one for one in found if one is not None}
    used |= {one.summary.generation for one in catalog.savepoints(workspace, job)}
    for sink in workspace.job(job).delta_sinks:
        address, options = workspace.delta_rs(sink.table)
        try:
            table = DeltaTable(address, storage_options=options)
        except DeltaError:
            # Missing, or its log is damaged, and the restore in progress may mend it.
            continue
        number = highest = 0
        while number < highest + _GAP:
            number += 1
            if table.transaction_version(application_id(job, number)) is not None:
                highest = number
                used.add(number)
    return used


class Restored:
    """A job's deciding documents, reconstructed from its other records.

    Each method returns the new document, or None to remove it, and a description of its origin.

    Parameters
    ----------
    workspace, job
        The job.
    by
        The actor.
    """

    def __init__(self, workspace: Workspace, job: str, by: str) -> None:
        self._workspace = workspace
        self._storage = workspace.storage
        self._documents = JobDocuments(workspace.storage, job)
        self._job = job
        self._by = by

    def living(self) -> ProcessRef | None:
        """Return the process of a living driver of the job; on another machine, of a driver with a recent heartbeat."""
        for incarnation in reversed(self._documents.incarnations()[-_RECENT:]):
            if self._documents.exit(incarnation).read() is not None:
                continue
            beat, launch = self._documents.heartbeat(incarnation).read(), self._documents.launch(incarnation).read()
            process = beat.process if beat else launch.process if launch else None
            if process is None:
                continue
            alive = is_alive(process)
            fresh = beat is not None and utc_now() - beat.at < self._workspace.profile.lease
            if alive or (alive is None and fresh):
                return process
        return None

    @cached_property
    def _operations(self) -> list[Operation]:
        """The readable operations, newest first."""
        filed = map(self._documents.past_operation, reversed(self._documents.past_operations()))
        try:
            return list(operations_of(self._documents))
        except StreamwardenError:
            return [found for document in filed if (found := document.read()) is not None]

    @cached_property
    def _beats(self) -> list[Heartbeat]:
        """Heartbeats of drivers that knew their generation, newest first."""
        found = (self._documents.heartbeat(one).read() for one in reversed(self._documents.incarnations()))
        return [beat for beat in found if beat is not None and beat.generation > 0]

    @cached_property
    def _deployed(self) -> Desired | None:
        """The desired state as it is; None if it is lost or damaged."""
        try:
            return self._documents.desired.read()
        except StreamwardenError:
            return None

    @cached_property
    def _launched(self) -> tuple[JobSpec, str] | None:
        """The spec of the newest launch or savepoint, and which of them it is."""
        launches = (self._documents.launch(one).read() for one in reversed(self._documents.incarnations()))
        found = [(one.at, one.spec, f"launch {one.incarnation}") for one in launches if one is not None and one.spec]
        found += [(one.taken_at, one.spec, f"savepoint {one.id}") for one in self._manifests]
        return max(found, key=lambda one: one[0])[1:] if found else None

    @cached_property
    def _manifests(self) -> list[Manifest]:
        """The manifests of the job's savepoints, newest first."""
        return [one.manifest for one in catalog.savepoints(self._workspace, self._job)]

    def desired(self) -> tuple[Desired | None, str]:
        """Restore the desired state from the newest launch or savepoint; suspended, unless the job's driver lives."""
        if self._launched is None:
            return None, "removed: the job was never launched; deploy it"
        spec, source = self._launched
        reference = self.checkpoint()[0] if self.checkpoint_is_missing() else None
        if reference is not None and reference.partitions is not None:
            # A rescale may have come after that launch or savepoint.
            now = parallelism_of(spec).model_copy(update={"partitions": reference.partitions})
            spec = with_parallelism(spec, now)
        state: Any = "running" if self.living() is not None else "suspended"
        desired = Desired(
            job=self._job,
            state=state,
            spec=spec,
            digest=spec.digest(),
            profile=self._workspace.profile.name,
            updated_at=utc_now(),
            updated_by=self._by,
            note="repaired",
        )
        then = "" if state == "running" else f"; `streamwarden deploy {self._job}` starts it"
        return desired, f"restored from {source}, {state}{then}"

    def operation(self) -> tuple[None, str]:
        """Drop the operation: its decisions are in force through the other documents."""
        return None, "removed: what it has changed stays in force; repeat the operation if it had not ended"

    def parallelism(self) -> tuple[ParallelismOverride | None, str]:
        """Restore the parallelism that a rescale decided, from the difference between deployed spec and YAML."""
        now, written = self._deployed or self.desired()[0], parallelism_of(self._workspace.job(self._job))
        if now is None or parallelism_of(now.spec) == written:
            return None, "removed: the job runs with its YAML's parallelism"
        return ParallelismOverride(
            now=parallelism_of(now.spec), over=written, by=self._by
        ), "restored from the deployed spec"

    def lease(self) -> tuple[Lease, str]:
        """Restore the lease as released, with an epoch that is no lower than any earlier epoch."""
        # Each incarnation acquired its own epoch. So no epoch was higher than the highest epoch in the tables plus the
        # number of recorded incarnations.
        incarnations = self._documents.incarnations()
        written = [int(match[1]) for text in self._authors() for match in re.finditer(r'"epoch": ?(\d+)', text)]
        epoch = max(written, default=0) + (len(incarnations) or _FORGOTTEN)
        now = utc_now()
        lease = Lease(
            job=self._job,
            incarnation=incarnations[-1] if incarnations else "",
            process=current_process(),
            epoch=epoch,
            acquired_at=now,
            expires_at=now,
            released=True,
        )
        return lease, f"restored as released, with epoch {epoch}, which is no lower than any before"

    def _authors(self) -> Iterator[str]:
        for action in self._actions():
            if "commitInfo" in action:
                yield str(action["commitInfo"].get("userMetadata", ""))

    @cached_property
    def _tables(self) -> list[str]:
        """The job's output tables, by any spec that is left."""
        if self._deployed is not None:
            spec = self._deployed.spec
        else:
            spec = self._launched[0] if self._launched is not None else self._workspace.job(self._job)
        return [sink.table for sink in spec.delta_sinks]

    def _actions(self) -> Iterator[dict[str, Any]]:
        for table in self._tables:
            log = DeltaLog(self._workspace.files, table)
            for version in log.versions:
                try:
                    yield from log.actions(version)
                except ValueError:
                    # A damaged commit; the other commits suffice.
                    continue

    def checkpoint(self) -> tuple[CheckpointRef | None, str]:
        """Restore the reference to the checkpoint in force, from the newest driver's heartbeat.

        If no heartbeat is left, as after the loss of all control documents, the tables show which generation ran.

        Raises
        ------
        StreamwardenError
            ``REPAIR_IMPOSSIBLE`` if the checkpoint may have changed since, or tables may still have to be put back.
        """
        folders = self._workspace.files.folders(job_key(CHECKPOINTS, self._job))
        if not folders and not self._beats:
            return None, "removed: the job has no checkpoint yet"
        generation = self._generation()
        parts = [part for one in self._operations for part in (one.plan.after, one.plan.before) if part is not None]
        known = [part.checkpoint for part in parts if part.checkpoint is not None]
        written = {str(action["txn"]["appId"]) for action in self._actions() if "txn" in action}
        numbers = (generation_of(name) for name in [*folders, *written, *self._totals()])
        seen = {generation, *filter(None, numbers), *(beat.generation for beat in self._beats)}
        seen |= {max(one.generation, one.highest) for one in known}
        seen |= {one.generation for one in self._manifests}
        path = checkpoint_key(self._job, generation)
        if path.rsplit("/", 1)[1] not in folders:
            raise self._impossible(f"generation {generation} ran last, but {path} does not exist")
        was = next((one for one in known if one.generation == generation), None)
        reader = CheckpointReader(self._storage, path)
        last = reader.last_commit()
        base = was.base_batch if was is not None else None
        # The first batch of a generation comes after its tables are put back.
        begun = generation == 1 or not self._beats or application_id(self._job, generation) in written
        begun |= was is not None and last is not None and last > (-1 if base is None else base)
        if not begun and was is None:
            raise self._impossible(f"it is unknown which tables generation {generation} must restore")
        offsets = reader.offsets(last) if last is not None and reader.has_state() else None
        partitions = offsets.conf.get("spark.sql.shuffle.partitions") if offsets is not None else None
        reference = CheckpointRef(
            job=self._job,
            generation=generation,
            path=path,
            since=utc_now(),
            reason="repaired",
            savepoint=was.savepoint if was is not None else None,
            base_batch=base,
            # Plus 1: the newest operation may have used a number without a trace.
            highest=max(seen) + 1,
            partitions=int(partitions) if partitions is not None else None,
            outputs=was.outputs if was is not None and not begun else [],
            **self._facts(generation, was),
        )
        return reference, f"restored: generation {generation}, batch {last}, of those up to {reference.highest}"

    def _facts(self, generation: int, was: CheckpointRef | None) -> dict[str, Any]:
        """Return what a driver had found about a checkpoint, from an operation or a savepoint of its generation."""
        if was is not None:
            return {"version": was.version, "sources": was.sources, "topics": was.topics}
        taken = next((one for one in self._manifests if one.generation == generation), None)
        if taken is None:
            return {}
        version = taken.versions.get("job", "")
        return {
            "version": int(version) if version.isdigit() else None,
            "sources": taken.source_names,
            "topics": taken.topics,
        }

    def checkpoint_is_missing(self) -> bool:
        """Return whether the job has a checkpoint, but no document that names it."""
        there = self._workspace.files.folders(job_key(CHECKPOINTS, self._job))
        return bool(there) and self._storage.read(self._documents.checkpoint.key) is None

    def _totals(self) -> list[str]:
        return self._storage.list(job_key(CONTROL, self._job, TOTALS))

    def _generation(self) -> int:
        """Return the generation in force: the newest driver's generation, if no operation has changed it since."""
        newest = self._operations[0] if self._operations else None
        if newest is not None and newest.state == "running":
            raise self._impossible(f"{newest.kind} {newest.id} is unfinished, and may have changed the checkpoint")
        try:
            self._documents.operation.read()
        except StreamwardenError as error:
            raise self._impossible(
                "operation.json is damaged, too: that operation may have changed the checkpoint"
            ) from error
        if not self._beats:
            return self._adopted()
        beat = self._beats[0]
        if newest is not None and newest.state == "rolled back" and (newest.ended_at or beat.at) > beat.at:
            raise self._impossible(f"no driver has run since {newest.kind} {newest.id} was rolled back")
        return beat.generation

    def _adopted(self) -> int:
        """Return the generation in force of a job whose drivers and operations are forgotten."""
        if not self._operations:
            found = last_writer(self._workspace, self._job, self._tables)
            if found is not None:
                return found
            if used_generations(self._workspace, self._job) == {1}:
                return 1
        raise self._impossible("neither a driver's heartbeat nor the tables show which generation ran last")

    def _impossible(self, why: str) -> StreamwardenError:
        return StreamwardenError("REPAIR_IMPOSSIBLE", f"{self._documents.checkpoint.key}: {why}")
