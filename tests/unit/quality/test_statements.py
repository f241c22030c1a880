"""A suite's SQL cannot leave its tables: each escape is refused when the suite is loaded, and again by DuckDB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.quality.arguments import checked_arguments
from streamwarden.quality.sql import QueryError, condition_in_duckdb, run, translated
from streamwarden.quality.statements import StatementError, condition, parsed
from streamwarden.quality.suites import load_suite

pytestmark = pytest.mark.unit

SECRET = "the secret of the file"

ALLOWED = [
    "SELECT * FROM {batch}",
    "SELECT id FROM {batch} WHERE size(filter(zones, zone -> zone IS NULL)) > 0",
    "WITH found AS (SELECT id FROM {batch}) SELECT f.id FROM found AS f JOIN {tables.trips} AS t ON f.id = t.id",
    "SELECT id FROM {batch} UNION ALL SELECT id FROM {tables.trips}",
    "SELECT * FROM {batch} LATERAL VIEW explode(array(1, 2)) t AS n",
    "SELECT lead(id) OVER (ORDER BY id) FROM (SELECT id FROM {batch})",
    "SELECT id FROM {batch} WHERE name = '{{}}' -- ; DROP TABLE x",
]

ESCAPES = [
    # Another statement, or two
    "SELECT * FROM {batch}; SELECT 1",
    "DROP TABLE {batch}",
    "INSERT INTO {batch} VALUES (1)",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT * FROM {batch}",
    "FROM {batch} INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT *",
    "CREATE TABLE x AS SELECT * FROM {batch}",
    "DELETE FROM {batch}",
    "UPDATE {batch} SET a = 1",
    "MERGE INTO {batch} USING x ON true WHEN MATCHED THEN DELETE",
    "COPY {batch} TO '/tmp/x.csv'",
    "ATTACH '/tmp/x.db' AS x",
    "INSTALL httpfs",
    "LOAD httpfs",
    "ADD JAR '/tmp/x.jar'",
    "SET x = 1",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CACHE TABLE x AS SELECT * FROM {batch}",
    "EXPLAIN SELECT * FROM {batch}",
    "SHOW TABLES",
    "DESCRIBE {batch}",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "VALUES (1)",
    "",
    "-- nothing",
    # Files
    "SELECT * FROM parquet.`/etc/passwd`",
    "SELECT * FROM {batch} JOIN delta.`/tmp/table`",
    "SELECT * FROM {batch} UNION SELECT * FROM text.`/etc/passwd`",
    "WITH a AS (SELECT * FROM text.`/etc/passwd`) SELECT * FROM a, {batch}",
    "SELECT (SELECT max(value) FROM text.`/etc/passwd`) FROM {batch}",
    "SELECT * FROM {batch} WHERE EXISTS (SELECT 1 FROM orc.`/tmp/x`)",
    "SELECT * FROM {batch} WHERE id IN (SELECT 1 FROM csv.`/tmp/x`)",
    "SELECT 1 /* {batch} */ FROM text.`/etc/passwd`",
    "SELECT 1 FROM {batch} --\r UNION SELECT * FROM text.`/etc/passwd`",
    r"SELECT r'\', (SELECT max(value) FROM text.`/etc/passwd`) AS y, '' FROM {batch}",
    "SELECT * FROM {batch} |> JOIN parquet.`/tmp/x`",
    "SELECT * FROM read_csv('/etc/passwd'), {batch}",
    "SELECT * FROM read_text('/etc/passwd'), {batch}",
    "SELECT * FROM read_files('/etc'), {batch}",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`'), {batch}",
    "SELECT from_protobuf(a, 'm', '/etc/passwd') FROM {batch}",
    # Other tables, versions, settings
    "SELECT * FROM trips",
    "SELECT * FROM streamwarden_trips, {batch}",
    "SELECT * FROM spark_catalog.default.trips, {batch}",
    "SELECT * FROM information_schema.tables, {batch}",
    "SELECT * FROM {batch} VERSION AS OF 1",
    "SELECT * FROM range(1000000000000), {batch}",
    "SELECT * FROM duckdb_settings(), {batch}",
    "SELECT current_setting('home_directory') FROM {batch}",
    "SELECT * FROM query('SELECT 1'), {batch}",
    # Code
    "SELECT TRANSFORM(id) USING 'bash -c id' AS (x) FROM {batch}",
    "FROM {batch} SELECT TRANSFORM(id) USING 'id'",
    "MAP id USING 'cat' FROM {batch}",
    "SELECT reflect('java.lang.System', 'exit', 1) FROM {batch}",
    "SELECT `ReFlect`('java.lang.System', 'exit', 1) FROM {batch}",
    "SELECT java_method('java.lang.System', 'getProperty', 'user.home') FROM {batch}",
    "SELECT try_reflect('java.lang.System', 'exit') FROM {batch}",
    "SELECT system.builtin.reflect('java.lang.System', 'exit', 1) FROM {batch}",
    "SELECT * FROM {batch} WHERE 1 = (SELECT reflect('java.lang.System', 'exit', 1))",
    "SELECT IDENTIFIER('refl' || 'ect')('java.lang.System', 'exit') FROM {batch}",
    # Without an end
    "WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT * FROM r) SELECT * FROM r, {batch}",
    f"SELECT {'(' * 3000}1{')' * 3000} FROM {{batch}}",
    f"SELECT '{'x' * 100_000}' FROM {{batch}}",
    # What is filled in
    "SELECT * FROM {batch.__class__}",
    "SELECT * FROM {tables.a/../b}, {batch}",
    "SELECT * FROM {0}, {batch}",
]


@pytest.mark.parametrize("query", ALLOWED)
def test_a_query_of_its_tables_is_allowed(query: str) -> None:
    parsed(query)


@pytest.mark.parametrize("query", ESCAPES)
def test_an_escape_is_refused_before_anything_runs_it(query: str) -> None:
    with pytest.raises(StatementError):
        parsed(query)
    with pytest.raises(QueryError):
        translated(query)


@pytest.mark.parametrize("query", [one for one in ESCAPES if "{batch}" in one])
def test_a_suite_with_an_escape_is_no_suite(query: str, tmp_path: Path) -> None:
    arguments = {"unexpected_rows_query": query}
    with pytest.raises(StreamwardenError) as error:
        load_suite(suite(tmp_path, "unexpected_rows_expectation", arguments))
    assert error.value.code == "SUITE_INVALID"


CONDITIONS = [
    "1 = 1) UNION (SELECT value FROM text.`/etc/passwd`",
    "1 = 1) GROUP BY (a",
    "1) OR (2 = 2",
    "exists(SELECT 1 FROM text.`/etc/passwd`)",
    "a IN (SELECT 1)",
    "reflect('java.lang.System', 'exit', 1)",
    "true; DROP TABLE x",
    "1 = 1 --",
    "",
]


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_about_rows_has_no_query(text: str, tmp_path: Path) -> None:
    with pytest.raises(StatementError):
        condition(text)
    with pytest.raises(QueryError):
        condition_in_duckdb(text)
    arguments = {"column": "a", "row_condition": text, "condition_parser": "spark"}
    with pytest.raises(StreamwardenError, match="SUITE_INVALID"):
        load_suite(suite(tmp_path, "expect_column_values_to_not_be_null", arguments))


@pytest.mark.parametrize(
    "value", ["x' OR reflect('a', 'b') = '", "\\' OR reflect('a', 'b') --", "a` = 1 OR reflect('a', 'b') = `x"]
)
def test_a_value_of_a_condition_stays_a_value(value: str, tmp_path: Path) -> None:
    given = {"type": "comparison", "column": {"name": "a"}, "operator": "==", "parameter": value}
    name = {"type": "comparison", "column": {"name": value}, "operator": "==", "parameter": 1}
    for one in (given, name):
        arguments = {"column": "a", "row_condition": one}
        try:
            load_suite(suite(tmp_path, "expect_column_values_to_not_be_null", arguments))
        except StreamwardenError as error:
            assert error.code == "SUITE_INVALID"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("expect_query_results_to_match_comparison", {"base_query": "SELECT 1", "comparison_query": "SELECT 1"}),
        ("expect_table_row_count_to_equal_other_table", {"other_table_name": "x"}),
        ("expect_column_values_to_be_in_set", {"column": "a", "unexpected_rows_query": "SELECT 1 FROM {batch}"}),
        ("expect_column_values_to_match_json_schema", {"column": "a", "json_schema": {"$ref": "file:///etc/passwd"}}),
        (
            "expect_column_values_to_match_json_schema",
            {"column": "a", "json_schema": {"properties": {"b": [{"$ref": "http://127.0.0.1/"}]}}},
        ),
    ],
)
def test_no_argument_names_what_lies_outside(kind: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"query|table|ref"):
        checked_arguments(kind, arguments)
    checked_arguments("expect_column_values_to_match_json_schema", {"json_schema": {"$ref": "#/definitions/a"}})


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM glob('{folder}/*')",
        "ATTACH '{folder}/x.db' AS x",
        "COPY batch TO '{folder}/made.csv'",
        "EXPORT DATABASE '{folder}/made'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET threads = 64",
        "SET enable_external_access = true; SELECT * FROM read_text('{file}')",
        "SELECT * FROM not_registered",
        "SELECT * FROM duckdb_secrets()",
    ],
)
def test_duckdb_itself_reads_and_writes_nothing_else(query: str, tmp_path: Path) -> None:
    """The second lock: what the parser might miss."""
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    not_registered = pa.table({"a": [SECRET]})
    with pytest.raises(QueryError) as error:
        run(query.format(file=file, folder=tmp_path), {"batch": pa.table({"id": [1]})})
    assert SECRET not in str(error.value) and not_registered.num_rows == 1
    assert [one.name for one in tmp_path.iterdir()] == ["secret.txt"]


def suite(folder: Path, kind: str, arguments: dict[str, Any]) -> Path:
    path = folder / "t.json"
    expectation = {"type": kind, "kwargs": arguments, "severity": "critical", "meta": {"id": "a"}}
    path.write_text(json.dumps({"name": "t", "meta": {"keys": ["id"]}, "expectations": [expectation]}))
    return path
