"""Row rules: which expectations compile, what is refused, and how they come into a job's spec."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from pyspark.sql.types import StructType

from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.pipeline.row_rules import QUARANTINED, output_schemas
from streamwarden.errors import StreamwardenError
from streamwarden.model.row_rules import compile_rule
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.spec_diff import changes_between
from streamwarden.quality.suites import load_suite
from streamwarden.store.config import load_job
from streamwarden.store.row_rules import with_kept_quarantine

pytestmark = pytest.mark.unit

BETWEEN = "expect_column_values_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"
JOB = {
    "name": "job",
    "module": "m",
    "source": {"kind": "delta", "table": "source"},
    "sinks": [{"table": "t", "mode": "append"}],
}


def expectation(kind: str = BETWEEN, **changes: Any) -> dict[str, Any]:
    kwargs = changes.pop("kwargs", {"column": "n", "min_value": 1})
    meta = {"id": "t.n.least", "rows": "quarantine", **changes.pop("meta", {})}
    return {"type": kind, "kwargs": kwargs, "severity": "critical", "description": "At least 1.", "meta": meta}


def write(folder: Path, *expectations: dict[str, Any], job: dict[str, Any] = JOB) -> Path:
    (folder / "config" / "jobs").mkdir(parents=True, exist_ok=True)
    (folder / "config" / "jobs" / "job.yaml").write_text(yaml.safe_dump(job))
    (folder / "expectations").mkdir(exist_ok=True)
    suite = {"name": "t", "meta": {"keys": ["n"]}, "expectations": list(expectations)}
    (folder / "expectations" / "t.json").write_text(json.dumps(suite))
    return folder / "config"


@pytest.mark.parametrize(
    ("kind", "kwargs", "fails"),
    [
        ("expect_column_values_to_not_be_null", {"column": "a`b"}, "`a``b` IS NULL"),
        (BETWEEN, {"column": "n", "min_value": 0, "max_value": 1.5}, "`n` < 0L OR `n` > 1.5D"),
        (BETWEEN, {"column": "n", "min_value": -1, "strict_min": True}, "`n` <= -1L"),
        (BETWEEN, {"column": "n", "max_value": 1, "strict_max": True}, "`n` >= 1L"),
        (BETWEEN, {"column": "at", "min_value": "2020-01-01T00:00:00"}, "`at` < TIMESTAMP '2020-01-01 00:00:00'"),
        (
            IN_SET,
            {"column": "s", "value_set": ["a", "it's"]},
            r"`s` NOT IN ('a', 'it\'s')",
        ),
        ("expect_column_values_to_not_be_in_set", {"column": "n", "value_set": [3]}, "`n` IN (3L)"),
        ("expect_column_values_to_match_regex", {"column": "s", "regex": r"^\d+$"}, r"NOT (`s` RLIKE '^\\d+$')"),
        ("expect_column_pair_values_a_to_be_greater_than_b", {"column_A": "a", "column_B": "b"}, "`a` <= `b`"),
    ],
)
def test_an_expectation_about_rows_is_compiled(kind: str, kwargs: dict[str, Any], fails: str) -> None:
    assert compile_rule(kind, kwargs, name="id", reason="why").fails == fails


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            expectation("expect_column_values_to_be_unique", kwargs={"column": "n"}),
            "type: expect_column",
        ),
        (expectation("unexpected_rows_expectation", kwargs={}), "type: unexpected_rows_expectation"),
        (expectation(kwargs={"column": "n", "min_value": 1, "mostly": 0.9}), "kwargs.mostly"),
        (expectation(kwargs={"column": "n", "min_value": 1, "row_condition": "x > 1"}), "kwargs.row_condition"),
        (expectation(kwargs={"column": "n", "min_value": "low"}), "kwargs.min_value: 'low' is neither"),
        (expectation(kwargs={"column": "n"}), "kwargs.min_value: give"),
        (expectation(kwargs={"column": "n", "min_value": 1, "max_value": "2020-01-01"}), "kwargs.min_value: give"),
        (expectation(kwargs={"min_value": 1}), "kwargs.column: is missing"),
        (expectation(IN_SET, kwargs={"column": "n", "value_set": [1, "a"]}), "value_set"),
        (expectation(IN_SET, kwargs={"column": "n", "value_set": []}), "value_set"),
        (expectation("expect_column_values_to_match_regex", kwargs={"column": "n", "regex": "("}), "kwargs.regex"),
        (expectation(meta={"rows": "drop"}), "meta.rows: 'drop'"),
        (expectation(meta={"recent": {"column": "at", "days": 3}}), "meta.rows: a rule about recent rows"),
        (expectation(meta={"id": ""}), "meta.id: is missing"),
    ],
)
def test_what_cannot_be_compiled_is_refused_at_load(tmp_path: Path, bad: dict[str, Any], words: str) -> None:
    good = expectation(meta={"id": "t.good"})
    config = write(tmp_path, good, bad)
    with pytest.raises(StreamwardenError, match=r"t\.json: expectations\.1\.") as raised:
        load_job("job", config=config)
    assert raised.value.code == "SUITE_INVALID" and words in raised.value.what
    with pytest.raises(StreamwardenError, match=r"t\.json: expectations\.1") as raised:
        load_suite(tmp_path / "expectations" / "t.json")
    assert raised.value.code == "SUITE_INVALID"


def test_rules_travel_in_the_spec_with_a_sink_for_their_rows(tmp_path: Path) -> None:
    config = write(tmp_path, expectation(), expectation(meta={"rows": None, "id": "reported"}))
    spec = load_job("job", config=config)
    main, quarantine = spec.delta_sinks
    assert [rule.id for rule in main.row_rules] == ["t.n.least"]
    assert (quarantine.table, quarantine.mode, quarantine.rewinds) == ("t_quarantine", "append", True)
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec

    # The suite changes: the deployed spec does not, and the plan names the change.
    changed = load_job("job", config=write(tmp_path, expectation(kwargs={"column": "n", "min_value": 2})))
    (change,) = changes_between(spec, changed, None)
    assert (change.field, change.effect) == ("sinks.t.row_rules.t.n.least", Effect.SAVEPOINT)
    assert (change.before, change.after) == ("fails if `n` < 1L", "fails if `n` < 2L")
    without = load_job("job", config=write(tmp_path, expectation(meta={"rows": None})))
    assert [one.field for one in changes_between(without, spec, None)] == [
        "sinks.t.row_rules.t.n.least",
        "sinks.t_quarantine",
    ]


def test_a_quarantine_table_of_the_job_itself_is_used(tmp_path: Path) -> None:
    own = {"table": "t_quarantine", "output": "refused", "mode": "append"}
    job = {**JOB, "sinks": [*JOB["sinks"], own]}  # type: ignore[misc]
    spec = load_job("job", config=write(tmp_path, expectation(), job=job))
    assert [sink.output for sink in spec.delta_sinks] == ["main", "refused"]
    job["sinks"] = [*JOB["sinks"], {**own, "mode": "upsert", "keys": ["n"]}]  # type: ignore[misc]
    with pytest.raises(StreamwardenError, match="is upserted"):
        load_job("job", config=write(tmp_path, expectation(), job=job))


def test_rules_in_yaml_are_refused(tmp_path: Path) -> None:
    rule = {"id": "x", "reason": "", "fails": "true", "columns": {}}
    job = {**JOB, "sinks": [{"table": "t", "mode": "append", "row_rules": [rule]}]}
    with pytest.raises(StreamwardenError, match="row_rules belong in the table's suite"):
        load_job("job", config=write(tmp_path, expectation(), job=job))


@pytest.mark.parametrize(
    ("suite", "words"),
    [
        ([], "is no object"),
        ({"expectations": 5}, "expectations: is no list"),
        ({"expectations": {"a": 1}}, "expectations: is no list"),
        ({"expectations": [expectation(kwargs={"column": 5, "min_value": 1})]}, "expectations.0.kwargs.column"),
        ({"expectations": [expectation(kwargs=["n"])]}, "expectations.0.kwargs: is no object"),
        ({"expectations": [{**expectation(), "description": 5}]}, "expectations.0.description"),
        (
            {
                "expectations": [
                    expectation(
                        "expect_column_pair_values_a_to_be_greater_than_b", kwargs={"column_A": ["a"], "column_B": "b"}
                    )
                ]
            },
            "expectations.0.kwargs.column_A",
        ),
    ],
)
def test_a_malformed_suite_is_refused_with_a_code(tmp_path: Path, suite: Any, words: str) -> None:
    config = write(tmp_path)
    (tmp_path / "expectations" / "t.json").write_text(json.dumps(suite))
    with pytest.raises(StreamwardenError) as raised:
        load_job("job", config=config)
    assert raised.value.code == "SUITE_INVALID" and "t.json" in raised.value.what and words in raised.value.what


def test_a_quarantine_stays_in_the_spec_when_its_last_rule_is_removed(tmp_path: Path) -> None:
    deployed = load_job("job", config=write(tmp_path, expectation()))
    wanted = load_job("job", config=write(tmp_path))
    assert [sink.table for sink in wanted.delta_sinks] == ["t"]
    kept = with_kept_quarantine(wanted, deployed)
    assert [(sink.table, sink.output) for sink in kept.delta_sinks] == [("t", "main"), ("t_quarantine", "rules/main")]
    (change,) = changes_between(deployed, kept, None)
    assert change.field == "sinks.t.row_rules.t.n.least"
    # A spec that has rules, or writes the table itself, or no longer the judged one, is as it is.
    assert with_kept_quarantine(deployed, deployed) is deployed
    other = load_job("job", config=write(tmp_path, job={**JOB, "sinks": [{"table": "u", "mode": "append"}]}))
    assert with_kept_quarantine(other, deployed) is other
    # The driver opens the table by the columns of rules.
    module = SimpleNamespace(OUTPUTS={"main": StructType([])})
    assert output_schemas(kept, cast(StreamingJob, module))["rules/main"] == QUARANTINED
