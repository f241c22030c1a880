from __future__ import annotations

import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException

from streamwarden.driver.causes import Failure, explain, headline, shortened
from streamwarden.driver.pipeline.query import BatchError, RunningQuery
from streamwarden.errors import StreamwardenError
from streamwarden.runtime.failure_signatures import Places

pytestmark = pytest.mark.unit

FROM_PYTHON = """\
[STREAM_FAILED] Query [id = 6174845a, runId = 5c107b22] terminated with exception: An exception was raised by the \
Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "jobs/numbers.py", line 35, in outputs
    raise ValueError("the marker file is there")
ValueError: the marker file is there
"""

FROM_JAVA = """\
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "merge.py", line 225, in _merge
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o1102.execute.
: org.apache.spark.sql.delta.DeltaRuntimeException: [DELTA_MERGE_SOURCE_CACHED_DURING_EXECUTION] The MERGE failed.
\tat org.apache.spark.sql.delta.DeltaErrorsBase.merge(DeltaErrors.scala:1629)
Caused by: java.lang.IllegalStateException: something below
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FROM_PYTHON, "ValueError: the marker file is there"),
        (
            FROM_JAVA,
            "DeltaRuntimeException: [DELTA_MERGE_SOURCE_CACHED_DURING_EXECUTION] The MERGE failed.",
        ),
        ("plain words\nand more", "plain words"),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_names_the_cause(text: str, expected: str) -> None:
    assert headline(RuntimeError(text)) == expected


def test_a_headline_is_short() -> None:
    assert len(headline(RuntimeError("x" * 100_000))) == 600


def test_a_long_trace_keeps_both_ends() -> None:
    text = "begin" + "x" * 100_000 + "end"
    short = shortened(text)
    assert len(short) < 13_000
    assert short.startswith("begin") and short.endswith("end") and "left out" in short
    assert shortened("short") == "short"


# -- what a failure is -------------------------------------------------------------------------------------------------

WORKER = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "jobs/failing.py", line 51, in _look_up
    _tariff("weekend")
  File "jobs/failing.py", line 45, in _tariff
    return {"day": 1.0}[name]
           ~~~~~~~~~~~~^^^^^^
KeyError: 'weekend'
"""


def raised(action: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        action()
    return caught.value


def job_code(error: Exception) -> Any:
    def outputs() -> None:
        raise error

    return outputs


def test_an_exception_that_passed_through_the_job_is_its_own() -> None:
    error = raised(job_code(ValueError("no such zone\nat all")))
    cause = explain(Failure.of(error), job_file=__file__, places=Places())
    assert cause.code == "JOB_CODE_FAILED"
    # The line of the job's own code that it passed last, not of what that called.
    assert re.fullmatch(r"tests/unit/driver/test_causes\.py:\d+: ValueError: no such zone", cause.line)
    own = cause.trace.split("\n\n")[0]
    assert own.startswith("Traceback (most recent call last):\n") and own.endswith("ValueError: no such zone\nat all")
    # The same error in nobody's module is ours, and is not blamed on the job.
    assert explain(Failure.of(error), job_file="/elsewhere.py", places=Places()).code is None


def test_what_the_jvm_says_of_the_jobs_call_is_the_jobs_only_if_it_is_about_its_query() -> None:
    query = raised(job_code(AnalysisException("[UNRESOLVED_COLUMN] no column absent")))
    assert explain(Failure.of(query), job_file=__file__, places=Places()).code == "JOB_CODE_FAILED"

    class JvmError(Exception):
        __module__ = "py4j.protocol"

    store = raised(job_code(JvmError(": java.net.ConnectException: Connection refused")))
    assert explain(Failure.of(store), job_file=__file__, places=Places()).code is None


def test_a_workers_own_traceback_comes_first() -> None:
    cause = explain(Failure.of(PythonException(WORKER)), job_file=None, places=Places())
    assert (cause.code, cause.line) == ("JOB_CODE_FAILED", "KeyError: 'weekend'")
    assert cause.trace.split("\n\n")[0] == WORKER.split("\n", 1)[1].rstrip()


def test_a_workers_traceback_is_found_in_a_jvms_trace() -> None:
    text = (
        "An error occurred while calling o1.localCheckpoint.\n: org.apache.spark.SparkException: Job aborted\n"
        "Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] "
        + WORKER.replace("worker:\n", "worker: ")
        + " SQLSTATE: 38000\n\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:665)\n"
    )
    cause = explain(Failure(RuntimeError("wrapper"), text), job_file=None, places=Places())
    assert (cause.code, cause.line) == ("JOB_CODE_FAILED", "KeyError: 'weekend'")
    assert cause.trace.startswith('Traceback (most recent call last):\n  File "jobs/failing.py"')
    assert "SQLSTATE" not in cause.trace and "BasePythonRunner" not in cause.trace


def test_our_own_errors_keep_their_names_and_remedies() -> None:
    error = StreamwardenError("S3_UNREACHABLE", "no answer", remedy="wait")
    cause = explain(Failure.of(error), job_file=__file__, places=Places())
    assert (cause.code, cause.line, cause.remedy) == ("S3_UNREACHABLE", "no answer", "wait")


def test_a_jvm_that_is_gone_cannot_be_asked_for_its_words() -> None:
    class Gone(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    failure = Failure.of(Gone())
    assert failure.text == ""
    cause = explain(failure, job_file=None, places=Places())
    assert cause.code is None and cause.line == "Gone"
    assert headline(Gone()) == "Gone"


def test_a_stop_waits_out_a_store_that_is_away_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamwarden.driver.pipeline.query.time.sleep", lambda _: None)
    answers: list[int | StreamwardenError] = [StreamwardenError("S3_UNREACHABLE", "list: refused"), 7]

    def last_offset() -> int:
        answer = answers.pop(0)
        if isinstance(answer, StreamwardenError):
            raise answer
        return answer

    query = object.__new__(RunningQuery)
    query._query = SimpleNamespace(isActive=True, stop=lambda: None, exception=lambda: None)  # type: ignore[assignment]
    query._writer = SimpleNamespace(hurry=threading.Event(), in_flight=None)  # type: ignore[assignment]
    query._checkpoint = SimpleNamespace(last_offset=last_offset, last_commit=lambda: 7)  # type: ignore[assignment]
    query._failure = None
    answers += [StreamwardenError("S3_THROTTLED", "slow down"), 7]
    query.stop()
    assert not answers
    answers.append(StreamwardenError("S3_REFUSED", "no"))
    with pytest.raises(StreamwardenError, match="S3_REFUSED"):
        query.stop()


def test_spark_is_told_no_more_of_a_failed_batch_than_a_line() -> None:
    long = "\n".join(["py4j.protocol.Py4JJavaError: An error occurred while calling o1.x", *["\tat java.A"] * 5000])

    def writer(batch: Any, batch_id: int) -> None:
        raise RuntimeError(long)

    query = object.__new__(RunningQuery)
    query._writer = writer  # type: ignore[assignment]
    query._query = SimpleNamespace(isActive=False, exception=lambda: None)  # type: ignore[assignment]
    nothing: Any = None
    with pytest.raises(BatchError) as told:
        query._write(nothing, 7)
    assert str(told.value) == "batch 7: RuntimeError"
    assert told.value.__suppress_context__, "py4j would send the trace of the first error along"
    kept = query.failure()
    assert kept is not None and kept.text == long
