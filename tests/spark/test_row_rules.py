"""Row rules in Spark: they agree with Great Expectations, and move rows to quarantine with the batch."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.driver.pipeline.row_rules import check_row_rules, output_schemas
from streamwarden.errors import StreamwardenError
from streamwarden.model.row_rules import compile_rule
from streamwarden.model.spec import JobSpec
from streamwarden.quality import engine
from streamwarden.quality.arrow_checker import ArrowChecker
from streamwarden.quality.suites import Suite
from streamwarden.store.row_rules import with_row_rules
from tests.spark.job_runs import delta_tables, read_table

pytestmark = pytest.mark.spark

NEW_YEAR = datetime(2020, 1, 1, tzinfo=UTC)
TIMES = (NEW_YEAR, NEW_YEAR.replace(microsecond=1), datetime(1969, 12, 31, tzinfo=UTC))
COLUMNS = "id long, n int, big long, x double, y double, s string, at timestamp, till timestamp, ok boolean"
VALUES: dict[str, tuple[Any, ...]] = {
    "n": (-1, 0, 1, 2, 2**31 - 1),
    "big": (0, 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)),
    "x": (-1.5, 0.0, -0.0, 0.1, 1.0, 1e300, float("nan"), float("inf"), -float("inf")),
    "y": (0.0, 0.1, 1.0, float("nan")),
    "s": ("", "a", "A", "it's", 'say "x"', "a\\b", "x1", "1", "é", "a\nb"),
    "at": TIMES,
    "till": TIMES,
    "ok": (False, True),
}
BETWEEN, IN, NOT_IN = (f"expect_column_values_to_{what}" for what in ("be_between", "be_in_set", "not_be_in_set"))
PAIR, REGEX = "expect_column_pair_values_a_to_be_greater_than_b", "expect_column_values_to_match_regex"
RULES: list[tuple[str, dict[str, Any]]] = [
    *(("expect_column_values_to_not_be_null", {"column": name}) for name in VALUES),
    (BETWEEN, {"column": "n", "min_value": 0, "max_value": 1}),
    (BETWEEN, {"column": "n", "min_value": 0, "strict_min": True}),
    (BETWEEN, {"column": "big", "max_value": 2**53, "strict_max": True}),
    (BETWEEN, {"column": "x", "min_value": 0.1, "max_value": 1}),
    (BETWEEN, {"column": "x", "max_value": 1e300, "strict_max": True}),
    (BETWEEN, {"column": "at", "min_value": "2020-01-01T00:00:00"}),
    (BETWEEN, {"column": "at", "max_value": "2020-01-01T00:00:00", "strict_max": True}),
    (IN, {"column": "n", "value_set": [0, 1]}),
    (IN, {"column": "x", "value_set": [0.1, 1.0]}),
    (IN, {"column": "s", "value_set": ["a", "it's", "a\\b", ""]}),
    (IN, {"column": "ok", "value_set": [True]}),
    (NOT_IN, {"column": "big", "value_set": [2**53]}),
    (NOT_IN, {"column": "s", "value_set": ['say "x"', "é"]}),
    (REGEX, {"column": "s", "regex": r"^[a-z]\d?$"}),
    (REGEX, {"column": "s", "regex": r"\\"}),
    (REGEX, {"column": "s", "regex": "'"}),
    (PAIR, {"column_A": "x", "column_B": "y"}),
    (PAIR, {"column_A": "x", "column_B": "y", "or_equal": True}),
    (PAIR, {"column_A": "till", "column_B": "at"}),
    (PAIR, {"column_A": "n", "column_B": "big", "or_equal": True}),
]


@pytest.fixture(scope="module")
def suite() -> tuple[Suite, Any]:
    expectations = [
        {"type": kind, "kwargs": kwargs, "severity": "critical", "meta": {"id": str(number), "rows": "quarantine"}}
        for number, (kind, kwargs) in enumerate(RULES)
    ]
    made = Suite.model_validate({"name": "t", "meta": {"keys": ["id"]}, "expectations": expectations})
    return made, engine.build(made, Path("t.json"))


def test_a_predicate_agrees_with_great_expectations(spark: SparkSession, suite: tuple[Suite, Any]) -> None:
    # One table of many rows, and not many tables: each evaluation takes a second.
    choice = random.Random(46)
    named = [
        {"id": number, **{name: choice.choice((None, *values)) for name, values in VALUES.items()}}
        for number in range(400)
    ]
    schema = StructType.fromDDL(COLUMNS)
    table = pa.Table.from_pylist(named, to_arrow_schema(schema, timezone="UTC"))
    frame = spark.createDataFrame([tuple(row[name] for name in schema.names) for row in named], schema)
    rules = [compile_rule(kind, kwargs, name=str(n), reason="") for n, (kind, kwargs) in enumerate(RULES)]
    judged = frame.select(
        "id", *[F.coalesce(F.expr(rule.fails), F.lit(False)).alias(f"r{rule.id}") for rule in rules]
    ).collect()
    by_spark = {rule.id: {row["id"] for row in judged if row[f"r{rule.id}"]} for rule in rules}
    checker = ArrowChecker(examples=len(named))
    results = checker.run(*suite, table, table.num_rows)
    assert [one.error for one in results if one.error] == []
    counted = {one.id: one.unexpected_count or 0 for one in results}
    assert {name: len(ids) for name, ids in by_spark.items()} == counted
    listed = {one.id: {example["id"] for example in one.examples} for one in results}
    assert by_spark == listed
    assert all(0 < len(ids) < len(named) for ids in by_spark.values()), (
        "a rule that judges all rows alike shows nothing"
    )


# -- in a batch --------------------------------------------------------------------------------------------------------

_TEXT, _LONG = StringType(), LongType()
ORIGIN = [StructField("source_file", _TEXT), StructField("source_row", _LONG)]
OUTPUT = StructType([StructField("id", _LONG), StructField("n", _LONG), *ORIGIN])
JOB: dict[str, Any] = {
    "name": "job",
    "module": "m",
    "source": {"kind": "delta", "table": "source"},
    "sinks": [{"table": "t", "mode": "append"}],
}


def spec_with(folder: Path, *rules: tuple[str, dict[str, Any]], **changes: Any) -> JobSpec:
    folder.mkdir(exist_ok=True)
    expectations = [
        {"type": kind, "kwargs": kwargs, "description": f"Rule {n}.", "meta": {"id": f"t.{n}", "rows": "quarantine"}}
        for n, (kind, kwargs) in enumerate(rules)
    ]
    (folder / "t.json").write_text(json.dumps({"expectations": expectations}))
    return with_row_rules(JobSpec.model_validate({**JOB, **changes}), folder)


def writer_of(spark: SparkSession, tmp_path: Path, spec: JobSpec, job: Any) -> BatchWriter:
    return delta_tables(spark, tmp_path / "tables", spec, job, tmp_path / "checkpoint")


POSITIVE = (BETWEEN, {"column": "n", "min_value": 1})
EVEN = (NOT_IN, {"column": "n", "value_set": [-1, 7]})


def rows_of(tmp_path: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(tmp_path / "tables" / table).to_pylist()
    return found


def test_failing_rows_go_to_quarantine_once_though_the_batch_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    spec = spec_with(tmp_path / "suites", POSITIVE, EVEN)
    job = SimpleNamespace(VERSION=1, OUTPUTS={"main": OUTPUT})
    rows = [(1, 5, "a.json", 0), (2, 0, "a.json", 1), (3, -1, "a.json", 2), (4, None, None, None), (5, 7, None, None)]
    frame = spark.createDataFrame(rows, OUTPUT)
    writer = writer_of(spark, tmp_path, spec, job)
    writer(frame, 0)
    # As after a kill before Spark's commit, and then a batch of its own.
    writer_of(spark, tmp_path, spec, job)(frame, 0)
    assert sorted(row["id"] for row in rows_of(tmp_path, "t")) == [1, 4]
    bad = sorted(rows_of(tmp_path, "t_quarantine"), key=lambda row: json.loads(row["raw"])["id"])
    assert [(json.loads(row["raw"]), row["rules"], row["batch"]) for row in bad] == [
        ({"id": 2, "n": 0}, ["t.0"], 0),
        ({"id": 3, "n": -1}, ["t.0", "t.1"], 0),
        ({"id": 5, "n": 7}, ["t.1"], 0),
    ]
    assert bad[1]["reasons"] == ["t.0: Rule 0.", "t.1: Rule 1."]
    assert [(row["source_file"], row["source_row"]) for row in bad] == [("a.json", 1), ("a.json", 2), (None, None)]
    assert len({row["row_id"] for row in bad}) == 3
    counts = writer.counts(0)
    assert counts is not None and (counts.computed, counts.rows_out, counts.rows_quarantined) == (5, 2, 3)


def test_upserted_rows_are_held_back_and_removals_are_not_judged(spark: SparkSession, tmp_path: Path) -> None:
    sinks = [{"table": "t", "mode": "upsert", "keys": ["id"]}]
    spec = spec_with(
        tmp_path / "suites", ("expect_column_values_to_not_be_null", {"column": "n"}), POSITIVE, sinks=sinks
    )
    job = SimpleNamespace(VERSION=1, OUTPUTS={"main": OUTPUT})
    writer = writer_of(spark, tmp_path, spec, job)
    columns = StructType([*OUTPUT.fields, StructField("_deleted", BooleanType())])
    writer(spark.createDataFrame([(1, 5, None, None, False), (2, 6, None, None, None)], columns), 0)
    writer(spark.createDataFrame([(1, -5, None, None, False), (2, None, None, None, True)], columns), 1)
    assert [(row["id"], row["n"]) for row in rows_of(tmp_path, "t")] == [(1, 5)]
    assert [(json.loads(row["raw"]), row["batch"]) for row in rows_of(tmp_path, "t_quarantine")] == [
        ({"id": 1, "n": -5}, 1)
    ]


def test_a_quarantine_table_of_the_module_takes_both_kinds_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    refused = StructType([StructField("raw", _TEXT), StructField("reasons", ArrayType(_TEXT)), *ORIGIN])
    sinks = [*JOB["sinks"], {"table": "t_quarantine", "output": "refused", "mode": "append"}]

    def outputs(batch: DataFrame) -> dict[str, DataFrame]:
        unread = batch.where("id < 0").select(
            F.lit("?").alias("raw"), F.array(F.lit("UNREADABLE")).alias("reasons"), "source_file", "source_row"
        )
        return {"main": batch.where("id >= 0"), "refused": unread}

    job = SimpleNamespace(VERSION=1, OUTPUTS={"main": OUTPUT, "refused": refused}, outputs=outputs)
    # The table is there before it has a rule.
    plain = JobSpec.model_validate({**JOB, "sinks": sinks})
    writer_of(spark, tmp_path, plain, job)(spark.createDataFrame([(-1, 1, "a", 0)], OUTPUT), 0)
    spec = spec_with(tmp_path / "suites", POSITIVE, sinks=sinks)
    writer = writer_of(spark, tmp_path, spec, job)
    writer(spark.createDataFrame([(-1, 1, "b", 0), (2, 0, "b", 1), (3, 1, "b", 2)], OUTPUT), 1)
    found = sorted((row["source_file"], row["source_row"], row["rules"]) for row in rows_of(tmp_path, "t_quarantine"))
    assert found == [("a", 0, None), ("b", 0, None), ("b", 1, ["t.0"])]
    assert [row["id"] for row in rows_of(tmp_path, "t")] == [3]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ((BETWEEN, {"column": "gone", "min_value": 1}), "writes no column gone"),
        ((IN, {"column": "n", "value_set": ["1"]}), "column n is bigint"),
        ((PAIR, {"column_A": "n", "column_B": "source_file"}), "column source_file is string"),
        # Python's regular expressions know it, Java's do not.
        ((REGEX, {"column": "source_file", "regex": "(?P<name>a)"}), "t.0"),
    ],
)
def test_a_rule_that_does_not_fit_the_rows_ends_the_start(
    spark: SparkSession, tmp_path: Path, rule: tuple[str, dict[str, Any]], words: str
) -> None:
    spec = spec_with(tmp_path / "suites", rule)
    job: Any = SimpleNamespace(VERSION=1, OUTPUTS={"main": OUTPUT})
    with pytest.raises(StreamwardenError, match=words) as raised:
        output_schemas(spec, job)
        check_row_rules(spark, spec, job)
    assert raised.value.code == "SUITE_INVALID"
