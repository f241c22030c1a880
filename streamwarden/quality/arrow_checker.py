"""Evaluate suites on rows in memory: Great Expectations' pandas engine on Arrow's columns, and DuckDB for SQL.

What Great Expectations does not do on this engine is done here:

- Queries (``unexpected_rows_expectation``) have no implementation for pandas: DuckDB runs them.
- Types of columns are compared with the table's schema. pandas knows Python's types only, and not integer from long.
- Pairs of columns are compared by DuckDB: Great Expectations fails at a null in Arrow's columns. So are values with
  bounds: it compares each in Python, 10 s for a million rows and six rules.
- Failing rows are found by DuckDB. Great Expectations lists all of them in Python first: 150 s for a million.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

import pandas as pd
import pyarrow as pa

from streamwarden.quality.engine import Checker, Validate, import_great_expectations
from streamwarden.quality.failing_rows import condition, failing_rows_query, quoted
from streamwarden.quality.results import ExpectationResult
from streamwarden.quality.sql import BATCH, QueryError, other, run, translated, without_zones
from streamwarden.quality.suites import Suite

__all__ = ["ArrowChecker"]

QUERY = "unexpected_rows_query"
_COUNTED = ("expect_column_pair_values_a_to_be_greater_than_b", "expect_column_values_to_be_between")
"""Expectations that are counted by their condition, in SQL."""
_OF_TYPE = "expect_column_values_to_be_of_type"
_tables: ContextVar[Mapping[str, pa.Table]] = ContextVar("rows under check, and other tables")


class ArrowChecker(Checker):
    """Evaluates suites on Arrow tables, as read from a Delta table."""

    def __init__(self, *, examples: int = 5) -> None:
        _register()
        super().__init__(examples=examples)
        self._source = self._context.data_sources.add_pandas("arrow")
        self._others: dict[str, pa.Table] = {}

    def run_with(
        self, others: Mapping[str, pa.Table], suite: Suite, built: Any, frame: pa.Table, rows: int
    ) -> list[ExpectationResult]:
        """Evaluate a suite whose queries also read other tables, given by name; see :meth:`run`."""
        self._others = {other(name): without_zones(table) for name, table in others.items()}
        try:
            return self.run(suite, built, frame, rows)
        finally:
            self._others = {}

    def _validator(self, suite: Suite, frame: pa.Table) -> Validate:
        inner = super()._validator(suite, frame)
        rows = without_zones(frame)

        def validate(expectations: Sequence[Any], result_format: dict[str, Any]) -> dict[str, Any]:
            own: dict[str, Any] = {}
            for item in expectations:
                if item.expectation_type == _OF_TYPE:
                    own[item.meta["id"]] = _type_result(item, frame.schema)
                elif item.expectation_type in _COUNTED:
                    own[item.meta["id"]] = _counted(item, rows)
            token = _tables.set({BATCH: rows, **self._others})
            try:
                return own | inner([item for item in expectations if item.meta["id"] not in own], result_format)
            finally:
                _tables.reset(token)

        return validate

    def _batch(self, name: str, frame: pa.Table) -> Any:
        # Without a copy: pandas keeps Arrow's columns.
        columns = without_zones(frame).to_pandas(types_mapper=pd.ArrowDtype)
        asset = self._source.add_dataframe_asset(name)
        return asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": columns})

    def _failing_rows(
        self, suite: Suite, broken: Sequence[Any], frame: pa.Table, _: Validate
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        rows = without_zones(frame)
        found: dict[str, Sequence[Mapping[str, Any]]] = {}
        for item in broken:
            query = failing_rows_query(item.expectation_type, item.configuration.kwargs, suite.meta.keys, rows.schema)
            if query is None:
                continue
            limited = f"SELECT * FROM ({query}) LIMIT {self._examples}"
            found[item.meta["id"]] = run(limited, {BATCH: rows, **self._others}).to_pylist(maps_as_pydicts="lossy")
        return found


def _result(item: Any, success: bool, result: dict[str, Any], error: str | None = None) -> Any:
    from great_expectations.core import ExpectationValidationResult

    return ExpectationValidationResult(
        success=success,
        expectation_config=item.configuration,
        result=result,
        exception_info={
            "raised_exception": error is not None,
            "exception_message": error,
            "exception_traceback": None,
        },
    )


def _counted(item: Any, rows: pa.Table) -> Any:
    """Return how many of the rows whose columns are all filled meet the condition of a failing row."""
    arguments = item.configuration.kwargs
    columns = [arguments[name] for name in ("column", "column_A", "column_B") if name in arguments]
    missing = [name for name in columns if name not in rows.schema.names]
    if missing:
        return _result(item, False, {}, f'The column "{missing[0]}" does not exist')
    filled = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in columns)
    query = (
        f"SELECT count(*) AS rows, count(*) FILTER ({filled}) AS judged,"
        f" count(*) FILTER ({condition(item.expectation_type, arguments)}) AS failing FROM {BATCH}"
    )
    try:
        total, judged, failing = (column[0].as_py() for column in run(query, {BATCH: rows}).columns)
    except QueryError as error:
        return _result(item, False, {}, str(error))
    share = failing / judged if judged else 0.0
    found = {
        "element_count": total,
        "missing_count": total - judged,
        "unexpected_count": failing,
        "unexpected_percent": 100 * share,
    }
    return _result(item, 1 - share >= item.mostly, found)


def _type_result(item: Any, schema: pa.Schema) -> Any:
    """Return whether a column has the type that Spark calls by the expected name."""
    if item.column not in schema.names:
        return _result(item, False, {}, f'The column "{item.column}" does not exist')
    observed = _spark_type(schema.field(item.column).type)
    return _result(item, observed == item.type_, {"observed_value": observed})


_TYPES = (
    (pa.types.is_boolean, "BooleanType"),
    (pa.types.is_int8, "ByteType"),
    (pa.types.is_int16, "ShortType"),
    (pa.types.is_int32, "IntegerType"),
    (pa.types.is_int64, "LongType"),
    (pa.types.is_float32, "FloatType"),
    (pa.types.is_float64, "DoubleType"),
    (pa.types.is_decimal, "DecimalType"),
    (pa.types.is_date, "DateType"),
    (pa.types.is_string, "StringType"),
    (pa.types.is_large_string, "StringType"),
    (pa.types.is_binary, "BinaryType"),
    (pa.types.is_list, "ArrayType"),
    (pa.types.is_map, "MapType"),
    (pa.types.is_struct, "StructType"),
)


def _spark_type(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "TimestampType" if kind.tz else "TimestampNTZType"
    return next((name for fits, name in _TYPES if fits(kind)), str(kind))


@cache
def _register() -> None:
    """Add the queries of suites to Great Expectations' metrics for pandas."""
    import_great_expectations()
    from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
    from great_expectations.expectations.metrics.metric_provider import metric_value
    from great_expectations.expectations.metrics.query_metric_provider import QueryMetricProvider

    def result(arguments: Mapping[str, Any], count: bool) -> Any:
        query = translated(str(arguments[QUERY]))
        if count:
            return run(f"SELECT count(*) AS n FROM ({query})", dict(_tables.get()))["n"][0].as_py()
        # Failing rows: ArrowChecker finds them itself.
        return []

    class RowsOfQuery(QueryMetricProvider):
        metric_name = "unexpected_rows_query.table"
        value_keys = (QUERY,)

        @metric_value(engine=PandasExecutionEngine)
        def _pandas(cls, execution_engine, metric_domain_kwargs, metric_value_kwargs, metrics, runtime_configuration):  # type: ignore[no-untyped-def] # noqa: ARG002, N805
            return result(metric_value_kwargs, count=False)

    class CountOfQuery(QueryMetricProvider):
        metric_name = "unexpected_rows_query.row_count"
        value_keys = (QUERY,)

        @metric_value(engine=PandasExecutionEngine)
        def _pandas(cls, execution_engine, metric_domain_kwargs, metric_value_kwargs, metrics, runtime_configuration):  # type: ignore[no-untyped-def] # noqa: ARG002, N805
            return result(metric_value_kwargs, count=True)
