from __future__ import annotations

import pytest

from streamwarden.driver.causes import headline, shortened

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
