"""Evaluate one suite on one set of rows with Great Expectations.

Great Expectations runs one Spark job for each metric that it can't bundle, and fetches values, rows and keys of failing
rows even if there are none. So a suite runs at most twice. The first run counts, with samples of size zero, which Spark
answers without a job. The second run fetches a limited number of rows of failed expectations.
"""

from __future__ import annotations

import math
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.quality.arguments import ROWS, SOURCE_FILE
from streamwarden.quality.results import ExpectationResult
from streamwarden.quality.suites import Expectation, Suite
from streamwarden.spark.utc import in_utc

__all__ = ["Checker", "SparkChecker", "build", "import_great_expectations", "jsonable", "unevaluated"]

Validate = Callable[[Sequence[Any], dict[str, Any]], dict[str, Any]]

# Great Expectations has one current context in a process, and the time zone is the process's, too.
_one_at_a_time = threading.RLock()


@cache
def import_great_expectations() -> Any:
    """Import Great Expectations and return it; the first call takes seconds."""
    with _main_has_file():
        import great_expectations
        import great_expectations.expectations  # registers the expectations

    return great_expectations


@contextmanager
def _main_has_file() -> Iterator[None]:
    # PySpark's Connect client, which Great Expectations tries to import, treats a `__main__` without a file (python -c,
    # stdin) as its own doctests. Without grpcio-status it then ends the process with exit code 0.
    main = sys.modules["__main__"]
    if hasattr(main, "__file__"):
        yield
        return
    main.__file__ = "<no file>"
    try:
        yield
    finally:
        del main.__file__


def build(suite: Suite, path: Path) -> Any:
    """Return the suite as Great Expectations' own object.

    Raises
    ------
    StreamwardenError
        ``SUITE_INVALID``, with the file and the expectation that Great Expectations rejects. Its own suite loader only
        logs such an expectation and skips it.
    """
    gx = import_great_expectations()
    return gx.ExpectationSuite(name=suite.name, expectations=[_build(item, path) for item in suite.expectations])


def _build(expectation: Expectation, path: Path) -> Any:
    from great_expectations.exceptions.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    try:
        return ExpectationConfiguration(
            type=expectation.type,
            kwargs=dict(expectation.arguments),
            # Only the id, which identifies the expectation among the results.
            meta={"id": expectation.meta.id},
        ).to_domain_obj()
    except ExpectationNotFoundError as error:
        raise StreamwardenError(
            "SUITE_INVALID", f"{path}: {expectation.meta.id}: there is no expectation {expectation.type!r}"
        ) from error
    except (ValueError, TypeError) as error:
        # pydantic's errors are ValueErrors with several lines.
        said = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise StreamwardenError("SUITE_INVALID", f"{path}: {expectation.meta.id}: {said}") from error


def _set_context(context: Any) -> None:
    from great_expectations.data_context.data_context.context_factory import set_context

    set_context(context)


class Checker(ABC):
    """Great Expectations with an in-memory context; uses no project folder and writes nothing. Not thread-safe.

    Parameters
    ----------
    examples
        How many failing rows to fetch for a failed expectation.
    """

    _source: Any
    """Great Expectations' data source."""

    def __init__(self, *, examples: int = 5) -> None:
        self._context = import_great_expectations().get_context(mode="ephemeral")
        self._context.variables.progress_bars = {"globally": False}
        self._batches = 0
        self._examples = examples

    def run(self, suite: Suite, built: Any, frame: Any, rows: int) -> list[ExpectationResult]:
        """Evaluate a suite; results are in the suite's order. One evaluation goes on in a process at a time.

        Parameters
        ----------
        suite
            The expectations.
        built
            The same suite from :func:`build`.
        frame
            The rows, read many times: a persisted DataFrame of Spark, or an Arrow table.
        rows
            The number of rows.
        """
        # In UTC: values without a zone become local time otherwise.
        with _one_at_a_time, in_utc():
            _set_context(self._context)
            return self._run(suite, built, frame, rows)

    def _run(self, suite: Suite, built: Any, frame: Any, rows: int) -> list[ExpectationResult]:
        try:
            return self._evaluated(suite, built, frame, rows)
        finally:
            # Otherwise the context keeps the asset, and the source's engine every frame.
            self._source.delete_asset(self._asset_name(suite))
            manager = self._source.get_execution_engine().batch_manager
            manager._batch_cache.clear()
            manager._batch_data_cache.clear()

    def _evaluated(self, suite: Suite, built: Any, frame: Any, rows: int) -> list[ExpectationResult]:
        validate = self._validator(suite, frame)
        counted = validate(built.expectations, {"result_format": "BASIC", "partial_unexpected_count": 0})
        broken = [item for item in built.expectations if _to_explain(counted[item.meta["id"]])]
        examples = self._failing_rows(suite, broken, frame, validate) if self._examples and broken else {}
        return [
            self._result(item, counted[item.meta.id], examples.get(item.meta.id, ()), rows)
            for item in suite.expectations
        ]

    def _validator(self, suite: Suite, frame: Any) -> Validate:
        """Return a function that evaluates some expectations of the suite on the frame: results by id."""
        # Great Expectations caches metrics by batch name; a new name prevents results of another frame.
        self._batches += 1
        batch = self._batch(self._asset_name(suite), frame)

        def validate(expectations: Sequence[Any], result_format: dict[str, Any]) -> dict[str, Any]:
            if not expectations:
                return {}
            chosen = import_great_expectations().ExpectationSuite(name=suite.name, expectations=list(expectations))
            found = batch.validate(chosen, result_format=result_format)
            return {item.expectation_config.meta["id"]: item for item in found.results}

        return validate

    def _asset_name(self, suite: Suite) -> str:
        return f"{suite.name}_{self._batches}"

    @abstractmethod
    def _batch(self, name: str, frame: Any) -> Any:
        """Return the frame as a batch of Great Expectations."""

    @abstractmethod
    def _failing_rows(
        self, suite: Suite, broken: Sequence[Any], frame: Any, validate: Validate
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return some failing rows by expectation."""

    def _result(
        self, expectation: Expectation, counted: Any, examples: Iterable[Mapping[str, Any]], rows: int
    ) -> ExpectationResult:
        found: Mapping[str, Any] = counted.result or {}
        error = _error(counted)
        observed, checked, unexpected, percent = found.get("observed_value"), None, None, None
        if error is None and expectation.type == ROWS:
            # A query's result is failing rows, though Great Expectations calls it "observed".
            observed, checked, unexpected = None, rows, int(observed or 0)
            percent = 100 * unexpected / rows if rows else None
        elif error is None and "unexpected_count" in found:
            unexpected, percent = int(found["unexpected_count"]), found.get("unexpected_percent")
            checked = int(found.get("element_count", 0) - (found.get("missing_count") or 0))
            if expectation.type.endswith("_not_be_null"):
                checked, percent = rows, 100 * unexpected / rows if rows else None
        return ExpectationResult(
            id=expectation.meta.id,
            type=expectation.type,
            columns=expectation.columns,
            severity=expectation.severity,
            description=expectation.sentence,
            notes=expectation.notes,
            arguments=expectation.arguments,
            success=bool(counted.success) and error is None,
            observed=jsonable(observed),
            checked=checked,
            unexpected_count=unexpected,
            unexpected_percent=percent,
            examples=tuple(
                {str(name): jsonable(value) for name, value in row.items()} for row in islice(examples, self._examples)
            ),
            error=error,
        )


class SparkChecker(Checker):
    """Evaluates suites on DataFrames of Spark.

    Great Expectations binds SQL queries to one temporary view per session: use one checker at a time in a session.
    """

    def __init__(self, *, examples: int = 5) -> None:
        super().__init__(examples=examples)
        self._source = self._context.data_sources.add_spark("spark", persist=False)

    def _batch(self, name: str, frame: Any) -> Any:
        asset = self._source.add_dataframe_asset(name)
        return asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})

    def _failing_rows(
        self, suite: Suite, broken: Sequence[Any], frame: Any, validate: Validate
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        queries = [item for item in broken if item.expectation_type == ROWS]
        # Failing rows of a query come only with COMPLETE, up to Great Expectations' own limit (200).
        explained = validate(queries, {"result_format": "COMPLETE"})
        # A field of a struct is a column to Spark.
        keys = [key for key in (*suite.meta.keys, SOURCE_FILE) if key.split(".")[0] in frame.columns]
        keys = list(dict.fromkeys(keys))
        if keys:
            explained |= validate(
                [item for item in broken if item.expectation_type != ROWS],
                {
                    "result_format": "SUMMARY",
                    "partial_unexpected_count": self._examples,
                    "unexpected_index_column_names": keys,
                    "return_unexpected_index_query": False,
                },
            )
        return {name: _rows(item) for name, item in explained.items()}


def _rows(explained: Any) -> Sequence[Mapping[str, Any]]:
    found = explained.result or {}
    return found.get("partial_unexpected_index_list") or (found.get("details") or {}).get("unexpected_rows") or ()


def unevaluated(expectation: Expectation, why: str) -> ExpectationResult:
    """Return the result of an expectation that could not be evaluated: it counts as failed."""
    return ExpectationResult(
        id=expectation.meta.id,
        type=expectation.type,
        columns=expectation.columns,
        severity=expectation.severity,
        description=expectation.sentence,
        notes=expectation.notes,
        arguments=expectation.arguments,
        success=False,
        error=why,
    )


def _to_explain(counted: Any) -> bool:
    return not counted.success and _error(counted) is None


def _error(counted: Any) -> str | None:
    # One exception, or one for each failed metric.
    info = counted.exception_info or {}
    parts = [info] if "raised_exception" in info else [part for part in info.values() if isinstance(part, dict)]
    said = [str(part.get("exception_message") or "unknown error") for part in parts if part.get("raised_exception")]
    if not said:
        return None
    # Spark's messages continue with the query plan.
    return said[0].strip().splitlines()[0][:500]


def jsonable(value: Any) -> Any:
    """Return a value of Spark or Great Expectations as plain JSON, with all digits of a decimal.

    Timestamps become UTC: Spark returns them in the machine's time zone, whatever the session's is.
    """
    if isinstance(value, datetime):
        # A naive timestamp is local time.
        said = value.astimezone(UTC).isoformat(timespec="microseconds" if value.microsecond else "seconds")
        return said.replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        # JSON can't represent them.
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    return str(value)
