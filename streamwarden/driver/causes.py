"""Finding the one line that says what went wrong in the many that a JVM writes."""

from __future__ import annotations

import re

__all__ = ["headline", "shortened"]

# "java.lang.IllegalStateException: words", "ValueError: words", "[DELTA_SOMETHING] words" after a class name.
_NAMED = re.compile(r"^(?:: |Caused by: )?((?:[A-Za-z_][\w$]*\.)*[A-Z]\w*(?:Exception|Error)): (.+)")
# They carry another error, or stand around it.
_WRAPPERS = ("Py4JJavaError", "Py4JException", "StreamingQueryException", "SparkException", "PythonException")
_LENGTH = 600
_KEPT = 12_000


def headline(error: BaseException) -> str:
    """Return the line of an exception's text that names its cause, at most 600 characters.

    The innermost Python error comes first, since it is in the job's own code, then the first of the JVM that isn't a
    mere wrapper, then the first line.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [match for match in map(_NAMED.match, lines) if match]
    of_worth = [match for match in named if match[1].rsplit(".", 1)[-1] not in _WRAPPERS]
    for match in [m for m in of_worth if "." not in m[1]] or of_worth or named:
        return f"{match[1].rsplit('.', 1)[-1]}: {match[2]}"[:_LENGTH]
    return (lines[0] if lines else type(error).__name__)[:_LENGTH]


def shortened(text: str) -> str:
    """Return a traceback's beginning and end, 12,000 characters in all: control documents are read all the time."""
    if len(text) <= _KEPT:
        return text
    half = _KEPT // 2
    return f"{text[:half]}\n… {len(text) - _KEPT:,} characters left out; the driver's log has them …\n{text[-half:]}"
