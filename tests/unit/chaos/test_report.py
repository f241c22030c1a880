from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tests.chaos.injections import ColdStart, Record
from tests.chaos.plan import Fault, Kind, Moment
from tests.chaos.report import Goal, kill_ratios, table_of

pytestmark = pytest.mark.unit


def record(recovery: float | None, *, calm: bool = True, job: str = "zone_windows", wrong: str = "") -> Record:
    fault = Fault(1, Kind.DRIVER_BOTH, Moment.IN_BATCH, job, 1, calm)
    return Record(fault, recovery_s=recovery, supervised_s=9.0, wrong=[wrong] if wrong else [])


def test_goals_have_two_directions() -> None:
    assert Goal("kill9", 1.5, 1.5).met and not Goal("kill9", 1.51, 1.5).met
    assert Goal("faults", 8, 8, at_least=True).met and not Goal("faults", 7, 8, at_least=True).met
    assert str(Goal("kill9", 1.51, 1.5)) == "kill9 1.51 1.5 short"
    assert str(Goal("faults", 8, 8, at_least=True)) == "faults 8 8 ok"


def test_kills_are_compared_with_the_same_jobs_cold_starts() -> None:
    kills = [record(15.0), record(21.0), record(18.0), record(99.0, calm=False), record(None), record(5.0, job="other")]
    starts = [ColdStart("zone_windows", 12.0, 20.0), ColdStart("ingest_trips", 1.0, 1.0)]
    found = kill_ratios(kills, starts)
    assert set(found) == {"zone_windows"}
    assert found["zone_windows"]["ratio"] == 1.5 and found["zone_windows"]["ratio_by_dag"] == 0.9
    assert found["zone_windows"]["n"] == 3


def test_table_has_median_and_worst_by_fault() -> None:
    out = StringIO()
    Console(file=out, width=160).print(table_of([record(10.0), record(12.0), record(40.0), record(None, wrong="lost")]))
    lines = [line for line in out.getvalue().splitlines() if "Python and JVM" in line or "│ all" in line]
    assert len(lines) == 2
    for line in lines:
        assert [cell.strip() for cell in line.split("│")[2:-1]] == ["4", "0.0", "12.0", "40.0", "9.0", "9.0", "1"]
