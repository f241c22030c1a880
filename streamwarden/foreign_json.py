"""JSON that others wrote: Spark, Delta, people. Whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["parse", "parse_object"]


def parse(text: str | bytes) -> Any:
    """Parse JSON.

    Raises
    ------
    ValueError
        It is none, is nested too deeply for the parser, or has a number that is not finite.
    """
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; for errors see :func:`parse`."""
    found = parse(text)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text[:20]} is no finite number")
