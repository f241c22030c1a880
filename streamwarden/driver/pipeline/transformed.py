"""Call a module's ``transform``, and name the file, line and remedy of what is wrong with it or with its query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame

from streamwarden.driver.causes import authors_place, headline
from streamwarden.driver.job_api import JobSettings, StreamingJob
from streamwarden.driver.pipeline.module import text_of_job
from streamwarden.driver.pipeline.module_checks import needed_columns
from streamwarden.driver.pipeline.plan import join_lacks_watermark, watermarks
from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.formats.output_columns import IS_FINAL
from streamwarden.model.spec import JobSpec
from streamwarden.runtime.failure_signatures import recognise
from streamwarden.store.module_text import did_you_mean
from streamwarden.store.transform_check import joins

__all__ = ["Sources", "check_watermarks", "column_notes", "place_of", "refused_query", "transformed"]


class Sources(dict[str, DataFrame]):
    """Sources by name; a name that is not there is a fault of the module, and no try can help."""

    def __init__(self, spec: JobSpec, found: Mapping[str, DataFrame]) -> None:
        super().__init__(found)
        self._spec = spec

    def __missing__(self, name: str) -> DataFrame:
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"transform reads source {name!r}, and sources of config/jobs/{self._spec.name}.yaml has"
            f" {' and '.join(self)}{did_you_mean(name, self)}",
            remedy="Correct the name in this line, or in sources of the YAML and in SOURCES of the module.",
        )


def transformed(spec: JobSpec, job: StreamingJob, source: object, settings: JobSettings) -> DataFrame:
    """Return the query that a module's ``transform`` returns.

    Raises
    ------
    StreamwardenError
        ``JOB_CODE_FAILED``, with file and line; ``JOB_MODULE_INVALID``; or an error of the module's own.
    """
    file = getattr(job, "__file__", None)
    try:
        rows: object = job.transform(source, settings)  # type: ignore[arg-type]
    except StreamwardenError as error:
        place = authors_place(error, file)
        what = f"{place}: {error.what}" if place is not None else error.what
        raise StreamwardenError(error.code, what, remedy=error.remedy, retryable=error.retryable) from error
    except Exception as error:
        # The JVM's errors may pass, such as those of a store that does not answer. Those of Python code stay.
        of_jvm = isinstance(error, CapturedException | Py4JError) and not isinstance(error, IllegalArgumentException)
        if of_jvm or isinstance(error, OSError):
            raise
        words = str(error).strip().partition("\n")[0]
        raise StreamwardenError(
            "JOB_CODE_FAILED",
            f"{spec.name}: {authors_place(error, file) or place_of(job, 'transform')}: {type(error).__name__}: {words}",
            remedy="Correct this line of the module, then deploy the job again.",
            retryable=False,
        ) from error
    if not isinstance(rows, DataFrame):
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{place_of(job, 'transform')}: transform returned {type(rows).__name__}, and no DataFrame",
            remedy="End it with `return` and the DataFrame of the query.",
        )
    return rows


def check_watermarks(job: StreamingJob, rows: DataFrame) -> None:
    """Reject a query without a ``withWatermark`` that its module declares: Spark says so for some outer joins only.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID``.
    """
    declared: Mapping[str, str | None] = getattr(job, "SOURCES", None) or {}
    wanted = {(name, column) for name, column in declared.items() if column is not None}
    for name, column in sorted(wanted - watermarks(rows)) if wanted else ():
        raise StreamwardenError(
            "JOB_MODULE_INVALID",
            f"{place_of(job, 'transform')}: transform does not call withWatermark on {column} of {name}, though SOURCES"
            " names this column",
            remedy=f'Call sources["{name}"].withWatermark("{column}", …) before the join. If none is needed, set it to'
            " None in SOURCES.",
        )


def column_notes(spec: JobSpec, job: StreamingJob, rows: DataFrame) -> list[str]:
    """Return a note for a column of OUTPUTS that ``transform`` does not return: it would be null without a word.

    Does not know what ``outputs`` of a module adds.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID`` for a column that a sink needs, such as a key.
    """
    if hasattr(job, "outputs"):
        return []
    columns, notes = job.OUTPUTS["main"].fieldNames(), []
    for name in (one for one in columns if one not in (IS_FINAL, *rows.columns)):
        near = did_you_mean(name, [one for one in rows.columns if one not in columns])
        what = f"{place_of(job, 'transform')}: transform returns no column {name}, which OUTPUTS has"
        for sink in spec.sinks:
            if name in needed_columns(sink):
                raise StreamwardenError(
                    "JOB_MODULE_INVALID",
                    f"{what}, and a sink of config/jobs/{spec.name}.yaml needs{near}",
                    remedy="Add the column to what transform returns, under this name.",
                )
        notes.append(f"{what}: it is null in each row{near}")
    return notes


def refused_query(
    spec: JobSpec, job: StreamingJob, rows: DataFrame, error: AnalysisException
) -> StreamwardenError | None:
    """Return the error for a query that Spark does not run as a stream; None if `error` has another cause."""
    known = recognise(str(error))
    if known is not None and known.code == "JOIN_WITHOUT_WATERMARK":
        code: ErrorCode = known.code if join_lacks_watermark(rows) else "JOIN_WITHOUT_TIME_RANGE"
        text = text_of_job(job)
        lines = joins(text)
        place = f"{text.file}:{','.join(map(str, lines))}" if text is not None and lines else place_of(job, "transform")
        return StreamwardenError(code, f"{spec.name}: {place}: {known.evidence}")
    # It judges the query's plan; all other errors of a start are about sources, sinks and the checkpoint.
    if known is not None or not any("UnsupportedOperationChecker" in str(frame) for frame in _java_frames(error)):
        return None
    words = headline(error).rstrip(";")
    remedy = "Rewrite this part of transform, then deploy the job again: Spark does not run it as a stream."
    if "only in append output mode" in words.lower():
        remedy = 'Set OUTPUT_MODE = "append" in the module.'
    elif "output mode" in words.lower() and "without watermark" in words.lower():
        remedy = "Call withWatermark before the aggregation, or leave OUTPUT_MODE out of the module."
    what = f"{spec.name}: {place_of(job, 'transform')}: {words}"
    return StreamwardenError("JOB_CODE_FAILED", what, remedy=remedy, retryable=False)


def _java_frames(error: AnalysisException) -> Iterable[object]:
    origin = getattr(error, "_origin", None)
    return origin.getStackTrace() if origin is not None else ()


def place_of(job: StreamingJob, name: str) -> str:
    """Return where a module defines a name, as far as its text shows it."""
    text = text_of_job(job)
    return text.place_of(name) if text is not None else str(getattr(job, "__name__", "the module"))
