from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import ValidationError

from streamwarden.model.health_spec import HealthSpec
from streamwarden.model.progress import BatchProgress, OperatorProgress, Progress, SourceProgress
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Desired, DriverState, Heartbeat
from streamwarden.model.supervision import HealthRecord, Restart
from streamwarden.runtime.processes import current_process
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import alert_queue
from streamwarden.supervision.health_rules import RULES, Facts, Finding, Health, Level, judge, stuck_for
from streamwarden.supervision.held_tables import HeldTable

pytestmark = pytest.mark.unit

NOW = utc_now()
S = timedelta(seconds=1)
QUICK = {"interval": "10s", "timeout": "10s"}


def desired(*, state: Literal["running", "suspended"] = "running", **fields: Any) -> Desired:
    spec = JobSpec.model_validate(
        {
            "name": "job",
            "module": "m",
            "source": {"kind": "files", "path": "landing"},
            "sinks": [{"table": "t", "mode": "append"}],
            **fields,
        }
    )
    return Desired(job="job", state=state, spec=spec, digest="", profile="test", updated_at=NOW, updated_by="test")


def batches(
    count: int = 10, *, every: timedelta = 60 * S, last: timedelta = 5 * S, **fields: Any
) -> list[BatchProgress]:
    """The newest `last` ago; a field given as a list has one value a batch."""
    made = []
    for number in range(count):
        own = {name: value[number] if isinstance(value, list) else value for name, value in fields.items()}
        at = NOW - last - (count - 1 - number) * every
        made.append(BatchProgress(**{"batch": number, "at": at, "duration_ms": 1000, "rows_in": 1000, **own}))
    return made


def facts(
    done: Iterable[BatchProgress] | None = None,
    *,
    alive: bool = True,
    beat: dict[str, Any] | None = None,
    restarts: Iterable[timedelta] = (),
    wanted: Desired | None = None,
    **fields: Any,
) -> Facts:
    recent = list(batches() if done is None else done)
    heartbeat = Heartbeat(
        incarnation="i",
        at=NOW,
        **{"started_at": NOW - 7200 * S, "state": DriverState.RUNNING, **(beat or {})},
        process=current_process(),
    )
    return Facts(
        now=NOW,
        desired=wanted or desired(**fields),
        alive=alive,
        heartbeat=heartbeat,
        progress=Progress(incarnation="i", at=NOW, last=recent[-1] if recent else None, recent=recent),
        launched_at=NOW - 7200 * S,
        restarts=[Restart(at=NOW - age, after=str(age), reason="") for age in restarts],
    )


def levels(found: Facts) -> dict[str, str]:
    return {finding.rule: finding.level.value for finding in judge(found).findings}


def source(taken: int, pending: list[int]) -> list[SourceProgress]:
    return [SourceProgress(unit="files", taken=taken, pending=left) for left in pending]


def rocksdb(**metrics: int) -> tuple[OperatorProgress, ...]:
    return (OperatorProgress(id=0, name="op", rows=1, bytes=1, metrics=metrics),)


def test_a_job_that_goes_on_is_well() -> None:
    assert judge(facts()) == Health() and Health().level is Level.OK


def test_a_suspended_job_is_well_whatever_it_was() -> None:
    unwell = facts(batches(last=timedelta(days=3)))
    assert levels(unwell) == {"no_batch": "critical"}
    assert levels(facts(batches(last=timedelta(days=3)), wanted=desired(state="suspended"))) == {}


def test_a_driver_that_an_operation_has_stopped_owes_no_batch() -> None:
    stopped = facts(batches(last=timedelta(days=3)), alive=False)
    assert levels(stopped) == {}
    assert levels(replace(stopped, down="the driver is dead")) == {"driver": "warn", "no_batch": "critical"}


# By default max(60 s, 10 min) x (3 + 2), and 1 + 2 + 4 s between the tries: 50 min; warn at half of it.
@pytest.mark.parametrize(
    ("ago", "fields", "level"),
    [
        (24 * 60, {}, None),
        (26 * 60, {}, "warn"),
        (49 * 60, {}, "warn"),
        (51 * 60, {}, "critical"),
        (58, {"trigger": QUICK}, "critical"),
        (56, {"trigger": QUICK}, "warn"),
        (49, {"trigger": {"interval": "10s", "timeout": "1s"}}, "warn"),
        (21, {"trigger": {"interval": "10s", "timeout": "1s"}, "failures": {"tolerable_consecutive": 0}}, "critical"),
        (9, {"health": {"no_batch": {"warn": "5s", "critical": "10s"}}}, "warn"),
        (11, {"health": {"no_batch": {"warn": "5s", "critical": "10s"}}}, "critical"),
        (11, {"health": {"no_batch": {"critical": "10s"}}}, "critical"),
        (51 * 60, {"health": {"no_batch": {"warn": "2h"}}}, None),
        (51 * 60, {"trigger": {"min_pause": "1h"}}, None),
        (111 * 60, {"trigger": {"min_pause": "1h"}}, "critical"),
        # Twenty tries: 1, 2, 4 … 64 s, and thirteen times 2 min; without a longest wait it would be twelve days.
        (220 + 1688, {"trigger": QUICK, "failures": {"tolerable_consecutive": 20}}, "critical"),
        (220 + 1686, {"trigger": QUICK, "failures": {"tolerable_consecutive": 20}}, "warn"),
    ],
)
def test_no_batch_for_too_long(ago: int, fields: dict[str, Any], level: str | None) -> None:
    found = facts(batches(last=ago * S), **fields)
    assert levels(found).get("no_batch") == level
    assert (stuck_for(found) is not None) == (level == "critical")


def test_a_job_without_input_is_not_stuck_and_one_that_hangs_after_it_is() -> None:
    old = batches(last=timedelta(days=1))
    assert levels(facts(old, beat={"idle": True, "idle_at": NOW - 3 * S})) == {}
    # Its heartbeat still says idle: what counts is when it was.
    assert levels(facts(old, beat={"idle": True, "idle_at": NOW - 3600 * S})) == {"no_batch": "critical"}


def test_a_driver_that_never_had_a_batch_counts_from_its_start() -> None:
    assert levels(facts([])) == {"no_batch": "critical"}
    assert "no batch committed: 2.0 h (critical at 50 min)" in judge(facts([])).findings[0].what


def test_failed_tries_and_restarts() -> None:
    assert levels(facts(batches(tries=[1] * 9 + [2]))) == {"failed_tries": "warn"}
    assert levels(facts(batches(tries=[1] * 9 + [3]), beat={"failures": 1})) == {"failed_tries": "critical"}
    assert levels(facts(batches(20, tries=[4] + [1] * 19))) == {}, "it is out of the window"
    assert levels(facts(restarts=[60 * S])) == {}
    assert levels(facts(restarts=[60 * S, 120 * S])) == {"restarts": "warn"}
    assert levels(facts(restarts=[n * S for n in range(5)])) == {"restarts": "critical"}
    assert levels(facts(restarts=[timedelta(hours=1)] * 5)) == {}


def test_a_limit_of_restarts_above_the_budget_is_reached_with_it() -> None:
    one = desired(restarts={"max": 1})
    assert levels(facts(wanted=one)) == {}
    assert levels(facts(restarts=[60 * S], wanted=one)) == {"restarts": "critical"}
    many = desired(restarts={"max": 3}, health={"restarts": {"warn": 9}})
    assert levels(facts(restarts=[n * S for n in range(2)], wanted=many)) == {}
    assert levels(facts(restarts=[n * S for n in range(3)], wanted=many)) == {"restarts": "critical"}
    none = desired(restarts={"max": 0})
    assert levels(facts(wanted=none)) == {}


def test_watermark_lag_is_the_least_of_the_window() -> None:
    lags = [3600.0 * 9] * 9 + [3600.0]
    assert levels(facts(batches(watermark_lag_s=lags), watermark="2h")) == {}
    assert levels(facts(batches(watermark_lag_s=3600.0 * 9), watermark="2h")) == {"watermark_lag": "warn"}
    assert levels(facts(batches(watermark_lag_s=3600.0 * 25), watermark="2h")) == {"watermark_lag": "critical"}
    assert levels(facts(batches(watermark_lag_s=3600.0 * 25))) == {}, "no watermark is declared"
    given = {"health": {"watermark_lag": {"warn": "4h", "critical": "6h"}}}
    assert levels(facts(batches(watermark_lag_s=3600.0 * 5), **given)) == {"watermark_lag": "warn"}
    assert levels(facts(batches(watermark_lag_s=3600.0 * 7), **given)) == {"watermark_lag": "critical"}
    page_only = {"health": {"watermark_lag": {"critical": "6h"}}}
    assert levels(facts(batches(watermark_lag_s=3600.0 * 7), **page_only)) == {"watermark_lag": "critical"}


def test_backlog_counts_in_time_at_the_jobs_own_pace() -> None:
    # Ten files a second.
    once = {"trigger": {"interval": "1s"}}
    assert levels(facts(batches(source=source(10, [5_900] * 10)), **once)) == {}
    assert levels(facts(batches(source=source(10, [6_100] * 10)), **once)) == {"backlog": "warn"}
    found = judge(facts(batches(source=source(10, [36_100] * 10)), **once))
    assert found.findings[0].what == "36,100 files are waiting, worth: 60 min (critical at 60 min)".replace(",", "", 1)


def test_a_backlog_counts_by_the_batches_own_time_and_not_by_the_interval() -> None:
    # Ten files a second, though a batch that finds little begins once a minute.
    assert levels(facts(batches(source=source(10, [5_900] * 10)))) == {}
    assert levels(facts(batches(source=source(10, [110] * 10), duration_ms=30_000))) == {}
    assert levels(facts(batches(source=source(10, [210] * 10), duration_ms=30_000))) == {"backlog": "warn"}


def test_a_backlog_that_was_larger_than_its_batches_and_shrinks_is_no_alarm() -> None:
    """What lands at 240 files a minute while 64 are taken in a few seconds: at first each report finds more."""
    # Ten batches of 64 files, 3 s each, after 168 s of the replay: before, this took ten minutes and was critical.
    left = [672 - 64 * n for n in range(1, 11)]
    assert levels(facts(batches(source=source(64, left), duration_ms=3_000))) == {}
    grows_then_shrinks = [40, 60, 80, 100, 90, 70, 50, 30, 10, 0]
    assert levels(facts(batches(source=source(64, grows_then_shrinks), duration_ms=3_000))) == {}


def test_a_backlog_that_grows_is_falling_behind_and_one_that_shrinks_is_not() -> None:
    once = {"trigger": {"interval": "1s"}}
    growing = batches(source=source(10, [100 + 6 * n for n in range(10)]))
    assert levels(facts(growing, **once)) == {"falling_behind": "critical"}
    assert levels(facts(batches(source=source(10, [100 + 2 * n for n in range(10)])), **once)) == {
        "falling_behind": "warn"
    }
    assert levels(facts(batches(source=source(10, [400 - 2 * n for n in range(10)])), **once)) == {}
    assert levels(facts(batches(source=source(10, [2 * n for n in range(10)])), **once)) == {}, (
        "two batches' worth is no backlog"
    )


def test_batches_without_input_between_them_make_no_backlog_of_what_the_next_one_takes() -> None:
    """A version each 15 s and a trigger of 3 s: most batches only have timers. One version left was critical."""
    found = batches(source=[*source(0, [0] * 4), *source(1, [0]), *source(0, [0] * 4), *source(0, [1])])
    assert levels(facts(found, health={"falling_behind": {"critical": 1.2}})) == {}
    # Ten files in 6 s: 590 take 6 minutes, and not ten times as long for the batches without input.
    found = batches(source=[*source(0, [590] * 9), *source(10, [590])], duration_ms=6_000)
    assert levels(facts(found)) == {}


def test_late_rows_from_a_hundred_rows_on() -> None:
    assert levels(facts(batches(late_rows=50))) == {"late_rows": "warn"}
    assert levels(facts(batches(late_rows=250))) == {"late_rows": "critical"}
    assert levels(facts(batches(rows_in=9, late_rows=9))) == {}


def test_commits_are_judged_by_their_median() -> None:
    assert levels(facts(batches(commit_ms=[500] * 8 + [90_000] * 2))) == {}
    slow = facts(batches(commit_ms=31_000, checkpoint_ms=6_000))
    assert levels(slow) == {"commit_time": "warn", "checkpoint_time": "warn"}
    assert levels(facts(batches(commit_ms=299_000, checkpoint_ms=59_000))) == levels(slow)
    slower = facts(batches(commit_ms=300_000, checkpoint_ms=60_000))
    assert levels(slower) == {"commit_time": "critical", "checkpoint_time": "critical"}


@pytest.mark.parametrize(("action", "words"), [("savepoint_and_stop", "suspended"), ("fail", "stopped")])
def test_alarm_of_the_state_limit_says_what_it_does_to_the_job(action: str, words: str) -> None:
    limits = {"health": {"state_rows": {"warn": 10, "critical": 20}, "on_state_limit": action}}
    (finding,) = judge(facts(batches(state_rows=[20] * 10), **limits)).findings
    assert finding.level.value == "critical" and words in finding.what


def test_state() -> None:
    limits = {"health": {"state_rows": {"warn": 10, "critical": 20}}}
    assert levels(facts(batches(state_rows=[1] * 9 + [10]), **limits)) == {"state_rows": "warn"}
    assert levels(facts(batches(state_rows=[30] * 9 + [9]), **limits)) == {}, "it is about now"
    assert levels(facts(batches(state_bytes=2**30))) == {"state_bytes": "warn"}
    assert levels(facts(batches(state_bytes=2**30), resources={"memory": "2g"})) == {}
    # Nine minutes apart, by a sixth: 1.1 an hour.
    assert levels(facts(batches(state_rows=[60_000 + 1_112 * n for n in range(10)]))) == {"state_growth": "warn"}
    assert levels(facts(batches(state_rows=[60 + n for n in range(10)]))) == {}, "few keys double easily"


def test_state_of_twice_the_heap_is_critical() -> None:
    assert levels(facts(batches(state_bytes=2**31 - 1))) == {"state_bytes": "warn"}
    assert levels(facts(batches(state_bytes=2**31))) == {"state_bytes": "critical"}
    assert levels(facts(batches(state_bytes=2**31), resources={"memory": "2g"})) == {"state_bytes": "warn"}
    # A limit that is given is never below the other's default.
    wide = {"health": {"state_bytes": {"warn": 2**33}}}
    assert levels(facts(batches(state_bytes=2**32), **wide)) == {}
    assert levels(facts(batches(state_bytes=2**33), **wide)) == {"state_bytes": "critical"}
    low = {"health": {"state_bytes": {"critical": 2**20}}}
    assert levels(facts(batches(state_bytes=2**20), **low)) == {"state_bytes": "critical"}


def test_state_that_grows_tenfold_is_critical_but_for_a_drivers_first_hour() -> None:
    # Nine minutes apart, by one and a half: ten an hour.
    grows = batches(state_rows=[60_000 + 10_001 * n for n in range(10)])
    assert levels(facts(grows)) == {"state_growth": "critical"}
    young = {"beat": {"started_at": NOW - 3599 * S}}
    assert levels(facts(grows, **young)) == {"state_growth": "warn"}, "a first start or a replay fills the state"
    given = {"health": {"state_growth": {"critical": 10}}}
    assert levels(facts(grows, **young, **given)) == {"state_growth": "critical"}, "who gives a limit means it"
    wide = {"health": {"state_growth": {"warn": 50}}}
    assert levels(facts(grows, **wide)) == {}


def test_rocksdb() -> None:
    stalls = batches(operators=rocksdb(rocksdbWriterStallLatencyMs=60))
    assert levels(facts(stalls)) == {"write_stall": "warn"}
    assert levels(facts(batches(operators=rocksdb(rocksdbWriterStallLatencyMs=300)))) == {"write_stall": "critical"}
    compacts = batches(operators=rocksdb(rocksdbTotalCompactionLatencyMs=400))
    assert levels(facts(compacts)) == {"compaction": "warn"}
    assert levels(facts(compacts, resources={"cores": 2})) == {}
    upkeep = batches(operators=rocksdb(rocksdbTotalCompactionLatencyMs=800))
    assert levels(facts(upkeep)) == {"compaction": "critical"}
    assert levels(facts(upkeep, resources={"cores": 2})) == {"compaction": "warn"}
    cold = batches(operators=rocksdb(rocksdbReadBlockCacheHitCount=40, rocksdbReadBlockCacheMissCount=60))
    assert levels(facts(cold)) == {}
    floor = {"health": {"cache_hits": {"warn": 0.5, "critical": 0.3}}}
    assert levels(facts(cold, **floor)) == {"cache_hits": "warn"}
    assert levels(facts(batches(5, operators=tuple(cold[0].operators)), **floor)) == {}, "too few reads to tell"


def test_worst_first() -> None:
    found = judge(facts(batches(late_rows=300, tries=[1] * 9 + [2])))
    assert [finding.rule for finding in found.findings] == ["late_rows", "failed_tries"]
    assert found.level is Level.CRITICAL


def test_every_rule_has_its_limits_in_the_spec() -> None:
    others = {"window", "hold", "restart_when_stuck", "on_state_limit"}
    assert set(RULES) == set(HealthSpec.model_fields) - others


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"late_rows": {"warn": 0.5, "critical": 0.1}}, "warn must not be above critical"),
        ({"cache_hits": {"warn": 0.1, "critical": 0.5}}, "less is worse here"),
        ({"on_state_limit": "fail"}, "needs state_rows.critical"),
        ({"backlogs": {}}, "Extra inputs"),
        ({"window": 1}, "greater than or equal to 2"),
    ],
)
def test_limits_that_make_no_sense_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        HealthSpec.model_validate(fields)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


def health(**rules: Level) -> Health:
    return Health(tuple(Finding(rule, level, f"{rule} is {level}", 1, 1) for rule, level in rules.items()))


def told(workspace: Workspace) -> HealthRecord:
    return JobDocuments(workspace.storage, "job").health.read() or HealthRecord()


def steps(changes: Iterable[Any]) -> list[tuple[str, str, str]]:
    return [(change.rule, change.before, change.after) for change in changes]


def test_each_change_is_noted_once(workspace: Workspace) -> None:
    assert alert_queue.note(workspace, "job", health()) == []
    first = alert_queue.note(workspace, "job", health(backlog=Level.WARN, late_rows=Level.WARN))
    assert steps(first) == [("backlog", "ok", "warn"), ("late_rows", "ok", "warn")]
    assert alert_queue.note(workspace, "job", health(backlog=Level.WARN, late_rows=Level.WARN)) == []
    second = alert_queue.note(workspace, "job", health(backlog=Level.CRITICAL))
    assert steps(second) == [("backlog", "warn", "critical"), ("late_rows", "warn", "ok")]
    assert second[1].what == "ok again; was: late_rows is warn"
    assert set(told(workspace).rules) == {"backlog"}
    assert steps(told(workspace).changes) == steps(first) + steps(second)


def test_only_the_rules_that_lasted(workspace: Workspace) -> None:
    noted = alert_queue.note(workspace, "job", health(backlog=Level.WARN, restarts=Level.WARN), rules=["restarts"])
    assert steps(noted) == [("restarts", "ok", "warn")]


def test_who_was_paged_hears_of_the_end_though_it_came_by_steps(workspace: Workspace) -> None:
    page = [("page", Level.CRITICAL)]
    for level in (Level.WARN, Level.CRITICAL, Level.WARN):
        alert_queue.note(workspace, "job", health(backlog=level), notifiers=page)
    alert_queue.note(workspace, "job", health(), notifiers=page)
    assert steps(told(workspace).unsent["page"]) == [
        *(("backlog", "warn", "critical"), ("backlog", "critical", "warn"), ("backlog", "warn", "ok")),
    ]
    # A new alarm that stays below: nothing to page, and nothing to call off.
    alert_queue.sent(workspace, "job", "page", told(workspace).unsent["page"], ok=True)
    alert_queue.note(workspace, "job", health(backlog=Level.WARN), notifiers=page)
    alert_queue.note(workspace, "job", health(), notifiers=page)
    assert not told(workspace).unsent


def test_what_is_kept_for_anybody_goes_to_whoever_wants_it(workspace: Workspace) -> None:
    kept = [(alert_queue.ANYBODY, Level.WARN)]
    alert_queue.note(workspace, "job", health(backlog=Level.WARN, driver=Level.CRITICAL), notifiers=kept)
    alert_queue.hand_out(workspace, "job", [("mail", Level.WARN), ("page", Level.CRITICAL)])
    owed = told(workspace).unsent
    assert {name: [change.rule for change in queue] for name, queue in owed.items()} == {
        "mail": ["backlog", "driver"],
        "page": ["driver"],
    }


def test_who_was_paged_hears_of_an_end_that_was_kept_for_anybody(workspace: Workspace) -> None:
    page, nobody = [("page", Level.CRITICAL)], [(alert_queue.ANYBODY, Level.WARN)]
    for level in (Level.CRITICAL, Level.WARN):
        alert_queue.note(workspace, "job", health(backlog=level), notifiers=page)
    alert_queue.sent(workspace, "job", "page", told(workspace).unsent["page"], ok=True)
    alert_queue.note(workspace, "job", health(), notifiers=nobody)
    alert_queue.hand_out(workspace, "job", page)
    assert steps(told(workspace).unsent["page"]) == [("backlog", "warn", "ok")]


def test_a_notifier_is_owed_what_it_wants_and_the_end_of_it(workspace: Workspace) -> None:
    both = [("mail", Level.WARN), ("page", Level.CRITICAL)]
    alert_queue.note(workspace, "job", health(backlog=Level.WARN), notifiers=both)
    assert {name: len(queue) for name, queue in told(workspace).unsent.items()} == {"mail": 1}
    alert_queue.note(workspace, "job", health(backlog=Level.CRITICAL), notifiers=both)
    alert_queue.note(workspace, "job", health(), notifiers=both)
    owed = told(workspace).unsent
    assert {name: len(queue) for name, queue in owed.items()} == {"mail": 3, "page": 2}
    assert alert_queue.unsent_due(told(workspace))

    alert_queue.sent(workspace, "job", "page", owed["page"], ok=False)
    assert not alert_queue.due(told(workspace), "page") and alert_queue.due(told(workspace), "mail")
    alert_queue.sent(workspace, "job", "mail", [], ok=False)
    assert not alert_queue.unsent_due(told(workspace)), "not again at once"
    assert alert_queue.unsent_due(told(workspace), now=utc_now() + alert_queue.RETRY)
    alert_queue.sent(workspace, "job", "page", owed["page"], ok=True)
    alert_queue.sent(workspace, "job", "mail", owed["mail"][:2], ok=True)
    assert told(workspace).unsent == {"mail": owed["mail"][2:]}


def test_one_at_a_time_asks_a_notifier(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    alert_queue.note(workspace, "job", health(backlog=Level.WARN), notifiers=[("mail", Level.WARN)])
    given = alert_queue.begin_sending(workspace, "job", "mail")
    assert steps(given) == [("backlog", "ok", "warn")] and not alert_queue.unsent_due(told(workspace))
    # Also whoever would ask one that has just failed.
    assert not alert_queue.begin_sending(workspace, "job", "mail", anyway=True)
    alert_queue.sent(workspace, "job", "mail", given, ok=False)
    assert not alert_queue.begin_sending(workspace, "job", "mail")
    assert alert_queue.begin_sending(workspace, "job", "mail", anyway=True) == given
    # Who asks may die of it.
    died = utc_now() + alert_queue.SENDING
    assert alert_queue.unsent_due(told(workspace), now=died)
    alert_queue.sent(workspace, "job", "mail", given, ok=True)
    assert not told(workspace).sending and not told(workspace).unsent
    assert not alert_queue.begin_sending(workspace, "job", "mail")


def test_some_rules_changes_are_no_reason_to_ask(workspace: Workspace) -> None:
    alert_queue.note(workspace, "job", health(backlog=Level.WARN), notifiers=[("mail", Level.WARN)])
    assert not alert_queue.unsent_due(told(workspace), but={"backlog"})
    alert_queue.note(workspace, "job", health(backlog=Level.WARN, driver=Level.WARN), notifiers=[("mail", Level.WARN)])
    assert alert_queue.unsent_due(told(workspace), but={"backlog"})


def test_a_notifier_that_stays_away_is_asked_ever_more_seldom(workspace: Workspace) -> None:
    alert_queue.note(workspace, "job", health(backlog=Level.WARN), notifiers=[("mail", Level.WARN)])
    waits = []
    for _ in range(40):
        alert_queue.sent(workspace, "job", "mail", told(workspace).unsent["mail"], ok=False)
        waits.append(round((told(workspace).refused["mail"].retry_at - utc_now()) / timedelta(minutes=1)))
    assert waits == [1, 2, 4, 8, 16] + [30] * 35
    # What comes meanwhile waits with the rest, for this one alone.
    alert_queue.note(
        workspace, "job", health(driver=Level.CRITICAL), notifiers=[("mail", Level.WARN), ("page", Level.CRITICAL)]
    )
    assert [name for name in ("mail", "page") if alert_queue.due(told(workspace), name)] == ["page"]
    alert_queue.sent(workspace, "job", "mail", told(workspace).unsent["mail"], ok=True)
    assert "mail" not in told(workspace).refused


def test_what_is_put_off_is_no_refusal(workspace: Workspace) -> None:
    alert_queue.note(workspace, "job", health(backlog=Level.WARN), notifiers=[("mail", Level.WARN)])
    alert_queue.put_off(workspace, "job")
    assert not alert_queue.unsent_due(told(workspace)) and told(workspace).refused["mail"].times == 0
    assert alert_queue.unsent_due(told(workspace), now=utc_now() + alert_queue.RETRY)


@pytest.mark.parametrize(
    ("before", "now", "way"),
    [
        ("ok", "ok", []),
        ("ok", "warn", ["warn"]),
        ("ok", "critical", ["warn", "critical"]),
        ("warn", "critical", ["critical"]),
        ("warn", "ok", ["ok"]),
        ("critical", "ok", ["warn", "ok"]),
    ],
)
def test_levels_on_the_way_from_what_was_told(workspace: Workspace, before: str, now: str, way: list[str]) -> None:
    alert_queue.note(workspace, "job", health(**({} if before == "ok" else {"backlog": Level(before)})))
    found = health(**({} if now == "ok" else {"backlog": Level(now)}))
    assert alert_queue.apart(told(workspace), found) == [("backlog", Level(level)) for level in way]


@pytest.mark.parametrize(
    ("before", "now", "lasted", "after"),
    [
        ("ok", "critical", "warn", "warn"),
        ("ok", "critical", "critical", "critical"),
        ("ok", "warn", "critical", "warn"),
        ("ok", "ok", "warn", None),
        ("critical", "ok", "warn", "warn"),
        ("critical", "warn", "ok", "warn"),
        ("critical", "ok", "ok", "ok"),
        # Of another side by now.
        ("warn", "ok", "critical", None),
    ],
)
def test_what_is_told_is_no_further_than_what_lasted(
    workspace: Workspace, before: str, now: str, lasted: str, after: str | None
) -> None:
    alert_queue.note(workspace, "job", health(**({} if before == "ok" else {"backlog": Level(before)})))
    found = health(**({} if now == "ok" else {"backlog": Level(now)}))
    noted = alert_queue.note(workspace, "job", found, lasted={"backlog": lasted})
    assert steps(noted) == ([("backlog", before, after)] if after else [])


def _two(**input_at: datetime | None) -> dict[str, SourceProgress]:
    return {name: SourceProgress(unit="versions", taken=1, pending=0, input_at=at) for name, at in input_at.items()}


def test_a_source_without_input_that_holds_the_watermark_is_named() -> None:
    several = {
        "source": None,
        "watermark": "2h",
        "sources": {
            "trips": {"kind": "delta", "table": "trips"},
            "payments": {"kind": "kafka", "topic": "p", "bootstrap_servers": "one:9092"},
        },
    }
    since, held = NOW - 700 * S, NOW - 7200 * S
    idle = _two(trips=NOW, payments=since - S)

    def found(sources: dict[str, SourceProgress], began: datetime = since, **fields: Any) -> list[Finding]:
        done = batches(3, watermark=fields.pop("held", held), watermark_since=began, sources=[sources] * 3)
        return [one for one in judge(facts(done, **{**several, **fields})).findings if one.rule == "idle_source"]

    (finding,) = found(idle)
    assert finding.level is Level.WARN and "no input from payments, which holds the watermark at" in finding.what
    # It never had input, so that there is no watermark.
    (finding,) = found(_two(trips=NOW, payments=None), held=None)
    assert "payments, which holds the watermark at its beginning" in finding.what
    # Both have input; the watermark moved; the policy does not wait; nothing at all comes.
    assert not found(_two(trips=NOW, payments=NOW))
    assert not found(idle, began=NOW - 10 * S)
    assert not found(idle, watermark_policy="max")
    assert not found(_two(trips=since - S, payments=since - S))


def test_a_table_that_the_gate_holds_is_an_alarm_at_once_and_critical_after_hours() -> None:
    held = [HeldTable("trips", NOW - 60 * S, "the gate holds trips from version 7 on: zone, 1 of 9 rows fails")]

    def found(*tables: HeldTable) -> list[tuple[str, Level]]:
        seen = replace(facts(batches(3)), held=tables)
        return [(one.what, one.level) for one in judge(seen).findings if one.rule == "gate_held"]

    assert not found()
    ((what, level),) = found(*held)
    assert "holds trips from version 7 on: zone, 1 of 9 rows fails" in what and level is Level.WARN
    older = HeldTable("rejects", NOW - 7 * 3600 * S, "the gate holds rejects from version 2 on")
    ((what, level),) = found(*held, older)
    assert "rejects from version 2 on, and 1 more" in what and level is Level.CRITICAL


def test_the_sum_over_sources_is_unknown_if_one_is() -> None:
    known = SourceProgress(unit="versions", taken=2, finished=1, pending=4, skipped=1, skipped_last="v3")
    unknown = SourceProgress(unit="offsets", taken=5, pending=None, cut=True)
    total = SourceProgress.total([known, unknown])
    assert total is not None
    assert (total.unit, total.taken, total.finished, total.pending) == ("files, versions and offsets", 7, 6, None)
    assert (total.cut, total.skipped, total.skipped_last) == (True, 1, "v3")
    assert SourceProgress.total([known]) is known and SourceProgress.total([]) is None
