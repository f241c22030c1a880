"""The trigger that observes a job while its task is deferred and holds no slot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.log import amask_secret
from airflow.triggers.base import BaseTrigger, TriggerEvent

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.supervision import HealthRecord, Supervision
from streamwarden.redaction import secrets_of
from streamwarden.runtime.processes import end_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import alert_queue, driver_control
from streamwarden.supervision.claim import current_claim, note_deferred
from streamwarden.supervision.decide import Action, Verdict, assess, decide
from streamwarden.supervision.health_rules import Health
from streamwarden.supervision.observe import Observation, Phase, observe, process_of_driver
from streamwarden.supervision.silence import Silence
from streamwarden.supervision.stuck import Standstill

__all__ = ["ALERT", "SuperviseTrigger"]

# The states of a deferred task, set by a person, in which nothing observes its job any more. A cleared task is not in
# them: it is scheduled, queued, running or deferred again, and its new try observes the same driver.
_ENDED = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})
ALERT = "alert"
"""The action of an event that only requests that a change of health is sent."""

_DELETED = "deleted"
_UNKNOWN = "unknown"

_PROGRESS_EVERY_S = 60.0
_QUIET = 2.5
"""Factor on the poll interval while the job runs normally: the cost of a poll is the cost of a fleet."""

_TOLERABLE_S = 60.0
"""Seconds for which documents may be unreadable before the trigger fires. A short file system outage is no event."""


class SuperviseTrigger(BaseTrigger):
    """Fires when a job needs action: a restart whose back-off has passed, a stop, an end, a failure, an alert.

    An alert is due when a health rule's level has differed from the last one sent for the spec's ``health.hold``. The
    alert reports the level nearest to the last one sent that the rule had in that time.

    Only reads the job's documents: two triggerers may run it at once, and the task that it resumes observes again. It
    records in its task's claim that it observes, and that it fires. It does not restart drivers, has no timeout, and
    does not end when Airflow's components do.

    Parameters
    ----------
    job
        The job.
    profile, config, root
        The place, resolved by the operator: the triggerer's own environment is not used.
    holder, attempt
        The claim of the task that defers, see :class:`~streamwarden.supervision.claim.Claim`.
    incarnation
        The driver that ran when the task deferred.
    poll_interval
        Seconds between polls while something is going on; two and a half times as long while the job runs normally. It
        also polls as soon as the process of a driver on the triggerer's machine ends.
    settle
        Seconds in which nothing is fired. If a trigger fires before the scheduler knows that the deferring process
        ended, the scheduler can fail the task for no reason.
    differing
        By rule and level, the time since when the rule has been at or beyond a level not yet sent, as the previous
        trigger saw it. A notifier that is retried, or a job that keeps restarting, must not prevent a level from
        lasting for ``health.hold``.
    """

    def __init__(
        self,
        *,
        job: str,
        profile: str,
        config: str,
        root: str,
        holder: str,
        attempt: int,
        incarnation: str | None = None,
        poll_interval: float = 2.0,
        settle: float = 5.0,
        differing: Sequence[tuple[str, str, float]] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job
        self.profile = profile
        self.config = config
        self.root = root
        self.holder = holder
        self.attempt = attempt
        self.incarnation = incarnation
        self.poll_interval = poll_interval
        self.settle = settle
        self._said = ""
        self._batch: int | None = None
        self._progress_at = 0.0
        self._differing = {(rule, level): began for rule, level, began in differing}
        self._silence, self._standstill = Silence(), Standstill()
        self._doubtful = False
        self._noted: bool | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class's path and the arguments that recreate this trigger."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "job": self.job,
                "profile": self.profile,
                "config": self.config,
                "root": self.root,
                "holder": self.holder,
                "attempt": self.attempt,
                "incarnation": self.incarnation,
                "poll_interval": self.poll_interval,
                "settle": self.settle,
                "differing": self._differences(),
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll repeatedly; yield one event once the task has something to do."""
        # In its log, too: an exception's chain may have clients' texts.
        await amask_secret(list(secrets_of()))
        try:
            event = await self._await_event()
        except Exception:
            # From here on nothing observes, as after firing: a task that ends now was not ended by a person.
            await self._note(deferred=False)
            raise
        await self._note(deferred=False)
        yield event

    async def _await_event(self) -> TriggerEvent:
        settled = time.monotonic() + self.settle
        readable = time.monotonic()
        while True:
            quiet = None
            try:
                seen, verdict, health, told = await asyncio.to_thread(self._look)
            except (StreamwardenError, OSError) as error:
                self._say(f"can't read the control documents: {error}")
                if time.monotonic() - readable > max(_TOLERABLE_S, self.settle):
                    # The task reads them again. If they are still unreadable, it fails, and Airflow retries it.
                    return _event("look", str(error), None)
            else:
                readable = time.monotonic()
                await self._note(deferred=True)
                self.incarnation = seen.incarnation
                self._report(seen, verdict)
                lasted = self._lasting_changes(seen, health, told)
                if _due(verdict) and not self._doubtful and time.monotonic() >= settled:
                    return _event(verdict.action.value, verdict.why, seen, {}, self._differences())
                # An alert about missing supervision does not resume the task, which perhaps can't start.
                ask = alert_queue.unsent_due(told, but={alert_queue.UNWATCHED})
                # A task that resumes would begin to count a standstill anew.
                if (lasted or (ask and not self._doubtful)) and time.monotonic() >= settled:
                    why = ", ".join(lasted) or "a notification is to be sent again"
                    return _event(ALERT, why, seen, lasted, self._differences(but=lasted))
                if _is_quiet(seen, verdict) and not self._differing and not told.unsent:
                    quiet = seen
            await self._pause(quiet)

    async def on_kill(self) -> None:
        """Stop the last observed driver, for good, if a person ended the task; otherwise do nothing.

        Airflow also calls this when a triggerer has lost its triggers to another one, and on a clear, when the task's
        next try already observes the driver. So the task's state decides, and then the claim: a later run or try that
        has taken over the job keeps it. The stop is addressed to one incarnation, never to a newer one.
        """
        state = await self._task_state()
        if state != _DELETED and state not in _ENDED:
            self.log.info("the task is %s: driver %s keeps running", state or "cleared", self.incarnation)
            return
        done = await asyncio.to_thread(self._stop, f"its supervise task was ended by hand ({state})")
        self.log.info(done)

    async def _pause(self, quiet: Observation | None) -> None:
        """Wait until the next poll is due, or until the driver ends; longer if all is quiet."""
        process = process_of_driver(quiet) if quiet else None
        handle = end_of(process) if process else None
        if handle is None:
            await asyncio.sleep(self.poll_interval * (_QUIET if quiet else 1))
            return
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(handle, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), self.poll_interval * _QUIET)
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(handle)
            os.close(handle)

    async def _note(self, *, deferred: bool) -> None:
        """Record in the claim whether this trigger observes, once for each change."""
        if self._noted == deferred:
            return
        with contextlib.suppress(StreamwardenError, OSError):
            await asyncio.to_thread(
                note_deferred,
                self._workspace(),
                self.job,
                holder=self.holder,
                attempt=self.attempt,
                deferred=deferred,
            )
            self._noted = deferred

    def _look(self) -> tuple[Observation, Verdict, Health, HealthRecord]:
        workspace = self._workspace()
        documents = JobDocuments(workspace.storage, self.job)
        seen = observe(workspace, self.job)
        memory = documents.supervision.read() or Supervision()
        verdict = decide(seen, memory)
        # Call both each time: their earlier observations count.
        doubts = self._silence.is_doubtful(workspace, seen), self._standstill.is_doubtful(seen, verdict)
        self._doubtful = any(doubts)
        return seen, verdict, assess(seen, memory, verdict), documents.health.read() or HealthRecord()

    def _lasting_changes(self, seen: Observation, health: Health, told: HealthRecord) -> dict[str, str]:
        """Return by rule the unsent level that it has been at, or beyond, for ``health.hold``.

        If a rule was ok and now alternates between warn and critical, that level is warn: neither level lasts, but the
        rule has not been ok for all that time.
        """
        if seen.operation is not None and not seen.phase.alive:
            # The job is down for this reason, which implies neither recovery nor a problem.
            return {}
        # Wall-clock time: the trigger that resumes after a notifier's retry can use it too.
        now = time.time()
        since = self._differing
        differing = [(rule, level.value) for rule, level in alert_queue.apart(told, health)]
        self._differing = {one: since.get(one, now) for one in differing}
        hold = seen.desired.spec.health.hold.total_seconds() if seen.desired else 0.0
        # In this order the level furthest from the last one sent wins.
        return {rule: level for (rule, level), began in self._differing.items() if now - began >= hold}

    def _differences(self, *, but: Mapping[str, str] | None = None) -> list[tuple[str, str, float]]:
        """Return the differing levels with their start times; levels just sent are dropped and must last anew."""
        told, passed = but or {}, set[str]()
        kept = []
        for (rule, level), began in self._differing.items():
            if rule not in told or rule in passed:
                kept.append((rule, level, began))
            elif told[rule] == level:
                # The following levels are further from the last one sent, and have not lasted yet.
                passed.add(rule)
        return kept

    def _stop(self, reason: str) -> str:
        workspace = self._workspace()
        claim = current_claim(workspace, self.job)
        if claim is None or (claim.holder, claim.attempt) != (self.holder, self.attempt):
            return f"{self.job} is supervised by {claim.holder if claim else 'no task'} now: nothing stopped"
        if self.incarnation is None:
            return f"{self.job}: no driver was seen: nothing to stop"
        seen = driver_control.stop(
            workspace,
            self.job,
            by=f"airflow:{self.holder}",
            reason=reason,
            incarnation=self.incarnation,
            timeout=None,
        )
        if seen.incarnation != self.incarnation:
            return f"{self.job} runs as {seen.incarnation} now, not {self.incarnation}: nothing stopped"
        return f"{self.job}: driver {self.incarnation} is asked to stop: {reason}"

    async def _task_state(self) -> str | None:
        """Return the state of this trigger's task; None is Airflow's state for a cleared task."""
        ti = self.task_instance
        if ti is None:
            return _UNKNOWN
        for _ in range(3):
            try:
                # In a thread: on the event loop, the SDK's request would wait for the same loop that answers it.
                states = await asyncio.to_thread(
                    RuntimeTaskInstance.get_task_states, dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id]
                )
            except Exception:
                # Any exception: if the state is unknown, the driver is left alone.
                self.log.exception("can't get the state of the task")
                await asyncio.sleep(1)
                continue
            run = states.get(ti.run_id)
            if run is None:
                return _DELETED
            state = next(iter(run.values()), _DELETED)
            return None if state is None else str(getattr(state, "value", state))
        return _UNKNOWN

    def _workspace(self) -> Workspace:
        return open_workspace(self.profile, config=Path(self.config), root=self.root)

    def _report(self, seen: Observation, verdict: Verdict) -> None:
        if verdict.action is Action.WAIT:
            self._say(f"{seen.incarnation} is {seen.phase}", detail=seen.reason)
        else:
            when = f", not before {verdict.not_before:%H:%M:%S} UTC" if verdict.not_before else ""
            self._say(f"{seen.incarnation} is {seen.phase} ({seen.reason}): {verdict.action}{when}")
        last = seen.progress.last if seen.progress else None
        now = time.monotonic()
        if last is None or last.batch == self._batch or now - self._progress_at < _PROGRESS_EVERY_S:
            return
        self._batch, self._progress_at = last.batch, now
        lag = "" if last.watermark_lag_s is None else f", watermark lag {last.watermark_lag_s:.0f} s"
        self.log.info(
            "batch %d: %d rows in, %.0f rows/s, %d ms%s, %d late, %d state rows",
            last.batch,
            last.rows_in,
            last.rows_per_second,
            last.duration_ms,
            lag,
            last.late_rows,
            last.state_rows,
        )

    def _say(self, line: str, *, detail: str = "") -> None:
        # Once for each change: the detail names the newest batch, and would flood the log.
        if line != self._said:
            self._said = line
            self.log.info("%s%s", line, f" ({detail})" if detail else "")


def _is_quiet(seen: Observation, verdict: Verdict) -> bool:
    return verdict.action is Action.WAIT and seen.phase is Phase.RUNNING and seen.operation is None


def _event(
    action: str,
    why: str,
    seen: Observation | None,
    lasted: Mapping[str, str] | None = None,
    differing: Sequence[tuple[str, str, float]] = (),
) -> TriggerEvent:
    # Airflow drops one of two triggerers' identical events.
    payload = {
        "action": action,
        "why": why,
        "incarnation": seen.incarnation if seen else None,
        "phase": seen.phase.value if seen else None,
        "rules": list(lasted or {}),
        "lasted": dict(lasted or {}),
        "differing": [list(one) for one in differing],
    }
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def _due(verdict: Verdict, now: datetime | None = None) -> bool:
    if verdict.action is Action.WAIT:
        return False
    if verdict.action is Action.RESTART and verdict.not_before is not None:
        return (now or utc_now()) >= verdict.not_before
    return True
