"""The way back of a rescale, and what all of its parts share."""

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
"""How often the driver that runs on is looked at, while its rescale is prepared. 2 s, as by its supervisor."""

_REPORT_S = 2.0
"""How long the report of a committed batch is waited for: it is written within milliseconds, as a rule."""


class RescaleBack(JobOperation):
    """A rescale that can go back, from wherever it got to: its plan on record says all that takes."""

    _runs_on = False
    _looked = 0.0

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
                driver_control.end_driver(
                    self._workspace, self._job, by=self._by, reason=f"rescale failed: {error.code}"
                )
                self.handle.plan(way=self._put_back(error))
            way = self._plan.get("way", "")
            desired = self._documents.desired.read()
            to_run = desired is not None and desired.state == "running"
            if self._plan.get("back_base") is None:
                # A killed try may have started it since it put it back.
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
        # Tables are put in place before a generation's first batch, and struck off: while any is left, it wrote none,
        # and what it should have put back is still to be.
        outputs = reference.outputs
        stuck: list[str] = []
        if not outputs:
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

    def _mark_way_back(self) -> None:
        """Keep the batch that what ran before stands at, before it is started: of that start the next one tells."""
        reference = self._documents.checkpoint.read()
        assert reference is not None
        back_base = CheckpointReader(self._workspace.storage, reference.path).last_commit()
        # What was away is not back with the first batch of what is thrown away.
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
                    # The new one's time may have been what was too short. A start is given its time here.
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
                # There is nothing further to go back to; the supervisor has it from here.
                step.detail = f"not healthy either: {error.code}: {error.what}"

    # -- shared ------------------------------------------------------------------------------------------------------

    def _switched(self) -> bool:
        desired = self._documents.desired.read()
        return desired is not None and desired.operation == self.handle.id

    @property
    def _half_way(self) -> bool:
        return is_half_way(self.handle.operation)

    def _note_downtime(self, seen: Observation, base: int | None) -> bool:
        """Keep how long the job was away: from its last batch, or its stop, to the first batch after it.

        Or to the moment when it looked for one in vain: a source without news has missed nothing.

        Parameters
        ----------
        base
            The last batch before.

        Returns
        -------
        bool
            Whether there is no more to be told of it.
        """
        if self._desired_before.state != "running":
            # Nobody waited for it.
            return True
        stopped, back = self._plan.get("stopped_at"), self._back_at(seen, base)
        if back is None:
            return False
        took = (back - datetime.fromisoformat(stopped)).total_seconds() if stopped is not None else -1.0
        # A batch that was planned before the stop, and tried again after it, tells nothing.
        if took >= 0:
            self.handle.plan(downtime_s=round(took, 2))
        return True

    def _back_at(self, seen: Observation, base: int | None) -> datetime | None:
        """Return when the first batch after the stop was done, as far as that can be told by now."""
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
            # Its report is yet to come: a moment after its commit.
            return None
        reader = CheckpointReader(self._workspace.storage, reference.path)
        if reader.is_committed(first):
            # Seen late, when its report has gone, or by another driver: the checkpoint says when it was planned.
            offsets = reader.offsets(first)
            return datetime.fromtimestamp(offsets.planned_ms / 1000, UTC) if offsets is not None else None
        # It says when it last looked, so only who was there from the start can tell when it first did.
        waits = not self.handle.resumed and reader.last_commit() == base
        return heartbeat.idle_at if waits else None

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
        # A frozen one is nobody's either; but one that can't be heard for a while is not frozen.
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
