"""The rollback of a rescale, and the code that all its parts share."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import NoReturn

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.status import CheckpointRef, Desired, ErrorInfo, Parallelism, Step, Width, utc_now
from streamwarden.operations.output_rollback import outputs_before
from streamwarden.operations.workflow import JobOperation
from streamwarden.runtime.operation_lock import is_half_way
from streamwarden.store.effective_spec import as_before, widened, width_of
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import record_decision
from streamwarden.supervision.observe import START_TIMEOUT, Observation, Phase, observe

__all__ = ["RescaleBack"]

_LOOK_S = 2.0
"""How often the running driver is observed while its rescale is prepared. 2 s, as by its supervisor."""

_REPORT_S = 2.0
"""How long to wait for the report of a committed batch: it is written within milliseconds, as a rule."""


class RescaleBack(JobOperation):
    """A rescale that can roll back from any step: its recorded plan has all values for that."""

    _runs_on = False
    _looked = 0.0

    def _roll_back(self, error: StreamwardenError) -> NoReturn:
        """Restore the old checkpoint and width, and raise.

        Raises
        ------
        StreamwardenError
            ``RESCALE_UNHEALTHY``, always.
        """
        # Recorded first: after a crash, the next try must continue the rollback, and not try the new width again.
        self.handle.plan(failure=ErrorInfo.of(error).model_dump(mode="json"))
        with self.handle.step("roll back") as step:
            if self._switched():
                driver_control.end_driver(
                    self._workspace, self._job, by=self._by, reason=f"rescale failed: {error.code}"
                )
                self.handle.plan(way=self._put_back(error))
            way = self._plan.get("way", "")
            desired = self._documents.desired.read()
            to_run = desired is not None and desired.state == "running"
            if self._plan.get("back_base") is None:
                # A killed try may have started the job after its rollback.
                self._mark_way_back()
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
        """Put the old checkpoint and width in force; return a description. Can be repeated."""
        reference = self._documents.checkpoint.read()
        before = CheckpointRef.model_validate(self._plan["before"])
        assert reference is not None
        note = f"its rescale failed: {error.code}"
        if reference.generation == before.generation:
            # Only cores or memory were changed, which do not affect results; or a killed try restored the checkpoint.
            self._put_documents_back(note=note)
            if self._plan.get("after"):
                return f"{before.path}, generation {before.generation}"
            return "the job goes on where it is, as wide as before"
        # A generation puts its tables back before its first batch, and then removes them from the list. While the list
        # has a table, the generation has written nothing, and the table must still be put back.
        outputs = reference.outputs
        stuck: list[str] = []
        if not outputs:
            sinks = self._desired_before.spec.sinks
            outputs, stuck = outputs_before(
                self._workspace, self._job, sinks, generation=reference.generation, base=reference.base_batch
            )
        if stuck:
            # If these tables were put back, their readers would break; if they were left, replayed rows would be twice
            # in them. The state is the same in either number of partitions, so the new checkpoint stays.
            was = Width.model_validate(self._plan["was"])
            width = was.model_copy(update={"partitions": self._plan["to"]["partitions"]})
            # `over` is the YAML's width at the switch. Not read again: an error in the YAML must not block a rollback.
            decided = Parallelism.model_validate(self._plan["width"]).model_copy(update={"now": width})
            self._decide(self._documents.parallelism, decided)
            self._decide(self._documents.desired, self._desired_back(width, note=note))
            return (
                f"{', '.join(stuck)} can't be put back under readers, so the new number of partitions stays;"
                " cores and memory are as before"
            )
        self._decide(
            self._documents.checkpoint,
            # Keeps its own generation: its last batch in flight was written under this id.
            # Records its number of partitions, as at the switch: a driver may start before the spec is put back.
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
        """Return the desired state without this rescale: the old width, and all other values as they are now.

        After a try was killed, a person may have stopped the job or deployed another spec.
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

    def _mark_way_back(self) -> None:
        """Record the last batch of the old checkpoint before its driver starts: the next batch proves the start."""
        reference = self._documents.checkpoint.read()
        assert reference is not None
        back_base = CheckpointReader(self._workspace.storage, reference.path).last_commit()
        # Resets the downtime: a first batch on the discarded checkpoint did not end it.
        self.handle.plan(back_base=back_base, downtime_s=None)

    def _await_health_of_before(self) -> None:
        reference, base = self._documents.checkpoint.read(), self._plan["back_base"]
        assert reference is not None
        with self.handle.step("wait for health after the way back") as step:
            try:
                step.detail = driver_control.await_health(
                    self._workspace,
                    self._job,
                    generation=reference.generation,
                    base=base,
                    # The new driver's time-out may have been too short: the old driver gets at least a start's time.
                    timeout=max(self._health_timeout, START_TIMEOUT.total_seconds()),
                    say=self._say,
                )
                deadline = time.monotonic() + _REPORT_S
                while not self._note_downtime(observe(self._workspace, self._job), base):
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(0.1)
            except StreamwardenError as error:
                if error.code == "OPERATION_INTERRUPTED":
                    raise
                # No further rollback is possible; the supervisor continues from here.
                step.detail = f"not healthy either: {error.code}: {error.what}"

    # -- shared ------------------------------------------------------------------------------------------------------

    def _switched(self) -> bool:
        desired = self._documents.desired.read()
        return desired is not None and desired.operation == self.handle.id

    @property
    def _half_way(self) -> bool:
        return is_half_way(self.handle.operation)

    def _note_downtime(self, seen: Observation, base: int | None) -> bool:
        """Record the downtime: from the job's last batch, or its stop, to the first batch after it.

        If the source has nothing new, the downtime ends with the first idle time.

        Parameters
        ----------
        base
            The last batch before the stop.

        Returns
        -------
        bool
            Whether the downtime is settled.
        """
        if self._desired_before.state != "running":
            # The job was not meant to run: no downtime counts.
            return True
        stopped, back = self._plan.get("stopped_at"), self._back_at(seen, base)
        if back is None:
            return False
        took = (back - datetime.fromisoformat(stopped)).total_seconds() if stopped is not None else -1.0
        # A batch that was planned before the stop and retried after it proves nothing.
        if took >= 0:
            self.handle.plan(downtime_s=round(took, 2))
        return True

    def _back_at(self, seen: Observation, base: int | None) -> datetime | None:
        """Return when the first batch after the stop was done; None if that is not known yet."""
        reference = self._documents.checkpoint.read()
        assert reference is not None
        first, heartbeat = 0 if base is None else base + 1, seen.heartbeat
        if heartbeat is None or heartbeat.generation != reference.generation:
            # Generations repeat batch ids.
            return None
        recent = seen.progress.recent if seen.progress else []
        known = next((one.at for one in recent if one.batch == first), None)
        if known is not None:
            return known
        if heartbeat.idle_at is None and (not recent or recent[-1].batch < first):
            # The report comes a moment after the commit.
            return None
        reader = CheckpointReader(self._workspace.storage, reference.path)
        if reader.is_committed(first):
            # Its report is gone already, or was another driver's: the checkpoint has the batch's planning time.
            offsets = reader.offsets(first)
            return datetime.fromtimestamp(offsets.planned_ms / 1000, UTC) if offsets is not None else None
        # `idle_at` is the latest idle time; a resumed process cannot know the first one.
        waits = not self.handle.resumed and reader.last_commit() == base
        return heartbeat.idle_at if waits else None

    def _step(self, name: str) -> AbstractContextManager[Step]:
        self._heed()
        return self.handle.step(name)

    def _heed(self) -> None:
        """Raise if this operation was cancelled, or if the driver ended although it should run meanwhile."""
        self._see_it_run_on()
        asked = self._documents.cancel.read()
        if asked is not None and asked.operation == self.handle.id:
            raise StreamwardenError("OPERATION_CANCELLED", f"{self._job}: rescale {self.handle.id}, by {asked.by}")

    def _see_it_run_on(self) -> None:
        # No supervisor restarts the driver while an operation works on the job, and the preparation may take long.
        if not self._runs_on or time.monotonic() < self._looked + _LOOK_S:
            return
        self._looked = time.monotonic()
        seen = observe(self._workspace, self._job)
        # A frozen driver counts as ended, too; but a short silence, as in a store outage, does not.
        doubtful = self._silence.is_doubtful(self._workspace, seen)
        silent = (
            seen.phase is Phase.SILENT and not doubtful and not driver_control.may_speak_again(self._workspace, seen)
        )
        if silent or seen.phase in (Phase.DEAD, Phase.FAILED, Phase.STOPPED):
            what = f"{self._job}: its driver ended meanwhile: {seen.reason}"
            raise StreamwardenError("RESCALE_NOT_HEALTHY", what)

    @property
    def _desired_before(self) -> Desired:
        return Desired.model_validate(self._plan["desired"])
