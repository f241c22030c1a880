"""A job's module that can't be used: what a person reads, before Spark starts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.pipeline.module import load_module, settings_for, split_outputs
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.store.config import job_names, load_job
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.unit

PAGE = (REPOSITORY / "docs" / "jobs.md").read_text()
CODE, YAML = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0] for language in ("python", "yaml"))
FIELDS = {**yaml.safe_load(YAML), "module": "made_jobs.orders_paid"}
SINK = {"table": "orders_paid", "mode": "append"}


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of jobs in a driver's working directory."""
    folder = tmp_path / "made_jobs"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [one for one in sys.modules if one.partition(".")[0] == "made_jobs"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


@pytest.fixture(autouse=True)
def forget_modules() -> Any:
    yield
    for name in [one for one in sys.modules if one.partition(".")[0] == "made_jobs"]:
        del sys.modules[name]


def load(jobs: Path, code: str = CODE, **fields: Any) -> StreamingJob:
    (jobs / "orders_paid.py").write_text(code)
    return load_module(JobSpec.model_validate({**FIELDS, **fields}))


def refusal(jobs: Path, code: str = CODE, **fields: Any) -> StreamwardenError:
    with pytest.raises(StreamwardenError) as caught:
        load(jobs, code, **fields)
    assert "Traceback" not in caught.value.what and "\n" not in caught.value.what
    return caught.value


def test_the_example_of_the_page_and_the_projects_own_jobs_load(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(jobs).VERSION == 1
    monkeypatch.chdir(REPOSITORY)
    for name in job_names(REPOSITORY / "config"):
        spec = load_job(name, config=REPOSITORY / "config")
        settings_for(spec, load_module(spec))


def test_a_misspelt_module_is_named_by_the_field_of_the_yaml(jobs: Path) -> None:
    error = refusal(jobs, module="made_jobs.order_paid")
    assert error.code == "JOB_MODULE_INVALID"
    assert error.what == (
        "config/jobs/orders_paid.yaml: module: there is no module made_jobs.order_paid; did you mean"
        " made_jobs.orders_paid?"
    )
    assert str(jobs.parent) in error.remedy
    error = refusal(jobs, module="made_jobs/orders_paid.py")
    assert error.what.endswith("did you mean made_jobs.orders_paid?")
    error = refusal(jobs, module="mad_jobs.orders_paid")
    assert error.what.endswith("there is no module mad_jobs.orders_paid")


def test_a_folder_that_python_does_not_take_for_the_package_is_told(jobs: Path) -> None:
    own = jobs.parent / "spark_jobs"
    own.mkdir()
    (own / "orders_paid.py").write_text(CODE)
    error = refusal(jobs, module="spark_jobs.orders_paid")
    assert "spark_jobs/orders_paid.py exists" in error.what and str(REPOSITORY / "spark_jobs") in error.what
    assert error.remedy == "Create an empty file spark_jobs/__init__.py."


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'", "Install it for"),
        (
            "import neighbour",
            "ModuleNotFoundError: No module named 'neighbour'",
            "Import it by its package: made_jobs.neighbour.",
        ),
        ("from made_jobs import gone", "ImportError: cannot import name 'gone'", "Correct this line."),
        ("X = {}['key']", "KeyError: 'key'", 'python -c "import made_jobs.orders_paid"'),
        ("def f(:", "SyntaxError: invalid syntax", "Correct this line, or one just above it."),
        ("\tX = 1", "IndentationError: unexpected indent", "Correct this line, or one just above it."),
        ("raise SystemExit(3)", "SystemExit: 3", "Correct this line."),
        ("import made_jobs.broken", "made_jobs/broken.py:2: ZeroDivisionError", "Correct this line."),
    ],
)
def test_a_module_that_can_not_be_imported_is_named_by_file_and_line(
    jobs: Path, line: str, what: str, remedy: str
) -> None:
    (jobs / "neighbour.py").touch()
    (jobs / "broken.py").write_text("# A helper\n1 / 0\n")
    error = refusal(jobs, f"VERSION = 1\n{line}\n")
    assert error.code == "JOB_MODULE_INVALID"
    place = "" if "broken" in line else "made_jobs/orders_paid.py:2: "
    assert error.what.startswith(place + what)
    assert error.what.endswith("(`module` of config/jobs/orders_paid.yaml)") and remedy in error.remedy


@pytest.mark.parametrize(
    ("begins", "line", "what"),
    [
        ("VERSION", "", "VERSION: is missing"),
        ("VERSION", "Version = 1", "VERSION: is missing; it has Version (made_jobs/orders_paid.py:4)"),
        ("VERSION", 'VERSION = "1"', "VERSION: is '1'"),
        (
            "OUTPUTS",
            'OUTPUT = {"main": StructType([])}',
            "OUTPUTS: is missing; it has OUTPUT (made_jobs/orders_paid.py:8)",
        ),
        ("OUTPUTS", "OUTPUTS = StructType([])", "OUTPUTS: is no mapping"),
        ("OUTPUTS", 'OUTPUTS = {"main": list(FIELDS)}', "OUTPUTS: is no mapping"),
        ("OUTPUTS", "OUTPUTS = {}", "OUTPUTS: is no mapping"),
        (
            "OUTPUTS",
            'OUTPUTS = {"main": StructType([StructField(name, StringType()) for name in ("order_id", "Order_Id")])}',
            "OUTPUTS: output main has column order_id twice",
        ),
        ("OUTPUT_MODE", 'OUTPUT_MODE = "complete"', "OUTPUT_MODE: is 'complete'"),
        (
            "SOURCES",
            "SOURCE = {}",
            "SOURCES: is missing, and config/jobs/orders_paid.yaml has sources; it has SOURCE (",
        ),
        ("def transform", "def tranform(sources, settings):", "transform: is missing; it has tranform"),
        ("def transform", "def transform(sources):", "transform: is called as transform(sources, settings): too many"),
        (
            "def transform",
            "def transform(sources, settings, more):",
            "transform: is called as transform(sources, settin",
        ),
        ("    return orders", "    orders", "transform returns nothing"),
    ],
)
def test_a_part_that_is_missing_or_of_another_kind_is_named(jobs: Path, begins: str, line: str, what: str) -> None:
    lines = [line if one.startswith(begins) else one for one in CODE.splitlines()]
    assert lines != CODE.splitlines()
    error = refusal(jobs, "\n".join(lines))
    assert error.code == "JOB_MODULE_INVALID" and error.remedy
    assert error.what.startswith("made_jobs/orders_paid.py") and what in error.what


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("class Options:\n    x = 1", "Options: is no pydantic model"),
        ("Options = {}", "Options: is no pydantic model"),
        ("def outputs():\n    return {}", "outputs: is called as outputs(batch): "),
        ("outputs = {}", "outputs: is no function"),
        (
            'def outputs(batch):\n    return {"mian": batch}',
            "outputs returns 'mian', and OUTPUTS has main; did",
        ),
    ],
)
def test_an_optional_part_of_another_kind_is_named(jobs: Path, more: str, what: str) -> None:
    assert what in refusal(jobs, f"{CODE}\n\n{more}\n").what


@pytest.mark.parametrize(
    ("sink", "what"),
    [
        (
            {"output": "mian"},
            ".output: OUTPUTS (made_jobs/orders_paid.py:8) has no output 'mian', it has main",
        ),
        ({"keys": ["order"]}, ".keys: output main (made_jobs/orders_paid.py:8) has no column order, it has order_id, "),
        ({"keys": ["order_id"], "first_by": ["x"]}, ".first_by: output main "),
        ({"partition_by": ["ordered_On"]}, "has no column ordered_On, it has order_id, ordered_at, paid_at; did you"),
    ],
)
def test_what_a_sink_names_is_compared_with_outputs(jobs: Path, sink: dict[str, Any], what: str) -> None:
    error = refusal(jobs, sinks=[{**SINK, **sink}])
    assert error.code == "JOB_MODULE_INVALID"
    assert error.what.startswith("config/jobs/orders_paid.yaml: sinks.orders_paid.") and what in error.what


def test_a_sink_of_an_output_that_nothing_writes_is_refused(jobs: Path) -> None:
    code = CODE.replace('OUTPUTS = {"main": ', 'OUTPUTS = {"late": StructType([]), "main": ')
    late = {"table": "late", "mode": "append", "output": "late"}
    error = refusal(jobs, code, sinks=[SINK, late])
    assert "sinks.late.output: nothing writes late: the module has no function outputs(batch)" in error.what
    rule = {"id": "r", "fails": "order_id IS NULL", "reason": "no order", "columns": {"order_id": "any"}}
    quarantine = {"table": "orders_paid_quarantine", "mode": "append", "output": "late"}
    # The rules of the table write it.
    assert load(jobs, code, sinks=[{**SINK, "row_rules": [rule]}, quarantine])
    more = '\n\ndef outputs(batch):\n    return {"main": batch, "late": batch}\n'
    del sys.modules["made_jobs.orders_paid"]
    assert load(jobs, code + more, sinks=[SINK, late])


@pytest.mark.parametrize(
    ("source", "what"),
    [
        # Only SOURCES has the slip: transform and YAML agree.
        ("SOURCES", "orders_paid.py:6: SOURCES has orders and paymets, but transform and sources of config/jobs/"),
        # The YAML alone.
        (
            "YAML",
            "config/jobs/orders_paid.yaml: sources.paymets: SOURCES (made_jobs/orders_paid.py:6) has no such name, ",
        ),
        ("transform", 'transform reads sources["paymets"], and sources of config/jobs/orders_paid.yaml has orders'),
    ],
)
def test_a_slip_in_one_of_three_places_is_named_where_it_is(jobs: Path, source: str, what: str) -> None:
    code, fields = CODE, {}
    if source == "SOURCES":
        code = CODE.replace('"payments": "paid_at"', '"paymets": "paid_at"')
    elif source == "transform":
        code = CODE.replace('sources["payments"]', 'sources["paymets"]')
    else:
        fields = {"sources": {"orders": FIELDS["sources"]["orders"], "paymets": FIELDS["sources"]["payments"]}}
    error = refusal(jobs, code, **fields)
    assert what in error.what
    assert "payments?" in error.what
    if source == "SOURCES":
        assert error.remedy.startswith("Correct SOURCES")


def test_outputs_that_are_not_declared_are_refused_instead_of_dropped() -> None:
    def job(found: object) -> StreamingJob:
        return cast(StreamingJob, SimpleNamespace(OUTPUTS={"main": None}, outputs=lambda _: found))

    assert split_outputs(job({"main": 1}), cast(Any, None)) == {"main": 1}
    with pytest.raises(StreamwardenError, match=r"JOB_MODULE_INVALID.*returned 'mian', and OUTPUTS has main; did"):
        split_outputs(job({"main": 1, "mian": 2}), cast(Any, None))
    with pytest.raises(StreamwardenError, match="returned None"):
        split_outputs(job(None), cast(Any, None))
