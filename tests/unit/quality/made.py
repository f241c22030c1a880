"""Results made by hand."""

from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult


def expectation(name="t.a", *, success=True, severity="critical", **over):
    fields = {
        "type": "expect_column_values_to_not_be_null",
        "columns": ("a",),
        "description": "Every row has an a.",
        "notes": "It is the key.",
        "arguments": {"column": "a"},
        "checked": 100,
        "unexpected_count": 0 if success else 3,
        "unexpected_percent": 0.0 if success else 3.0,
        **over,
    }
    return ExpectationResult(id=name, success=success, severity=severity, **fields)


def table(status, *expectations, name="t", **over):
    known = {} if status == "not_found" else {"version": 7, "version_time": "2026-01-02T03:04:05Z", "rows": 100}
    return TableResult(table=name, status=status, expectations=expectations, **{**known, **over})


def run(*tables, run_id="20260102T030405Z-abcdef", **over):
    fields = {
        "started": "2026-01-02T03:04:05.000Z",
        "ended": "2026-01-02T03:04:25.000Z",
        "seconds": 20.0,
        "tables_dir": "var/tables",
        "great_expectations": "1.24.1",
        "spark": "4.2.0",
        **over,
    }
    return QualityRun(run_id=run_id, tables=tables, **fields)
