"""Durations as people write them in YAML: ``500ms``, ``60s``, ``5m``, ``24h``, ``7d``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

__all__ = ["Duration", "format_duration", "parse_duration"]

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PATTERN = re.compile(r"(\d+)\s*(ms|s|m|h|d)")


def parse_duration(value: Any) -> timedelta:
    """Read ``NUMBER UNIT`` with a unit of ms, s, m, h or d.

    A bare number is refused, because its unit is unknown.

    Raises
    ------
    ValueError
        If the text has another form.
    """
    if isinstance(value, timedelta):
        return value
    match = _PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration: write a whole number and a unit, like 500ms, 60s, 5m, 24h, 7d")
    return timedelta(milliseconds=int(match[1]) * _UNITS[match[2]])


def format_duration(value: timedelta) -> str:
    """Return a duration in the largest exact unit; :func:`parse_duration` reads it back."""
    milliseconds = round(value.total_seconds() * 1000)
    for unit, size in reversed(_UNITS.items()):
        if milliseconds % size == 0 and milliseconds >= size:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
"""A pydantic field type; see :func:`parse_duration`."""
