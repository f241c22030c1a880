"""Great Expectations' Data Docs: complete, without a public address or a script, and safe with any value."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.quality.data_docs import files as docs_files
from streamwarden.quality.data_docs.files import ASSETS, asset
from streamwarden.quality.data_docs.site import render_data_docs, write_data_docs
from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult
from streamwarden.storage import LocalStorage
from tests.unit.quality.gate_place import Place

NASTY = "<script>alert(1)</script>"


def _one(name: str, kind: str, **fields: object) -> ExpectationResult:
    plain = {"id": name, "type": kind, "columns": (), "severity": "critical", "description": "", "notes": "",
             "arguments": {}, "success": False}  # fmt: skip
    return ExpectationResult.model_validate({**plain, **fields})


RUN = QualityRun(
    run_id="20260101T000000Z-abc",
    started="2026-01-01T00:00:00.000Z",
    ended="2026-01-01T00:00:01.000Z",
    seconds=1,
    tables_dir="var/tables",
    great_expectations="1",
    tables=(
        TableResult(
            table="trips",
            status="failed",
            version=5,
            after=3,
            rows=100,
            notes=f"Trips {NASTY}",
            expectations=(
                _one(
                    "fare",
                    "expect_column_values_to_be_between",
                    columns=("fare",),
                    description=f"Fares > 0 in $ {NASTY}",
                    arguments={"column": "fare", "min_value": 0},
                    notes=NASTY,
                    checked=98,
                    unexpected_count=30,
                    unexpected_percent=30.6,
                    examples=({"trip_id": NASTY, "fare": -1}, {"trip_id": "b", "fare": NASTY}),
                ),
                _one(
                    "all",
                    "expect_column_values_to_not_be_null",
                    columns=("q",),
                    arguments={"column": "q"},
                    checked=100,
                    unexpected_count=1,
                    unexpected_percent=1,
                    examples=({"trip_id": "seven", "q": None},),
                ),
                _one(
                    "query",
                    "unexpected_rows_expectation",
                    severity="warning",
                    unexpected_count=1,
                    checked=98,
                    arguments={"unexpected_rows_query": "select * from {batch} where a < 3"},
                    examples=({"a": NASTY},),
                ),
                _one(
                    "pair",
                    "expect_compound_columns_to_be_unique",
                    columns=("a", "b"),
                    arguments={"column_list": ["a", "b"]},
                    checked=98,
                    unexpected_count=2,
                    unexpected_percent=2,
                    examples=({"a": NASTY, "b": 1},),
                ),
                _one(
                    "set",
                    "expect_column_distinct_values_to_be_in_set",
                    columns=("s",),
                    observed=["x", NASTY],
                    arguments={"column": "s", "value_set": ["x", NASTY]},
                ),
                _one(
                    "gone",
                    "expect_column_values_to_not_be_null",
                    columns=("z",),
                    arguments={"column": "z"},
                    error=NASTY,
                ),
                _one(
                    "rows",
                    "expect_table_row_count_to_be_between",
                    arguments={"min_value": 5},
                    success=True,
                    observed=100,
                ),
            ),
        ),
        TableResult(table="absent", status="not_found", code="TABLE_NOT_FOUND", what=f"absent: {NASTY}"),
    ),
)


class _Page(HTMLParser):
    """What a page loads, where it leads, and what could run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.runs: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "href", "srcset", "action", "data", "poster"):
                self.loads.append(value or "")
            elif name.startswith("on") or (value or "").lower().startswith("javascript:"):
                self.runs.append(f"{tag} {name}")
            elif name == "style" and "url(" in (value or ""):
                self.loads.append(value or "")
        if tag in ("script", "iframe", "object", "embed", "base", "form"):
            self.runs.append(tag)


@pytest.fixture(scope="module")
def site() -> dict[str, bytes]:
    return render_data_docs(RUN)


@pytest.fixture(scope="module")
def pages(site: dict[str, bytes]) -> dict[str, _Page]:
    return {name: _Page(data.decode()) for name, data in site.items() if name.endswith(".html")}


def test_each_table_has_a_result_and_a_suite(site: dict[str, bytes]) -> None:
    tables = {f"{kind}/{table}.{end}" for kind in ("validations", "expectations") for table in ("trips", "absent")
              for end in ("html", "json")}  # fmt: skip
    assert set(site) == {"index.html", "static/bootstrap.min.css", "static/data_docs.css", *tables}


def test_nothing_is_loaded_from_elsewhere(site: dict[str, bytes], pages: dict[str, _Page]) -> None:
    for name, page in pages.items():
        for address in page.loads:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), address))
            assert address == "data:," or target in site, f"{name} loads {address}"
        # Styles inside a page could load, too.
        assert not re.search(r"url\(|@import|<style", site[name].decode()), name
    for name in ASSETS:
        css = asset(name).decode()
        assert "@import" not in css
        assert all(one.startswith("data:") for one in re.findall(r"url\(\s*['\"]?([^'\")]+)", css)), name


def test_every_link_leads_somewhere(site: dict[str, bytes], pages: dict[str, _Page]) -> None:
    for name, page in pages.items():
        for address in page.links:
            if address.startswith("#"):
                assert f'id="{address[1:]}"' in site[name].decode(), f"{name}: {address}"
            elif not address.startswith("https://greatexpectations.io"):
                assert posixpath.normpath(posixpath.join(posixpath.dirname(name), address)) in site, (
                    f"{name}: {address}"
                )


def test_no_value_can_run(site: dict[str, bytes], pages: dict[str, _Page]) -> None:
    for name, page in pages.items():
        assert page.runs == [], name
        assert NASTY not in site[name].decode(), name
        assert "default-src 'none'" in site[name].decode(), name
    assert "&lt;script&gt;alert(1)" in site["validations/trips.html"].decode()


def test_failing_rows_are_shown_with_their_keys(site: dict[str, bytes]) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", site["validations/trips.html"].decode()))
    assert "Sampled Unexpected Values Count trip_id -1 1 &lt;script&gt;" in text
    assert "30 unexpected values found" in text and "Fares &gt; 0 in $ " in text
    assert "seven" in text


def test_a_table_without_a_result_says_why(site: dict[str, bytes]) -> None:
    assert "absent: &lt;script&gt;" in site["validations/absent.html"].decode()


def test_results_and_suites_are_great_expectations_own(site: dict[str, bytes]) -> None:
    from great_expectations.core import ExpectationSuite
    from great_expectations.core.expectation_validation_result import expectationSuiteValidationResultSchema

    found = json.loads(site["validations/trips.json"])
    loaded = expectationSuiteValidationResultSchema.load(found)
    assert loaded["statistics"]["successful_expectations"] == 1
    assert found["results"][0]["result"]["element_count"] == 100
    assert found["results"][0]["result"]["missing_count"] == 2
    assert found["results"][0]["result"]["partial_unexpected_list"] == [-1, NASTY]
    # Only some are kept: so this must not seem complete.
    assert "unexpected_index_list" not in found["results"][0]["result"]
    suite = ExpectationSuite(**json.loads(site["expectations/trips.json"]))
    assert [one.expectation_type for one in suite.expectations] == [one.type for one in RUN.tables[0].expectations]


def test_they_are_written_beside_the_results(tmp_path: Path, site: dict[str, bytes]) -> None:
    key = write_data_docs(LocalStorage(tmp_path), RUN)
    assert key == f"quality/{RUN.run_id}/data_docs/index.html"
    folder = (tmp_path / key).parent
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(site)


def test_the_command_renders_a_check(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(1, 300)
    root = ["--root", str(place.workspace.root)]

    def run(*words: str) -> dict[str, str]:
        done = CliRunner().invoke(app, [*words, *root, "--json"])
        assert done.exit_code in (0, 1), done.output
        return dict(json.loads(done.stdout))

    assert CliRunner().invoke(app, ["data-docs", *root]).exit_code == 2
    checked = run("check", "--expectations", str(place.suites), "--data-docs")
    page = Path(checked["data_docs"]).parent / "validations/windows.html"
    first = page.read_text()
    assert "1 unexpected values found. 50% of 2 total rows." in first and ">300<" in first
    page.unlink()
    assert run("data-docs") == {"run": checked["run"], "data_docs": checked["data_docs"]}
    assert page.read_text() == first
    assert run("data-docs", checked["run"])["run"] == checked["run"]


def test_vendored_styles_are_those_of_the_package() -> None:
    folder = Path(docs_files.__file__).parent / "static"
    lines = [
        line.split() for line in (folder / "bootstrap.sha256").read_text().splitlines() if not line.startswith("#")
    ]
    assert len(lines) == 2
    for digest, name in lines:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
