"""The files of a run's Data Docs."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from streamwarden.quality.data_docs.files import ASSETS, asset, docs_key
from streamwarden.quality.data_docs.gx_objects import gx_result, gx_suite
from streamwarden.quality.engine import import_great_expectations
from streamwarden.quality.results import QualityRun, TableResult
from streamwarden.spark.utc import in_utc
from streamwarden.storage import Storage

if TYPE_CHECKING:
    from streamwarden.quality.data_docs.view import PageView

__all__ = ["render_data_docs", "write_data_docs"]


def write_data_docs(storage: Storage, run: QualityRun) -> str:
    """Write the Data Docs of a run beside its results; return the key of their first page."""
    for name, data in render_data_docs(run).items():
        storage.write(docs_key(run.run_id, name), data)
    return docs_key(run.run_id)


# Great Expectations writes times in the machine's zone.
@in_utc()
def render_data_docs(run: QualityRun) -> dict[str, bytes]:
    """Return the files of a run's Data Docs, by path.

    ``index.html``, ``static/…``, and for each table ``validations/TABLE`` and ``expectations/TABLE``, both as ``.html``
    and as Great Expectations' own ``.json``. The suites are what the run evaluated, whatever is in force now.
    """
    import_great_expectations()
    from streamwarden.quality.data_docs.view import PageView

    view, found = PageView(), {f"static/{name}": asset(name) for name in ASSETS}
    for table in run.tables:
        found |= _files_of(run, table, view)
    return {**found, "index.html": _index(run, view)}


def _files_of(run: QualityRun, table: TableResult, view: PageView) -> dict[str, bytes]:
    from great_expectations.render.renderer.page_renderer import (
        ExpectationSuitePageRenderer,
        ValidationResultsPageRenderer,
    )

    shown = _escaped(table)
    suite, result = gx_suite(shown), gx_result(run, shown)
    for one in result.results:
        if "partial_unexpected_index_list" in one.result:
            # Only these are shown with their keys. If there are more, the heading says "Sampled".
            one.result["unexpected_index_list"] = one.result["partial_unexpected_index_list"]
    suite_page, page = f"expectations/{table.table}.html", f"validations/{table.table}.html"
    return {
        f"expectations/{table.table}.json": _json(gx_suite(table).to_json_dict()),
        f"validations/{table.table}.json": _json(gx_result(run, table).to_json_dict()),
        suite_page: view.page(
            ExpectationSuitePageRenderer().render(suite),  # type: ignore[no-untyped-call]
            (f"../{page}", "Validation result"),
        ),
        page: view.page(
            ValidationResultsPageRenderer().render(result),
            (f"../{suite_page}", "Expectation suite"),
            note=table.what or "",
        ),
    }


def _index(run: QualityRun, view: PageView) -> bytes:
    from great_expectations.render.renderer.site_index_page_renderer import SiteIndexPageRenderer

    links: dict[str, Any] = {
        "site_name": run.run_id,
        "validations_links": [
            {
                "validation_success": table.success,
                "run_time": run.started,
                "run_name": run.run_id,
                "asset_name": table.table,
                "batch_identifier": "-" if table.version is None else f"version {table.version}",
                "expectation_suite_name": table.table,
                "expectation_suite_filepath": f"expectations/{table.table}.html",
                "filepath": f"validations/{table.table}.html",
            }
            for table in run.tables
        ],
        "expectations_links": [
            {"expectation_suite_name": table.table, "filepath": f"expectations/{table.table}.html"}
            for table in run.tables
        ],
    }
    return view.page(SiteIndexPageRenderer.render(links), top="")  # type: ignore[no-untyped-call]


def _escaped(table: TableResult) -> TableResult:
    """Return the table with descriptions as HTML: Great Expectations takes them for templates."""
    expectations = [one.model_copy(update={"description": html.escape(one.description)}) for one in table.expectations]
    return table.model_copy(update={"expectations": tuple(expectations)})


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode()
