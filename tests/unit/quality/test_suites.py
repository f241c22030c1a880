import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.quality.suites import Expectation, load_suite, load_suites
from streamwarden.store.config import job_names
from streamwarden.store.workspace import open_workspace

pytestmark = pytest.mark.unit

SHIPPED = Path(__file__).resolve().parents[3] / "expectations"


def expectation(**over):
    return {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "a"},
        "severity": "critical",
        "meta": {"id": "t.a"},
        **over,
    }


def write(folder, *, name="t", stem="t", keys=("a",), expectations=None):
    found = [expectation()] if expectations is None else expectations
    document = {"name": name, "meta": {"keys": list(keys)}, "expectations": found}
    path = folder / f"{stem}.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def refusal(path):
    with pytest.raises(StreamwardenError) as caught:
        load_suite(path)
    assert caught.value.code == "SUITE_INVALID"
    assert str(path) in caught.value.what
    return caught.value.what


@pytest.mark.parametrize("table", ["trips", "zone_windows", "card_sessions"])
def test_shipped_suites_say_what_and_why(table):
    suite = load_suite(SHIPPED / f"{table}.json")
    for item in suite.expectations:
        assert re.fullmatch(rf"{table}(\.\w+)+", item.meta.id)
        assert item.description.endswith("."), item.meta.id
        assert item.notes, item.meta.id
        assert item.columns or item.type == "expect_table_columns_to_match_set", item.meta.id


def test_shipped_suites_are_the_output_tables():
    workspace = open_workspace("local")
    written = {sink.table for name in job_names(workspace.config) for sink in workspace.job(name).sinks}
    assert {suite.name for suite in load_suites(SHIPPED)} == written


def test_tables_come_in_the_order_asked_for_and_once():
    found = load_suites(SHIPPED, ["trips", "card_sessions", "trips"])
    assert [suite.name for suite in found] == ["trips", "card_sessions"]


def test_a_table_without_a_suite_is_named_with_those_that_have_one(tmp_path):
    write(tmp_path)
    with pytest.raises(StreamwardenError) as caught:
        load_suites(tmp_path, ["t", "other"])
    assert caught.value.code == "SUITE_INVALID"
    assert "'other'" in caught.value.what
    assert "(suites: t)" in caught.value.what


def test_no_suite_at_all_and_no_table_at_all_are_refused(tmp_path):
    with pytest.raises(StreamwardenError, match="no suite"):
        load_suites(tmp_path)
    write(tmp_path)
    with pytest.raises(StreamwardenError, match="no table was named"):
        load_suites(tmp_path, [])


def test_an_empty_suite_is_refused(tmp_path):
    assert "expects nothing" in refusal(write(tmp_path, expectations=[]))


def test_no_json_is_refused(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("{", encoding="utf-8")
    assert "not JSON" in refusal(path)
    path.write_text("[]", encoding="utf-8")
    assert "must be an object" in refusal(path)


def test_a_name_other_than_the_file_is_refused(tmp_path):
    assert "name: is 'u'" in refusal(write(tmp_path, name="u"))


def test_an_id_given_twice_is_refused(tmp_path):
    assert "'t.a' is given twice" in refusal(write(tmp_path, expectations=[expectation(), expectation()]))


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"severity": "fatal"}, "expectations.0.severity"),
        ({"severity": None}, "expectations.0.severity"),
        ({"meta": {}}, "expectations.0.meta.id"),
        (
            {"type": "unexpected_rows_expectation", "kwargs": {"unexpected_rows_query": "SELECT * FROM trips"}},
            "{batch}",
        ),
    ],
)
def test_what_is_wrong_with_an_expectation_is_named(tmp_path, over, said):
    assert said in refusal(write(tmp_path, expectations=[expectation(**over)]))


def test_a_suite_without_keys_is_refused(tmp_path):
    assert "meta.keys" in refusal(write(tmp_path, keys=()))


def test_a_suite_saved_by_great_expectations_is_read(tmp_path):
    saved = expectation(id="6b8f2c3e-5a3d-4a50-9b9c-0d6d4b4b4f01", notes=["One.", "Two."], description=None)
    suite = load_suite(write(tmp_path, expectations=[saved]))
    assert suite.expectations[0].notes == "One.\nTwo."


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        ({"column": "a"}, ("a",)),
        ({"column_A": "a", "column_B": "b"}, ("a", "b")),
        ({"column_list": ["a", "b"]}, ("a", "b")),
        ({"min_value": 1}, ()),
    ],
)
def test_columns_are_read_from_the_arguments(arguments, columns):
    assert Expectation.model_validate(expectation(kwargs=arguments)).columns == columns


def test_columns_of_a_query_are_read_from_the_meta():
    found = Expectation.model_validate(expectation(meta={"id": "t.a", "columns": ["x"]}))
    assert found.columns == ("x",)


def test_an_expectation_without_description_gets_a_sentence():
    found = Expectation.model_validate(expectation())
    assert found.sentence == "Expect column values to not be null (column = a)."


def test_reading_suites_loads_neither_spark_nor_great_expectations():
    code = (
        "import sys, streamwarden.quality as q, pathlib; q.load_suites(pathlib.Path(sys.argv[1]));"
        "print([m for m in ('pyspark', 'great_expectations', 'pandas', 'airflow') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(SHIPPED)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
