"""Arguments of expectations mean the same in memory as on Spark, or the suite is refused."""

import json

import pyarrow as pa
import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.quality import engine
from streamwarden.quality.arrow_checker import ArrowChecker
from streamwarden.quality.suites import Suite, load_suite
from tests.unit.quality.gate_place import START, rule

pytestmark = pytest.mark.unit

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int32()),
        "kind": ["a", "a", "b", None],
        "low": pa.array([1, 2, 9, None], pa.int32()),
        "high": pa.array([5, 1, 1, 1], pa.int32()),
        "at": pa.array([START] * 3 + [None], pa.timestamp("us", "UTC")),
        "place": pa.array([{"zone": 1}, {"zone": 300}, {"zone": None}, None]),
    }
)
IS_A = {"type": "comparison", "column": {"name": "kind"}, "operator": "==", "parameter": "a"}
IS_THERE = {"type": "nullity", "column": {"name": "low"}, "is_null": False}


@pytest.fixture(scope="module")
def judge():
    checker = ArrowChecker()

    def run(kind, **arguments):
        document = {"name": "t", "meta": {"keys": ["id"]}, "expectations": [rule(kind, "x", **arguments)]}
        suite = Suite.model_validate(document)
        (found,) = checker.run(suite, engine.build(suite, "t.json"), ROWS, ROWS.num_rows)
        assert found.error is None, found.error
        return found

    return run


@pytest.mark.parametrize(
    ("condition", "judged", "failing"),
    [
        ({"row_condition": "kind = 'a'", "condition_parser": "spark"}, 2, [2]),
        ({"row_condition": IS_A}, 2, [2]),
        ({"row_condition": {"type": "and", "conditions": [IS_A, IS_THERE]}}, 2, [2]),
        ({"row_condition": {"type": "or", "conditions": [IS_A, IS_THERE]}}, 3, [2, 3]),
        ({"row_condition": {**IS_A, "operator": "IN", "parameter": ["b"]}}, 1, [3]),
        ({}, 3, [2, 3]),
    ],
)
def test_a_condition_for_rows_counts_for_bounds_and_pairs(judge, condition, judged, failing):
    for kind, arguments in (
        ("column_values_to_be_between", {"column": "low", "max_value": 1}),
        ("column_pair_values_a_to_be_greater_than_b", {"column_A": "high", "column_B": "low"}),
    ):
        found = judge(kind, **arguments, **condition)
        # Of a pair, a row with one value is judged.
        more = 1 if "pair" in kind and not condition else 0
        assert (found.checked, [row["id"] for row in found.examples]) == (judged + more, failing)


def test_a_condition_counts_for_keys_and_nulls_too(judge):
    condition = {"row_condition": "kind = 'a'", "condition_parser": "spark"}
    assert judge("column_values_to_be_unique", column="high", **condition).success
    assert not judge("column_values_to_be_unique", column="high").success
    assert judge("column_values_to_not_be_null", column="low", **condition).success
    assert not judge("column_values_to_not_be_null", column="low").success


@pytest.mark.parametrize(
    ("kind", "arguments", "met"),
    [
        ("column_values_to_be_in_type_list", {"column": "id", "type_list": ["IntegerType", "LongType"]}, True),
        ("column_values_to_be_in_type_list", {"column": "id", "type_list": ["LongType"]}, False),
        ("column_max_to_be_between", {"column": "at", "min_value": "2023-03-06"}, True),
        ("column_max_to_be_between", {"column": "at", "max_value": "2023-03-06T09:00:00+01:00"}, True),
        ("column_max_to_be_between", {"column": "at", "max_value": "2023-03-06T08:59:59+01:00"}, False),
        ("column_min_to_be_between", {"column": "at", "min_value": "2023-03-06T08:00:00Z", "strict_min": True}, False),
        ("column_values_to_be_between", {"column": "at", "max_value": "2023-03-06T08:00:00Z"}, True),
        ("column_values_to_be_in_set", {"column": "at", "value_set": ["2023-03-06 08:00:00"]}, True),
        ("column_values_to_be_in_set", {"column": "id", "value_set": [1, 2, 3, None]}, False),
        ("column_values_to_not_be_in_set", {"column": "id", "value_set": [7, None]}, True),
        ("column_values_to_be_between", {"column": "place.zone", "max_value": 300}, True),
    ],
)
def test_arguments_that_great_expectations_cannot_evaluate_here_are_evaluated(judge, kind, arguments, met):
    assert judge(kind, **arguments).success is met


def test_a_field_of_a_struct_is_a_column(judge):
    found = judge("column_values_to_be_between", column="place.zone", max_value=265)
    assert (found.checked, found.unexpected_count) == (2, 1)
    assert found.examples == ({"id": 2, "place.zone": 300},)
    assert judge("column_values_to_not_be_null", column="place.zone").unexpected_count == 2


@pytest.mark.parametrize(
    ("kind", "arguments", "field"),
    [
        ("column_values_to_not_be_null", {"row_condition": "a > 1", "condition_parser": "pandas"}, "condition_parser"),
        ("column_values_to_not_be_null", {"row_condition": 'col("a") > 1'}, "condition_parser"),
        ("column_values_to_not_be_null", {"row_condition": {"type": "comparison"}}, "row_condition"),
        ("column_values_to_not_be_null", {"row_condition": {"type": "magic"}}, "row_condition"),
        ("column_values_to_be_unique", {"mostly": 0.9}, "mostly"),
        ("compound_columns_to_be_unique", {"column_list": ["a", "b"], "ignore_row_if": "never"}, "ignore_row_if"),
        (
            "unexpected_rows_expectation",
            {"unexpected_rows_query": "SELECT * FROM {batch}", "row_condition": IS_A},
            "row_condition",
        ),
    ],
)
def test_what_cannot_be_evaluated_alike_is_refused_at_load(tmp_path, kind, arguments, field):
    path = tmp_path / "t.json"
    given = {"column": "a", **arguments} if "list" not in str(arguments) else arguments
    path.write_text(json.dumps({"name": "t", "meta": {"keys": ["a"]}, "expectations": [rule(kind, "x", **given)]}))
    with pytest.raises(StreamwardenError) as caught:
        load_suite(path)
    assert caught.value.code == "SUITE_INVALID"
    assert str(path) in caught.value.what and f"{field}:" in caught.value.what
