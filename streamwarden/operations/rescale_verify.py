"""The verdict on a rescale: the new driver starts and is healthy in time, or the job rolls back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.operation import Step, StepName
from streamwarden.model.supervision import Supervision
from streamwarden.operations.rescale_rollback import RescaleBack
from streamwarden.operations.state_copy import differing
from streamwarden.runtime.standby import Standby
from streamwarden.runtime.state_reader import StateAt, read_state
from streamwarden.supervision import driver_control
from streamwarden.supervision.backlog import has_caught_up, pending
from streamwarden.supervision.decide import assess, decide
from streamwarden.supervision.health_rules import Level
from streamwarden.supervision.observe import Observation, Phase, observe
from streamwarden.supervision.silence import Silence

__all__ = ["ENOUGH", "START", "RescaleVerdict"]

_POLL_S = 0.25

ENOUGH = 3
"""Batches after which the new driver may count as healthy. If nothing is left to read, it counts as healthy earlier.
The value is 3. Most health rules judge three batches, and a lack of cores or memory often shows in the second."""

_UNREAD: ErrorCode = "RESCALE_FAILED"

START = StepName.START
"""From this step on, a rescale cannot be cancelled: there may be batches that the old driver did not write."""


class RescaleVerdict(RescaleBack):
    """A rescale whose checkpoint and parallelism are in force."""

    def _start(self, step: Step, spare: Standby | None) -> None:
        if sum(one.name == START for one in self.handle.operation.steps) == 1:
            # Checks for a cancel during the switch. This step is recorded: from here on a cancel is refused.
            self._heed()
        super()._start(step, spare)

    def _verify(self) -> None:
        deadline = time.monotonic() + self._health_timeout
        with self.handle.step(StepName.FIRST_BATCH) as step:
            step.detail = self._await_first_batch()
            # Recorded while the progress still holds the first batch: the catch-up may take hours. A killed try may
            # have recorded it already.
            if self._plan.downtime_s is None:
                self._note_downtime(observe(self._workspace, self._job), self._plan.base)
        deadline += self._prove_replayed()
        with self.handle.step(StepName.CATCH_UP) as step:
            step.detail = self._await_caught_up(deadline)

    def _await_first_batch(self) -> str:
        try:
            return self._await_health()
        except StreamwardenError as error:
            seen = observe(self._workspace, self._job)
            failures = seen.heartbeat.failures if seen.heartbeat else 0
            if error.code != "DRIVER_DID_NOT_START" or not self._holds(seen) or failures:
                raise
            # After a long downtime the first batch is large.
            return f"none yet: {error.what}"

    def _holds(self, seen: Observation) -> bool:
        return self.handle.operation.params["on_timeout"] == "hold" and seen.phase is Phase.RUNNING

    def _prove_replayed(self) -> float:
        """Compare the job's state at its stop with the state that its copy reached by replaying.

        Done after the start, so that it adds no downtime. Rows and watermark were compared after each replayed batch.
        If Spark has already removed a state, as with fast batches, this is recorded, and is a failure only of a copy
        that has no other digests. Also observes the driver meanwhile, since no supervisor restarts it.

        Returns
        -------
        float
            The duration in seconds.

        Raises
        ------
        StreamwardenError
            ``RESCALE_STATE_DIFFERS``; ``RESCALE_FAILED`` if existing states cannot be read, twice; the driver's own
            error if it ends; ``S3_UNREACHABLE`` or ``S3_THROTTLED``.
        """
        if not self._plan.proof:
            return 0.0
        started = time.monotonic()

        def heed() -> None:
            self._see_it_live(time.monotonic() + self._health_timeout)

        with self.handle.step(StepName.DIGEST_AT_STOP) as step:
            asked = {name: StateAt(**state) for name, state in self._plan.proof.items()}
            found, wrong = self._read_states(asked, heed)
            if wrong and not self._any_removed(asked):
                # The cause may be an outage: `heed` then waits for its end, or raises.
                heed()
                found, wrong = self._read_states(asked, heed)
            if wrong and (self._plan.unproved or not self._any_removed(asked)):
                raise StreamwardenError(_UNREAD, f"{self._job}: the state could not be compared: {wrong}")
            if wrong:
                step.detail = f"not compared, and removed by now: {wrong}"
            elif stores := differing(found["job"]["digests"], found["copy"]["digests"]):
                what = f"{self._job}: {', '.join(stores)}, after batch {asked['job'].batch}"
                raise StreamwardenError("RESCALE_STATE_DIFFERS", what)
            else:
                step.detail = f"the same after batch {asked['job'].batch}"
        return time.monotonic() - started

    def _read_states(
        self, asked: dict[str, StateAt], heed: Callable[[], None]
    ) -> tuple[dict[str, dict[str, Any]], str]:
        """Return the answer for each state, and the errors in words; empty without errors."""
        try:
            found = read_state(self._workspace, asked, code=_UNREAD, heed=heed)
        except StreamwardenError as error:
            if error.code != _UNREAD:
                raise
            return {}, error.what
        wrong = [f"{asked[name]}: {answer['error']}" for name, answer in found.items() if "error" in answer]
        return found, "; ".join(wrong)

    def _any_removed(self, asked: dict[str, StateAt]) -> bool:
        """Return whether Spark may have removed one of the states: it keeps the states of its last batches only."""
        desired = self._documents.desired.read()
        assert desired is not None
        kept = desired.spec.state.min_batches_to_retain
        lasts = {one: CheckpointReader(self._workspace.storage, one.checkpoint).last_commit() for one in asked.values()}
        return any(last is not None and last - one.batch >= kept for one, last in lasts.items())

    def _await_caught_up(self, deadline: float) -> str:
        """Wait until the backlog is no larger than before and no new rule is critical; return the evidence."""
        known, backlog = set(self._plan.critical), self._plan.backlog
        while True:
            seen = self._see_it_live(deadline)
            if self._plan.downtime_s is None:
                self._note_downtime(seen, self._plan.base)
            recent = seen.progress.recent if seen.progress else []
            last = recent[-1] if recent else None
            left = pending(last)
            wrong = [f"{one.rule}: {one.what}" for one in self._findings(seen) if one.rule not in known]
            idle = seen.heartbeat is not None and seen.heartbeat.idle
            if last is None and not idle:
                # The first try fails, or the progress, which has the backlog, could not be written.
                wrong.append("a batch without progress")
            over = time.monotonic() >= deadline
            what = f"{left} left to read, {backlog or 0} before"
            if not wrong and (idle or has_caught_up(recent, backlog or 0)):
                # At the time-out fewer batches suffice, for a job with long intervals.
                if idle or over or len(recent) >= ENOUGH:
                    return "nothing is left to read" if idle or not left else what
                what = f"{len(recent)} of {ENOUGH} batches committed"
            what = "; ".join(wrong) or what
            self._say(what)
            if over:
                if self._holds(seen):
                    return f"held as asked, though not healthy in time: {what}"
                raise StreamwardenError("RESCALE_SLOW", what)
            time.sleep(_POLL_S)

    def _see_it_live(self, deadline: float) -> Observation:
        """Observe the job, with retries in a store outage until the deadline; raise the driver's error if it ended."""
        silence = Silence()
        while silence.is_doubtful(
            self._workspace, seen := driver_control.observe_by(self._workspace, self._job, deadline)
        ):
            time.sleep(_POLL_S)
        if not seen.phase.alive:
            raise seen.error.to_exception() if seen.error else StreamwardenError("DRIVER_DIED", seen.reason)
        return seen

    def _findings(self, seen: Observation) -> list[Any]:
        memory = self._documents.supervision.read() or Supervision()
        health = assess(seen, memory, decide(seen, memory))
        return [one for one in health.findings if one.level is Level.CRITICAL and one.rule != "restarts"]
