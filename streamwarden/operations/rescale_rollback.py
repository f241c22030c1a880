"""The rollback of a rescale, and the code that all its parts share."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Step, StepName
from streamwarden.operations.output_rollback import outputs_before
from streamwarden.operations.workflow import JobOperation
from streamwarden.store.effective_spec import parallelism_of, with_parallelism
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import START_TIMEOUT, Observation, Phase, observe

__all__ = ["RescaleBack"]

_LOOK_S = 2.0
"""How often the running driver is observed while its rescale is prepared. 2 s, as by its supervisor."""

_REPORT_S = 2.0
"""How long to wait for the report of a committed batch: it is written within milliseconds, as a rule."""


class RescaleBack(JobOperation):
    """A rescale that can roll back from any step: its recorded plan has all values for that."""

    unhealthy = "RESCALE_UNHEALTHY"
    _runs_on = False
    _looked = 0.0

    def _undo(self, error: StreamwardenError) -> str:
        """Put what was in force before the rescale in force again; return what that is, in words.

        That is the old checkpoint, with the tables put back to their versions at the switch. Two cases keep more: the
        checkpoint stays if it never changed, and the new one stays if a table can't be put back under its readers.
        """
        reference, before, found = self._documents.checkpoint.read(), self._before, self._documents.desired.read()
        assert reference is not None and before.checkpoint is not None
        assert before.desired is not None and found is not None
        # A deploy over a dead driver may have changed the spec since the switch: only its parallelism is put back.
        spec = with_parallelism(found.spec, parallelism_of(before.desired.spec))
        if reference.generation == before.checkpoint.generation:
            # Only cores or memory were changed, which do not affect results; or a killed try restored the checkpoint.
            self._write_back(None, error=error, before=before, spec=spec)
            if self._after.checkpoint is not None:
                return f"{before.checkpoint.path}, generation {before.checkpoint.generation}"
            return "the job continues where it is, with its earlier parallelism"
        # A generation puts its tables back before its first batch, and then removes them from the list. While the list
        # has a table, the generation has written nothing, and the table must still be put back.
        outputs = reference.outputs
        stuck: list[str] = []
        if not outputs:
            outputs, stuck = outputs_before(
                self._workspace,
                self._job,
                before.desired.spec.delta_sinks,
                generation=reference.generation,
                base=reference.base_batch,
            )
        assert self._plan.was is not None and self._plan.to is not None
        if stuck:
            # If these tables were put back, their readers would break; if they were left, replayed rows would be twice
            # in them. The state is the same in either number of partitions, so the new checkpoint stays.
            parallelism = self._plan.was.model_copy(update={"partitions": self._plan.to.partitions})
            assert self._after.parallelism is not None
            # `over` is what the YAML said at the switch. Not read again: an error in it must not block a rollback.
            kept = before.model_copy(
                update={"parallelism": self._after.parallelism.model_copy(update={"now": parallelism})}
            )
            self._write_back(None, error=error, before=kept, spec=with_parallelism(found.spec, parallelism))
            return (
                f"{', '.join(stuck)} can't be put back under readers, so the new number of partitions stays;"
                " cores and memory are as before"
            )
        # Keeps its own generation: its last batch in flight was written under this id.
        # Records its number of partitions, as at the switch: a driver may start before the spec is put back.
        update = {
            "highest": reference.highest,
            "outputs": outputs,
            "fenced": False,
            "partitions": self._plan.was.partitions,
        }
        checkpoint = before.checkpoint.model_copy(update=update)
        self._write_back(checkpoint, error=error, before=before, spec=spec)
        tables = f", {', '.join(one.table for one in outputs)} put back" if outputs else ""
        return f"{checkpoint.path}, generation {checkpoint.generation}{tables}"

    def _before_start_again(self, *, rolled_back: bool) -> None:
        """Record the last batch of the old checkpoint before its driver starts: the next batch proves the start."""
        if rolled_back and self._plan.back_base is not None:
            # A killed try may have started the job after its rollback.
            return
        reference = self._documents.checkpoint.read()
        assert reference is not None
        # Resets the downtime: a first batch on the discarded checkpoint did not end it.
        self.handle.plan(back_base=self._reader(reference).last_commit(), downtime_s=None)

    def _after_start_again(self) -> None:
        reference, base = self._documents.checkpoint.read(), self._plan.back_base
        assert reference is not None
        with self.handle.step(StepName.VERIFY_ROLLBACK) as step:
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
        if not self._plan.was_running:
            # The job was not meant to run: no downtime counts.
            return True
        stopped, back = self._plan.stopped_at, self._back_at(seen, base)
        if back is None:
            return False
        took = (back - stopped).total_seconds() if stopped is not None else -1.0
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
        reader = self._reader(reference)
        if reader.is_committed(first):
            # Its report is gone already, or was another driver's: the checkpoint has the batch's planning time.
            offsets = reader.offsets(first)
            return datetime.fromtimestamp(offsets.planned_ms / 1000, UTC) if offsets is not None else None
        # `idle_at` is the latest idle time; a resumed process cannot know the first one.
        waits = not self.handle.resumed and reader.last_commit() == base
        return heartbeat.idle_at if waits else None

    def _step(self, name: StepName) -> AbstractContextManager[Step]:
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
