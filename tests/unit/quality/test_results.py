import pickle

import pytest

from streamwarden.errors import StreamwardenError
from tests.unit.quality.made import expectation, run, table

pytestmark = pytest.mark.unit


def test_a_passed_run_raises_nothing():
    run(table("passed", expectation())).raise_for_failures()


def test_warnings_do_not_fail_a_run():
    found = run(table("warned", expectation(success=False, severity="warning")))
    assert found.success
    assert found.tables[0].failures == []
    assert len(found.tables[0].warnings) == 1
    found.raise_for_failures()


def test_a_failed_run_names_table_expectation_and_columns():
    found = run(
        table("failed", expectation("t.a", success=False), expectation("t.w", success=False, severity="warning")),
        table("passed", expectation(), name="u"),
        table("no_rows", name="v", what="the table has no rows"),
    )
    with pytest.raises(StreamwardenError) as caught:
        found.raise_for_failures()
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.code == "EXPECTATIONS_FAILED"
    assert "t@7: t.a [expect_column_values_to_not_be_null] on a: 3 of 100 rows fail (3.00 %)" in error.what
    assert "v: the table has no rows" in error.what
    assert "t.w" not in error.what
    assert "u@7" not in error.what


def test_missing_tables_alone_are_another_error():
    missing = table("not_found", name="v", what="v: no Delta table at V")
    with pytest.raises(StreamwardenError) as caught:
        run(table("passed", expectation()), missing).raise_for_failures()
    assert caught.value.code == "TABLE_NOT_FOUND"
    with pytest.raises(StreamwardenError) as caught:
        run(table("failed", expectation(success=False)), missing).raise_for_failures()
    assert caught.value.code == "EXPECTATIONS_FAILED"


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"unexpected_count": 0, "unexpected_percent": 0.0}, "all 100 rows"),
        ({"unexpected_count": 1, "unexpected_percent": 1.0}, "1 of 100 rows fails (1.00 %)"),
        ({"checked": 9_000_000, "unexpected_count": 1, "unexpected_percent": 1 / 90_000}, "(under 0.01 %)"),
        ({"unexpected_count": None, "observed": "IntegerType"}, "found IntegerType"),
        ({"unexpected_count": None, "observed": ["a", "b"]}, "found a, b"),
        ({"error": "no such column"}, "could not be evaluated: no such column"),
    ],
)
def test_what_was_found_in_words(over, words):
    assert words in expectation(**over).finding()


def test_the_brief_holds_what_an_operator_needs():
    found = run(table("failed", expectation("t.a", success=False)), table("not_found", name="v", what="gone")).brief()
    assert found["success"] is False
    assert [one["success"] for one in found["tables"]] == [False, False]
    assert found["tables"][0]["failures"] == [
        {"expectation": "t.a", "column": "a", "severity": "critical", "detail": "3 of 100 rows fail (3.00 %)"}
    ]
    assert found["tables"][1]["failures"][0]["detail"] == "gone"
