"""Find the cause of a failure, and the line that names it, in a JVM's long output."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.errors import PythonException as WorkerException

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.runtime.failure_signatures import Places, recognise
from streamwarden.store.module_text import shown

__all__ = ["Cause", "Failure", "authors_place", "explain", "headline", "shortened"]

_LIBRARY = Path(__file__).resolve().parents[1]

# "java.lang.IllegalStateException: words", "ValueError: words", "[DELTA_SOMETHING] words" after a class name.
_NAMED = re.compile(r"^(?:: |Caused by: )?((?:[A-Za-z_][\w$]*\.)*[A-Z]\w*(?:Exception|Error)): (.+)")
# These wrap another error, or surround it.
_WRAPPERS = ("Py4JJavaError", "Py4JException", "StreamingQueryException", "SparkException", "PythonException")
# The text after a Python worker's traceback in an error.
_AFTER_WORKER = re.compile(r"\n(?:\s*at | ?SQLSTATE|=== Streaming Query)")
_LENGTH = 600
_KEPT = 12_000


@dataclass(frozen=True)
class Failure:
    """An exception with its text.

    The text of a JVM exception is requested from the JVM, which may be gone a moment later: so it is taken at once.

    Parameters
    ----------
    error
        The exception.
    text
        Its text, with the JVM's causes; empty if it can't be retrieved any more.
    """

    error: BaseException
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Retrieve an exception's text now."""
        try:
            text = str(error)
        except Exception:
            # Py4J requests it from the JVM, which is gone.
            text = ""
        return cls(error, text)


@dataclass(frozen=True)
class Cause:
    """The diagnosis of a failure.

    Parameters
    ----------
    code
        The catalogue's code of a known failure, or None.
    line
        The line that names the cause.
    trace
        The readable traceback, with the job's own code first.
    remedy
        Replaces the catalogue's remedy if the error has a more precise one.
    """

    code: ErrorCode | None
    line: str
    trace: str
    remedy: str | None = None


def explain(failure: Failure, *, job_file: str | None, places: Places) -> Cause:
    """Return the cause of a failure, with a code if it is known.

    Parameters
    ----------
    failure
        The exception that was raised in a batch, or that ended the query.
    job_file
        The job module's file: an exception that passed through it comes from the job's code.
    places
        The locations of the job's files.
    """
    error, text = failure.error, failure.text
    whole = "".join(traceback.format_exception(error))
    if isinstance(error, StreamwardenError):
        return Cause(error.code, error.what, whole, error.remedy)
    known = recognise(text, places)
    if known is not None:
        return Cause(known.code, known.evidence, whole)
    in_worker = _worker_traceback(text) if isinstance(error, WorkerException) or "PythonException" in text else None
    if in_worker is not None:
        return Cause("JOB_CODE_FAILED", _headline_of_traceback(in_worker), f"{in_worker}\n\n{whole}")
    in_job = _job_traceback(error, job_file)
    if in_job is not None and (isinstance(error, AnalysisException) or not _is_of_jvm(error)):
        place = authors_place(error, job_file)
        line = f"{place}: {_last_line(error)}" if place is not None else _last_line(error)
        return Cause("JOB_CODE_FAILED", line[:_LENGTH], f"{in_job}\n\n{whole}")
    return Cause(None, _headline_of(text, error), whole)


def authors_place(error: BaseException, job_file: str | None) -> str | None:
    """Return the file and line of the job's own code by which an exception passed last; None if it passed by none.

    The job's own code is its module, and what else is in the working directory and is no installed package.
    """
    here = Path.cwd()
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == job_file or _is_authors(Path(frame.filename), here)
    ]
    return f"{shown(own[-1].filename, here)}:{own[-1].lineno}" if own else None


def _is_authors(file: Path, here: Path) -> bool:
    return file.is_relative_to(here) and not file.is_relative_to(_LIBRARY) and "site-packages" not in file.parts


def headline(error: BaseException) -> str:
    """Return the line of an exception's text that names its cause, at most 600 characters.

    Prefers the innermost Python error, since it is in the job's own code; then the JVM's first error that isn't a
    mere wrapper; then the first line.
    """
    return _headline_of(Failure.of(error).text, error)


def _headline_of(text: str, error: BaseException) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [match for match in map(_NAMED.match, lines) if match]
    of_worth = [match for match in named if match[1].rsplit(".", 1)[-1] not in _WRAPPERS]
    for match in [m for m in of_worth if "." not in m[1]] or of_worth or named:
        return f"{match[1].rsplit('.', 1)[-1]}: {match[2]}"[:_LENGTH]
    return (lines[0] if lines else type(error).__name__)[:_LENGTH]


def shortened(text: str) -> str:
    """Return a traceback's beginning and end, 12,000 characters in all: control documents are read frequently."""
    if len(text) <= _KEPT:
        return text
    half = _KEPT // 2
    return f"{text[:half]}\n… {len(text) - _KEPT:,} characters left out; see the driver's log …\n{text[-half:]}"


def _worker_traceback(text: str) -> str | None:
    """Return a Python worker's traceback; Spark puts it between its own text and the JVM's trace."""
    begin = text.find("Traceback (most recent call last):", max(text.find("PythonException"), 0))
    if begin < 0:
        return None
    end = _AFTER_WORKER.search(text, begin)
    return text[begin : end.start() if end else len(text)].rstrip()


def _headline_of_traceback(trace: str) -> str:
    """Return the line that names the exception: the last line after a frame's indented lines."""
    lines = trace.splitlines()
    for before, line in reversed(list(pairwise(lines))):
        if before.startswith(" ") and line and not line.startswith(" "):
            return line[:_LENGTH]
    return lines[-1][:_LENGTH]


def _job_traceback(error: BaseException, job_file: str | None) -> str | None:
    """Return an exception's traceback from the job's module on, or None if it didn't pass through the module."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((number for number, frame in enumerate(frames) if frame.filename == job_file), None)
    if first is None:
        return None
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[first:])]
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()


def _last_line(error: BaseException) -> str:
    """Return an exception's class and the first line of its text."""
    return f"{type(error).__name__}: {Failure.of(error).text.strip()}".splitlines()[0][:_LENGTH]


def _is_of_jvm(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in ("py4j", "pyspark", "delta")
