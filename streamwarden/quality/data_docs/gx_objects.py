"""Results and suites of a run as Great Expectations' own objects."""

from __future__ import annotations

from collections import Counter
from typing import Any

from streamwarden.quality.arguments import ROWS
from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult

__all__ = ["gx_result", "gx_suite"]


def gx_suite(table: TableResult) -> Any:
    """Return what was evaluated as an ``ExpectationSuite``."""
    from great_expectations.core import ExpectationSuite

    return ExpectationSuite(
        name=table.table,
        notes=table.notes or None,
        expectations=[_configuration(one).to_domain_obj() for one in table.expectations],
    )


def gx_result(run: QualityRun, table: TableResult) -> Any:
    """Return a table's result as an ``ExpectationSuiteValidationResult``; it succeeds if only warnings failed."""
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult

    results = [
        ExpectationValidationResult(
            success=one.success,
            expectation_config=_configuration(one),
            result=_result(one, table.rows),
            exception_info={
                "raised_exception": one.error is not None,
                "exception_message": one.error,
                # Only its text is kept.
                "exception_traceback": None if one.error is None else "",
            },
        )
        for one in table.expectations
    ]
    met = sum(one.success for one in table.expectations)
    total = len(results)
    return ExpectationSuiteValidationResult(
        success=table.success,
        results=results,
        suite_name=table.table,
        statistics={
            "evaluated_expectations": total,
            "successful_expectations": met,
            "unsuccessful_expectations": total - met,
            "success_percent": 100 * met / total if total else None,
        },
        meta={
            "run_id": {"run_name": run.run_id, "run_time": run.started},
            "great_expectations_version": run.great_expectations,
            "batch_spec": {
                name: value
                for name, value in (
                    ("data_asset_name", table.table),
                    ("path", f"{run.tables_dir}/{table.table}"),
                    ("version", table.version),
                    ("rows_added_after_version", table.after),
                    ("rows", table.rows),
                )
                if value is not None
            },
        },
    )


def _configuration(one: ExpectationResult) -> Any:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.metadata_types import FailureSeverity

    return ExpectationConfiguration(
        type=one.type,
        kwargs=dict(one.arguments),
        severity=FailureSeverity(one.severity),
        description=one.description or None,
        notes=one.notes or None,
        meta={"id": one.id},
    )


def _result(one: ExpectationResult, rows: int | None) -> dict[str, Any]:
    """Return Great Expectations' ``result``, with the failing rows that were kept."""
    if one.error is not None:
        return {}
    if one.type == ROWS:
        return {"observed_value": one.unexpected_count, "details": {"unexpected_rows": list(one.examples)}}
    if one.unexpected_count is None:
        return {"observed_value": one.observed}
    checked = one.checked if one.checked is not None else rows
    all_rows = rows if rows is not None else checked
    missing = all_rows - checked if all_rows is not None and checked is not None else None
    found: dict[str, Any] = {
        "element_count": all_rows,
        "missing_count": missing,
        "missing_percent": _percent(missing, all_rows),
        "unexpected_count": one.unexpected_count,
        "unexpected_percent": one.unexpected_percent,
        "unexpected_percent_nonmissing": one.unexpected_percent,
        "unexpected_percent_total": _percent(one.unexpected_count, all_rows),
    }
    return {**found, **_examples(one)} if one.examples and one.columns else found


def _examples(one: ExpectationResult) -> dict[str, Any]:
    values = [_value(row, one.columns) for row in one.examples]
    keys = [name for name in one.examples[0] if name not in one.columns]
    counts = Counter(map(str, values))
    found: dict[str, Any] = {
        "partial_unexpected_list": values,
        "partial_unexpected_counts": [{"value": value, "count": number} for value, number in counts.items()],
    }
    if keys:
        found["unexpected_index_column_names"] = keys
        found["partial_unexpected_index_list"] = [dict(row) for row in one.examples]
    return found


def _value(row: dict[str, Any], columns: tuple[str, ...]) -> Any:
    if len(columns) == 1:
        return row.get(columns[0])
    return ", ".join(f"{name}={row.get(name)}" for name in columns)


def _percent(part: int | None, whole: int | None) -> float | None:
    return 100 * part / whole if part is not None and whole else None
