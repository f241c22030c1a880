"""Evaluate suites on rows in memory: Great Expectations' pandas engine on Arrow's columns, and DuckDB for SQL.

What Great Expectations does not do on this engine is done here:

- Queries (``unexpected_rows_expectation``) have no implementation for pandas: DuckDB runs them.
- Types of columns are compared with the table's schema. pandas knows Python's types only, and not integer from long.
- Pairs of columns are compared by DuckDB: Great Expectations fails at a null in Arrow's columns. So are values with
  bounds, which it compares each in Python: 10 s for a million rows and six rules. So are sets and the least and
  greatest values: it fails at times.
- Conditions for rows (``row_condition``) and fields of structs (``a.b``) become a table of their own.
- Failing rows are found by DuckDB. Great Expectations lists all of them in Python first: 150 s for a million.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from streamwarden.quality.arguments import PAIRS, QUERY, ROWS, literal, quoted, without_condition
from streamwarden.quality.engine import Checker, Validate, build, import_great_expectations
from streamwarden.quality.failing_rows import chosen, condition, failing_rows_query, own_columns
from streamwarden.quality.results import ExpectationResult
from streamwarden.quality.sql import BATCH, QueryError, other, run, translated, without_zones
from streamwarden.quality.suites import Expectation, Suite

__all__ = ["ArrowChecker", "with_fields"]

_COUNTED = {
    "expect_column_pair_values_a_to_be_greater_than_b",
    "expect_column_values_to_be_between",
    "expect_column_values_to_be_in_set",
    "expect_column_values_to_not_be_in_set",
}
"""Expectations that are counted by their condition, in SQL."""
_OF_TYPE = {"expect_column_values_to_be_of_type", "expect_column_values_to_be_in_type_list"}
_EXTREMES = {"expect_column_max_to_be_between": "max", "expect_column_min_to_be_between": "min"}
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

    def _run(self, suite: Suite, built: Any, frame: pa.Table, rows: int) -> list[ExpectationResult]:
        apart = [one for one in suite.expectations if _is_apart(one, frame.schema.names)]
        alike = [one for one in suite.expectations if one not in apart]
        found: dict[str, ExpectationResult] = {}
        if alike:
            these = suite.only(alike)
            made = built if not apart else build(these, Path(f"{suite.name}.json"))
            found = {item.id: item for item in super()._run(these, made, frame, rows)}
        for one in apart:
            found[one.meta.id] = self._run_apart(suite, one, frame)
        return [found[one.meta.id] for one in suite.expectations]

    def _run_apart(self, suite: Suite, expectation: Expectation, frame: pa.Table) -> ExpectationResult:
        """Evaluate an expectation about some rows, or about fields of structs, on a table that has only these."""
        table = with_fields(frame, [*expectation.columns, *suite.meta.keys])
        some = chosen(expectation.arguments)
        if some != BATCH:
            rows = table.append_column(_NUMBER, pa.array(range(table.num_rows), pa.int64()))
            numbers = run(f"SELECT {quoted(_NUMBER)} FROM {some}", {BATCH: without_zones(rows)})[_NUMBER]
            table = table.take(numbers)
        plain = expectation.model_copy(update={"arguments": without_condition(expectation.arguments)})
        alone = suite.only([plain])
        made = build(alone, Path(f"{suite.name}.json"))
        (result,) = super()._run(alone, made, table, table.num_rows)
        return result.model_copy(update={"arguments": expectation.arguments})

    def _validator(self, suite: Suite, frame: pa.Table) -> Validate:
        inner = super()._validator(suite, frame)
        rows = without_zones(frame)

        def validate(expectations: Sequence[Any], result_format: dict[str, Any]) -> dict[str, Any]:
            own: dict[str, Any] = {}
            for item in expectations:
                if item.expectation_type in _OF_TYPE:
                    own[item.meta["id"]] = _type_result(item, frame.schema)
                elif item.expectation_type in _COUNTED:
                    own[item.meta["id"]] = _counted(item, rows)
                elif item.expectation_type in _EXTREMES:
                    own[item.meta["id"]] = _extreme(item, rows)
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
            arguments = item.configuration.kwargs
            query = failing_rows_query(item.expectation_type, arguments, suite.meta.keys, rows.schema.names)
            if query is None:
                continue
            limited = f"SELECT * FROM ({query}) LIMIT {self._examples}"
            try:
                found[item.meta["id"]] = run(limited, {BATCH: rows, **self._others}).to_pylist(maps_as_pydicts="lossy")
            except QueryError:
                # The verdict stands without examples.
                continue
        return found


_NUMBER = "streamwarden row number"


def _is_apart(expectation: Expectation, names: Sequence[str]) -> bool:
    if expectation.type == ROWS:
        return False
    fields = [name for name in own_columns(expectation.arguments) if name not in names and name.split(".")[0] in names]
    return bool(fields) or expectation.arguments.get("row_condition") is not None


def with_fields(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table with a column for each name such as ``a.b``, which is a field of a struct."""
    for name in dict.fromkeys(names):
        first, *rest = name.split(".")
        if name in table.schema.names or not rest or first not in table.schema.names:
            continue
        kind = table.schema.field(first).type
        for part in rest:
            if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
                break
            kind = kind.field(part).type
        else:
            table = table.append_column(name, pc.struct_field(table[first], rest))
    return table


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


def _missing(item: Any, columns: Sequence[str], there: Sequence[str]) -> Any:
    missing = [name for name in columns if name not in there]
    return _result(item, False, {}, f'The column "{missing[0]}" does not exist') if missing else None


def _counted(item: Any, rows: pa.Table) -> Any:
    """Return how many of the rows with values meet the condition of a failing row.

    As Great Expectations counts: of a pair, a row with one value is judged, and never fails.
    """
    arguments, names = item.configuration.kwargs, rows.schema.names
    columns = own_columns(arguments)
    if (missing := _missing(item, columns, names)) is not None:
        return missing
    filled = (" OR " if item.expectation_type in PAIRS else " AND ").join(
        f"{quoted(name)} IS NOT NULL" for name in columns
    )
    query = (
        f"SELECT count(*) AS rows, count(*) FILTER ({filled}) AS judged,"
        f" count(*) FILTER ({condition(item.expectation_type, arguments, names)}) AS failing FROM {BATCH}"
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


def _extreme(item: Any, rows: pa.Table) -> Any:
    """Return whether the least or greatest value of a column is within bounds. NaN is greater than every number."""
    arguments = item.configuration.kwargs
    if (missing := _missing(item, [item.column], rows.schema.names)) is not None:
        return missing
    value = f"{_EXTREMES[item.expectation_type]}({quoted(item.column)})"
    ends = []
    for name, sign in (("min_value", ">"), ("max_value", "<")):
        if arguments.get(name) is not None:
            ends.append(
                f"{value} {sign}{'' if arguments.get(f'strict_{name[:3]}') else '='} {literal(arguments[name])}"
            )
    query = f"SELECT {value} AS value, {value} IS NOT NULL AND {' AND '.join(ends) or 'TRUE'} AS met FROM {BATCH}"
    try:
        observed, met = (column[0].as_py() for column in run(query, {BATCH: rows}).columns)
    except QueryError as error:
        return _result(item, False, {}, str(error))
    return _result(item, bool(met), {"observed_value": observed})


def _type_result(item: Any, schema: pa.Schema) -> Any:
    """Return whether a column has a type that Spark calls by an expected name."""
    if (missing := _missing(item, [item.column], schema.names)) is not None:
        return missing
    observed = _spark_type(schema.field(item.column).type)
    arguments = item.configuration.kwargs
    expected = arguments.get("type_list") or [arguments.get("type_")]
    return _result(item, observed in expected, {"observed_value": observed})


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
