"""Faults of a module's transform that its text shows: told with file and line, and never guessed."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.store.config import job_names, load_job
from streamwarden.store.module_text import ModuleText, find_module, module_text, text_of
from streamwarden.store.transform_check import check_transform, joins, names_read
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.unit

PAGE = (REPOSITORY / "docs" / "jobs.md").read_text()
CODE, YAML = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0] for language in ("python", "yaml"))
FIELDS = yaml.safe_load(YAML)


def check(folder: Path, code: str, **fields: Any) -> None:
    file = folder / "spark_jobs" / "orders_paid.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)
    check_transform(JobSpec.model_validate({**FIELDS, **fields}), text_of(file, folder))


def refusal(folder: Path, code: str, **fields: Any) -> StreamwardenError:
    with pytest.raises(StreamwardenError) as caught:
        check(folder, code, **fields)
    return caught.value


def line_of(code: str, words: str) -> str:
    number = next(number for number, line in enumerate(code.splitlines(), 1) if words in line)
    return f"spark_jobs/orders_paid.py:{number}: "


def changed(*changes: tuple[str, str]) -> str:
    code = CODE
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    return code


def body(*lines: str) -> str:
    return "def transform(sources, settings):\n" + textwrap.indent("\n".join(lines), "    ")


def test_the_projects_own_jobs_and_the_example_of_the_page_pass(tmp_path: Path) -> None:
    check(tmp_path, CODE)
    names = job_names(REPOSITORY / "config")
    for name in names:
        spec = load_job(name, config=REPOSITORY / "config")
        text = module_text(spec.module, REPOSITORY)
        assert text is not None and text.function("transform") is not None, "nothing would be checked"
        check_transform(spec, text)
    assert "trip_payments" in names and len(names) > 10


def test_a_misnamed_source_is_named_with_line_names_and_remedy(tmp_path: Path) -> None:
    code = changed(('sources["payments"]', 'sources["paymets"]'))
    error = refusal(tmp_path, code)
    assert error.code == "JOB_MODULE_INVALID"
    assert error.what == (
        f'{line_of(code, "paymets")}transform reads sources["paymets"], and sources of config/jobs/orders_paid.yaml has'
        " orders and payments; did you mean payments?"
    )
    assert "in this line" in error.remedy and "SOURCES" in error.remedy


@pytest.mark.parametrize("name", ["zonse", "zones"])
def test_a_misnamed_lookup_is_named(tmp_path: Path, name: str) -> None:
    code = body(f'return sources["orders"].join(settings.lookups["{name}"], "zone").union(sources["payments"])')
    lookups = {"zones": {"table": "zones"}}
    if name == "zones":
        check(tmp_path, code, lookups=lookups)
        return
    error = refusal(tmp_path, code, lookups=lookups)
    assert 'settings.lookups["zonse"]' in error.what and error.what.endswith("has zones; did you mean zones?")


def test_a_source_that_is_not_read_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, body('return sources["orders"]'))
    assert "does not read payments" in error.what and error.what.startswith("spark_jobs/orders_paid.py:1: ")
    check(tmp_path, body("orders = sources['orders']", "return joined(orders, sources)"))


BOTH = 'return sources["orders"].union(sources["payments"])'
GUARDED = [
    'extra = sources["gone"] if settings.options else None',
    'if settings.options:\n    extra = sources["gone"]',
    'extra = settings.options and sources["gone"]',
    'try:\n    extra = sources["gone"]\nexcept Exception:\n    extra = None',
    'with suppress(Exception):\n    extra = sources["gone"]',
    'extra = lambda: sources["gone"]',
    'def later():\n    return sources["gone"]',
    'extra = [sources["gone"] for _ in settings.lookups]',
    'for _ in settings.lookups:\n    extra = sources["gone"]',
    'extra = sources.get("gone")',
    f'if settings.options:\n    {BOTH}\nextra = sources["gone"]',
    'name = "gone"\nextra = sources[name]',
    'extra = settings.ttl is None or 1 < 2 < len(sources["gone"])',
]
PLAIN = ["extra = 1", 'orders = sources["orders"]', "if settings.watermark is None:\n    raise ValueError", "print(1)"]


@given(st.lists(st.sampled_from([*GUARDED, *PLAIN]), max_size=6))
def test_what_may_not_run_is_never_refused(lines: list[str]) -> None:
    check_text(body(*lines, BOTH))


@given(st.lists(st.sampled_from(PLAIN), max_size=4), st.lists(st.sampled_from([*GUARDED, *PLAIN]), max_size=4))
def test_what_runs_in_any_case_is_refused(before: list[str], after: list[str]) -> None:
    with pytest.raises(StreamwardenError, match=r'reads sources\["gone"\]'):
        check_text(body(*before, 'extra = sources["gone"]', *after, BOTH))


def check_text(code: str) -> None:
    check_transform(JobSpec.model_validate(FIELDS), ModuleText("spark_jobs/orders_paid.py", ast.parse(code)))


def test_another_name_for_the_parameters_is_followed_and_a_new_value_is_not(tmp_path: Path) -> None:
    code = body(BOTH).replace("sources", "inputs")
    check(tmp_path, code)
    assert 'inputs["gone"]' in refusal(tmp_path, code.replace('"payments"', '"gone"')).what
    check(tmp_path, body("sources = prepared(sources)", 'return sources["gone"]'))


def test_a_join_without_any_watermark_is_named_with_its_line(tmp_path: Path) -> None:
    bare = changed(
        ('.withWatermark("ordered_at", delay)', ""),
        ('.withWatermark("paid_at", delay)', ""),
        ('{"orders": "ordered_at", "payments": "paid_at"}', '{"orders": None, "payments": None}'),
    )
    error = refusal(tmp_path, bare)
    assert error.code == "JOIN_WITHOUT_WATERMARK"
    assert error.what.startswith(line_of(bare, "leftOuter")) and "orders and payments" in error.what
    assert "withWatermark on both" in error.remedy
    # By an option's value, a helper, a join within a branch, or of a lookup: only Spark knows.
    for old, new in (
        ('"leftOuter"', "KINDS[settings.options.kind]"),
        ('"leftOuter"', '"inner"'),
        ('paid = sources["payments"]', 'paid = late(sources["payments"])'),
        ('sources["payments"].with', 'settings.lookups["zones"].with'),
        ("    return orders.join", "    if settings.options: return orders\n    return orders.join"),
    ):
        assert old in bare
        code = bare.replace(old, new)
        if "lookups" in new:
            code = code.rstrip() + '.union(sources["payments"].select(*FIELDS))'
        check(tmp_path, code, lookups={"zones": {"table": "zones"}})


def test_an_outer_join_in_another_mode_than_append_is_named_with_its_line() -> None:
    spec, text = JobSpec.model_validate(FIELDS), ModuleText("spark_jobs/orders_paid.py", ast.parse(CODE))
    check_transform(spec, text, "append")
    with pytest.raises(
        StreamwardenError, match="outer join of orders and payments, and OUTPUT_MODE is update"
    ) as caught:
        check_transform(spec, text, "update")
    assert line_of(CODE, "leftOuter") in caught.value.what and 'OUTPUT_MODE = "append"' in caught.value.remedy
    check_transform(spec, ModuleText("x.py", ast.parse(CODE.replace("leftOuter", "inner"))), "update")


def test_a_column_of_sources_that_no_watermark_names_is_named(tmp_path: Path) -> None:
    code = changed(('.withWatermark("paid_at", delay)', ""))
    error = refusal(tmp_path, code)
    assert error.code == "JOB_MODULE_INVALID"
    assert error.what.startswith(line_of(code, 'sources["payments"]'))
    assert "withWatermark on paid_at of payments" in error.what and "orders_paid.py:6) names" in error.what
    assert 'sources["payments"].withWatermark("paid_at", …)' in error.remedy
    # Code elsewhere may call it, or SQL, or the column is no literal.
    for more in ("from spark_jobs.event_checks import late", "import importlib", "from . import late"):
        check(tmp_path, f"{more}\n{code}")
    check(tmp_path, code.rstrip() + '.sparkSession.sql("SELECT 1")')
    check(tmp_path, changed(('.withWatermark("paid_at", delay)', '.withWatermark(SOURCES["payments"], delay)')))
    check(tmp_path, changed(('.withWatermark("paid_at", delay)', '.withWatermark(eventTime="paid_at", d=delay)')))


def test_a_watermark_that_transform_computes_with_is_missed_before_it_runs(tmp_path: Path) -> None:
    code = 'def transform(source, settings):\n    return source.where(f"{settings.watermark.total_seconds()} > 0")\n'
    single = {"sources": None, "source": {"kind": "delta", "table": "orders"}}
    check(tmp_path, code, **single)
    error = refusal(tmp_path, code, **single, watermark=None)
    assert error.code == "CONFIG_INVALID"
    assert error.what == (
        "config/jobs/orders_paid.yaml: watermark: is missing, and transform uses it (spark_jobs/orders_paid.py:2)"
    )
    check(tmp_path, code.replace("settings.w", "0 if settings.watermark is None else settings.w"), **single)
    assert "state.ttl: " in refusal(tmp_path, code.replace("watermark", "ttl"), **single).what


@pytest.mark.parametrize("last", ["sources['orders']", "return", "def f():\n    return sources['orders']"])
def test_a_transform_that_returns_nothing_is_named(tmp_path: Path, last: str) -> None:
    error = refusal(tmp_path, body(last))
    assert error.what == "spark_jobs/orders_paid.py:1: transform returns nothing" and "`return`" in error.remedy


@pytest.mark.parametrize(
    "code",
    [
        "from elsewhere import transform",
        "@wrapped\ndef transform(sources, settings):\n    pass",
        "def transform(sources, settings):\n    pass\n\ntransform = wrapped(transform)",
        "async def transform(sources, settings):\n    pass",
        "def transform(sources, settings):\n    pass\n\nif True:\n    def transform(a, b):\n        return 1",
    ],
)
def test_a_transform_whose_text_is_not_all_of_it_is_not_judged(tmp_path: Path, code: str) -> None:
    check(tmp_path, code)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("SOURCES = {}\nSOURCES = {'a': None}", {"a": None}),
        ("SOURCES: dict = {'a': None}\ndef f():\n    SOURCES = 1", {"a": None}),
        ("SOURCES = {'a': None}\nSOURCES['b'] = None", None),
        ("SOURCES = {'a': None}\nSOURCES.update(b=None)", None),
        ("SOURCES = {'a': None}\nif True:\n    SOURCES = {}", None),
        ("SOURCES = {'a': None}\nSOURCES |= {'b': None}", None),
        ("SOURCES = dict(a=None)", None),
    ],
)
def test_only_a_value_that_stays_is_a_constant(code: str, found: object) -> None:
    assert ModuleText("x.py", ast.parse(code)).constant("SOURCES") == found


def test_names_and_joins_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "orders_paid.py").write_text(CODE)
    text = module_text("orders_paid", tmp_path)
    assert names_read(text) == ["orders", "payments"] and names_read(None) == []
    assert text is not None and joins(text) == [int(line_of(CODE, "leftOuter").split(":")[1])]


def test_a_module_is_found_as_a_driver_finds_it(tmp_path: Path) -> None:
    """In the folder above the configuration first; a folder without __init__.py is no package beside a real one."""
    (tmp_path / "spark_jobs").mkdir()
    own = tmp_path / "spark_jobs" / "trip_payments.py"
    own.write_text("VERSION = 7\n")
    assert find_module("spark_jobs.trip_payments", tmp_path) == REPOSITORY / "spark_jobs" / "trip_payments.py"
    (tmp_path / "spark_jobs" / "__init__.py").touch()
    assert find_module("spark_jobs.trip_payments", tmp_path) == own
    text = module_text("spark_jobs.trip_payments", tmp_path)
    assert text is not None and text.constant("VERSION") == 7 and text.file == "spark_jobs/trip_payments.py"
    for name in ("spark_jobs.card_sessions", "spark_jobs.trip_payments.more", "no_such", "sys", "", "spark_jobs/x.py"):
        assert find_module(name, tmp_path) is None


def test_a_text_that_is_no_python_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "orders_paid.py").write_text("VERSION = 1\nOUTPUTS = (\n")
    with pytest.raises(StreamwardenError, match=r"JOB_MODULE_INVALID.*orders_paid\.py:2: SyntaxError: '\(' was never"):
        module_text("orders_paid", tmp_path)
