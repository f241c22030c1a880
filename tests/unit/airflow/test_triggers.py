from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from streamwarden.airflow import triggers
from streamwarden.airflow.triggers import SuperviseTrigger
from streamwarden.control.documents import HealthRecord, RuleState, utc_now
from streamwarden.control.health.rules import Finding, Health, Level
from streamwarden.control.supervision import Action, Observation, Phase, Verdict
from tests.unit.control.test_supervision import JOB, seen

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
    # It was told, and goes on swinging: no news. Once it is critical for good, that is one.
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
