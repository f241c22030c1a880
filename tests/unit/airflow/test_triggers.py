from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import psutil
import pytest

from streamwarden.airflow import triggers
from streamwarden.airflow.triggers import SuperviseTrigger
from streamwarden.model.record import utc_now
from streamwarden.model.status import Launch
from streamwarden.model.supervision import HealthRecord, RuleState
from streamwarden.runtime.processes import process_of
from streamwarden.supervision.decide import Action, Verdict
from streamwarden.supervision.health_rules import Finding, Health, Level
from streamwarden.supervision.observe import Observation, Phase
from tests.unit.supervision.test_supervision import JOB, seen

pytestmark = pytest.mark.unit

HOLD = 30.0


def trigger(**kwargs: Any) -> SuperviseTrigger:
    return SuperviseTrigger(job=JOB, profile="test", config="", root="", holder="h", attempt=1, settle=0, **kwargs)


class Clock:
    """Time as a trigger sees it, and a rule's level at each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        self.told = HealthRecord()
        self.trigger = trigger()
        monkeypatch.setattr(triggers.time, "time", lambda: self.now)

    def look(self, level: str, *, after: float = 10.0) -> dict[str, str]:
        self.now += after
        findings = () if level == "ok" else (Finding("backlog", Level(level), level, 1, 1),)
        return self.trigger._lasting_changes(seen(Phase.RUNNING), Health(findings), self.told)

    def tell(self, level: Any) -> None:
        self.told = HealthRecord(rules={"backlog": RuleState(level=level, since=utc_now(), what="")})


def test_a_rule_that_swings_is_told_at_the_nearest_level_that_it_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert [clock.look(level) for level in ("warn", "critical", "warn")] == [{}] * 3
    assert clock.look("critical") == {"backlog": "warn"}
    # It was sent, and keeps swinging: no change. Once it stays critical, that is a change.
    clock.tell("warn")
    assert [clock.look(level) for level in ("warn", "critical", "warn", "critical")] == [{}] * 4
    assert [clock.look("critical") for _ in range(3)] == [{}, {}, {"backlog": "critical"}]
    clock.tell("critical")
    # Downwards it is the same.
    assert [clock.look(level) for level in ("ok", "warn", "ok")] == [{}] * 3
    assert clock.look("warn") == {"backlog": "warn"}


def test_a_level_that_is_reached_at_once_is_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert [clock.look("critical") for _ in range(4)] == [{}] * 3 + [{"backlog": "critical"}]
    assert clock.trigger._differences(but={"backlog": "critical"}) == []


def test_a_level_beyond_the_one_that_is_told_goes_on_lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.look("warn")
    critical = [clock.look("critical") for _ in range(3)]
    assert critical == [{}, {}, {"backlog": "warn"}]
    assert clock.trigger._differences(but=critical[-1]) == [("backlog", "critical", clock.now - 20)]


def test_a_level_that_ends_has_to_last_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    looks = ["warn", "warn", "ok", "warn", "warn", "warn", "warn"]
    assert [clock.look(level) for level in looks] == [{}] * 6 + [{"backlog": "warn"}]


@pytest.mark.parametrize("action", [Action.RESTART, Action.STOP])
def test_what_lasts_is_handed_on_over_a_restart(monkeypatch: pytest.MonkeyPatch, action: Action) -> None:
    # As of a job that crashes again and again: each wake begins a trigger.
    lasting = Health((Finding("restarts", Level.WARN, "many", 2, 2),))

    def look(_: SuperviseTrigger) -> tuple[Observation, Verdict, Health, HealthRecord]:
        return seen(Phase.DEAD), Verdict(action, "for the test"), lasting, HealthRecord()

    async def first(woken: SuperviseTrigger) -> Any:
        async for event in woken.run():
            return event.payload
        return None

    monkeypatch.setattr(SuperviseTrigger, "_look", look)
    event = asyncio.run(first(trigger()))
    assert event["action"] == action.value and not event["rules"]
    ((rule, level, began),) = event["differing"]
    again = trigger(differing=event["differing"])
    assert (rule, level) == ("restarts", "warn")
    monkeypatch.setattr(triggers.time, "time", lambda: began + HOLD)
    assert seen(Phase.DEAD).desired.spec.health.hold == timedelta(seconds=HOLD)  # type: ignore[union-attr]
    assert again._lasting_changes(seen(Phase.DEAD), lasting, HealthRecord()) == {"restarts": "warn"}


def paused(observation: Observation | None, end: subprocess.Popen[bytes] | None = None) -> float:
    """Return how long a trigger that looks every 0.4 s waits; `end` is killed once it does."""

    async def wait() -> float:
        began = time.monotonic()
        waiting = asyncio.create_task(trigger(poll_interval=0.4)._pause(observation))
        await asyncio.sleep(0.1)
        if end is not None:
            end.kill()
        await waiting
        return time.monotonic() - began

    return asyncio.run(wait())


def test_the_end_of_a_quiet_jobs_driver_is_seen_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as driver:
        launch = Launch(incarnation="i1", at=utc_now(), by="test", reason="", digest="", process=process_of(driver.pid))
        running = dataclasses.replace(seen(Phase.RUNNING), launch=launch)
        handles = psutil.Process().num_fds()
        assert paused(running) >= 1.0
        assert paused(None) < 1.0
        assert paused(running, driver) < 0.8
        # It is gone, and so nothing is to be waited for: the next look says what it is then.
        assert paused(running) >= 1.0
        assert psutil.Process().num_fds() == handles


@pytest.mark.parametrize(
    ("phase", "action", "expected"),
    [
        (Phase.RUNNING, Action.WAIT, True),
        (Phase.STARTING, Action.WAIT, False),
        (Phase.STOPPING, Action.WAIT, False),
        (Phase.RUNNING, Action.STOP, False),
        (Phase.DEAD, Action.RESTART, False),
    ],
)
def test_only_a_job_that_runs_as_it_should_is_looked_at_more_seldom(
    phase: Phase, action: Action, expected: bool
) -> None:
    assert triggers._is_quiet(seen(phase), Verdict(action, "for the test")) is expected
