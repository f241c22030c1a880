"""A job of several sources whose module and YAML do not agree: file, field and remedy, before Spark starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_jobs import trip_payments
from streamwarden.driver.pipeline.module import load_module
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.operations.spec_diff import plan
from streamwarden.store.config import load_job
from streamwarden.store.declared_sources import check_declared_sources
from streamwarden.store.workspace import open_workspace
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.unit

TABLES = {name: {"kind": "delta", "table": name} for name in ("trips", "payments")}
SOURCES = trip_payments.SOURCES


def spec(**fields: Any) -> JobSpec:
    given = load_job("trip_payments", config=REPOSITORY / "config").model_dump(mode="json", exclude_unset=True)
    return JobSpec.model_validate({**given, **fields})


def refusal(found: JobSpec, declared: object = SOURCES) -> StreamwardenError:
    with pytest.raises(StreamwardenError) as caught:
        check_declared_sources(found, declared)
    return caught.value


def test_what_agrees_passes() -> None:
    check_declared_sources(spec(), SOURCES)
    check_declared_sources(spec(watermark=None), dict.fromkeys(SOURCES))
    check_declared_sources(spec(sources=None, source=TABLES["trips"]), None)


def test_a_misnamed_source_is_named_with_file_field_and_remedy() -> None:
    misnamed = spec(sources={"trips": TABLES["trips"], "payment": TABLES["payments"]})
    error = refusal(misnamed)
    assert error.code == "CONFIG_INVALID"
    assert error.what == (
        "config/jobs/trip_payments.yaml: sources.payment: SOURCES (spark_jobs.trip_payments) has no such name, did you"
        " mean payments?"
    )
    assert error.remedy.endswith("does: trips and payments.")
    # So a driver, before it starts Spark.
    with pytest.raises(StreamwardenError, match=r"sources\.payment: "):
        load_module(misnamed)
    error = refusal(spec(sources=None, source=TABLES["trips"]))
    assert error.what.startswith("config/jobs/trip_payments.yaml: source: ") and "trips and payments" in error.remedy


def test_a_missing_watermark_is_named_with_file_field_and_remedy() -> None:
    error = refusal(spec(watermark=None))
    assert error.code == "CONFIG_INVALID"
    assert error.what == (
        "config/jobs/trip_payments.yaml: watermark: is missing, and SOURCES (spark_jobs.trip_payments) needs it for"
        " trips (lpep_pickup_datetime), payments (settled_at)"
    )
    assert "Set `watermark`, such as 2h" in error.remedy
    with pytest.raises(StreamwardenError, match="watermark: is missing"):
        load_module(spec(watermark=None))


@pytest.mark.parametrize(
    ("declared", "words"),
    [(None, "SOURCES: is missing"), (("trips", "payments"), "no mapping"), ({"trips": 1, "payments": None}, "no map")],
)
def test_sources_of_a_module_that_are_missing_or_malformed(declared: object, words: str) -> None:
    error = refusal(spec(), declared)
    assert error.code == "JOB_MODULE_INVALID" and "spark_jobs.trip_payments: SOURCES: " in error.what
    assert words in error.what and "SOURCES = {" in error.remedy


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sources": {"trips": TABLES["trips"], "payment": TABLES["payments"]}}, "sources.payment: "),
        ({"watermark": None}, "watermark: is missing"),
    ],
)
def test_a_deploy_refuses_it_before_a_driver_starts(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    for folder in ("jobs", "profiles"):
        (tmp_path / "config" / folder).mkdir(parents=True)
    content = spec(**fields).model_dump(mode="json", exclude_unset=True)
    (tmp_path / "config" / "jobs" / "trip_payments.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    workspace = open_workspace("test", config=tmp_path / "config")
    with pytest.raises(StreamwardenError, match=words):
        plan(workspace, "trip_payments")
    assert workspace.storage.list("control") == []


def test_the_example_of_the_page_agrees_and_is_refused_without_its_watermark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPOSITORY / "docs" / "jobs.md").read_text()
    code, text = (re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[0] for language in ("python", "yaml"))
    (tmp_path / "orders_paid.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    content = {**yaml.safe_load(text), "module": "orders_paid"}
    assert load_module(JobSpec.model_validate(content)).VERSION == 1
    with pytest.raises(StreamwardenError, match=r"needs it for orders \(ordered_at\), payments \(paid_at\)"):
        load_module(JobSpec.model_validate({**content, "watermark": None}))
