"""Each rule of docs/quality-rules.md loads, holds for good rows, and finds bad ones."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamwarden.quality import engine
from streamwarden.quality.arrow_checker import ArrowChecker
from streamwarden.quality.suites import Suite
from tests.unit.quality.gate_place import START

pytestmark = pytest.mark.unit

PAGE = Path(__file__).resolve().parents[3] / "docs" / "quality-rules.md"
RULES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)]
HOURS, AN_HOUR = 15 * 24, 60
TIME = pa.timestamp("us", "UTC")


def trips():
    """60 trips an hour for 15 days; fares are 0 to 24 dollars, evenly."""
    numbers = range(HOURS * AN_HOUR)
    return pa.table(
        {
            "trip_id": pa.array(numbers, pa.int64()),
            "pickup": pa.array([START + timedelta(minutes=number) for number in numbers], TIME),
            "dropoff": pa.array([START + timedelta(minutes=number + 5) for number in numbers], TIME),
            "zone": pa.array([74] * len(numbers), pa.int32()),
            "vendor": pa.array([1 + number % 2 for number in numbers], pa.int32()),
            "fare": pa.array([float(number % 25) for number in numbers]),
        }
    )


def windows():
    hours = [START + timedelta(hours=number) for number in range(HOURS)]
    return pa.table({"hour": pa.array(hours, TIME), "zone": [74] * HOURS, "trips": [AN_HOUR] * HOURS})


TRIPS, WINDOWS = trips(), windows()
OTHERS = {"trips": TRIPS, "zones": pa.table({"zone": pa.array([74, 75], pa.int32())})}


def with_first(table, column, value):
    """Return a table with another value in the first row."""
    index = table.schema.names.index(column)
    kind = table.schema.field(column).type
    first = pa.array([value], kind)
    return table.set_column(index, column, pa.chunked_array([first, *table[column].slice(1).chunks], kind))


def with_all(table, column, values):
    return table.set_column(table.schema.names.index(column), column, values)


BROKEN = {
    "trips.columns": TRIPS.drop_columns(["fare"]),
    "trips.pickup.type": with_all(TRIPS, "pickup", TRIPS["pickup"].cast(pa.timestamp("us"))),
    "trips.key.unique": pa.concat_tables([TRIPS, TRIPS.slice(0, 1)]),
    "trips.zone.not_null": with_first(TRIPS, "zone", None),
    "trips.fare.not_null": with_all(TRIPS, "fare", pa.nulls(TRIPS.num_rows, pa.float64())),
    "trips.zone.range": with_first(TRIPS, "zone", 266),
    "trips.vendor.known": with_first(TRIPS, "vendor", 3),
    "trips.fare.of_vendor_1": with_first(TRIPS, "fare", -1.0),
    "trips.times": with_first(TRIPS, "dropoff", START - timedelta(hours=1)),
    "trips.fare.finite": with_first(TRIPS, "fare", float("nan")),
    "trips.zone.exists": with_first(TRIPS, "zone", 76),
    "windows.fresh": WINDOWS.slice(0, HOURS - 6),
    "windows.volume": with_all(WINDOWS, "trips", pa.array([*[AN_HOUR] * (HOURS - 1), 4 * AN_HOUR])),
    "trips.fare.psi": with_all(TRIPS, "fare", pc.multiply(TRIPS["fare"], 2.0)),
    "trips.fare.ks": with_all(TRIPS, "fare", pc.multiply(TRIPS["fare"], 2.0)),
    "windows.balance": with_first(WINDOWS, "trips", 59),
}


@pytest.fixture(scope="module")
def judge():
    checker = ArrowChecker()

    def run(rule, rows):
        table = rule["meta"]["id"].split(".")[0]
        suite = Suite.model_validate({"name": table, "meta": {"keys": rows.schema.names[:1]}, "expectations": [rule]})
        others = {name: OTHERS[name] for name in suite.expectations[0].meta.tables}
        (found,) = checker.run_with(others, suite, engine.build(suite, PAGE), rows, rows.num_rows)
        assert found.error is None, found.error
        return found

    return run


def test_every_rule_of_the_page_is_tried():
    assert [rule["meta"]["id"] for rule in RULES] and {rule["meta"]["id"] for rule in RULES} == set(BROKEN)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["meta"]["id"])
def test_a_rule_holds_for_good_rows_and_finds_bad_ones(judge, rule):
    name = rule["meta"]["id"]
    good = judge(rule, TRIPS if name.startswith("trips") else WINDOWS)
    assert good.success, good.finding()
    assert not judge(rule, BROKEN[name]).success
