"""JSON whose numbers keep each digit: a number with a point is a ``Decimal``, not a float."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

__all__ = ["dumps", "loads"]


def loads(text: str) -> Any:
    """Parse JSON.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        return json.loads(text, parse_float=Decimal)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dumps(value: Any) -> str:
    """Return a value as compact JSON. Values that JSON does not know are written as text."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_plain(str(key))}:{dumps(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(dumps, value))}]"
    return str(value) if isinstance(value, Decimal) and value.is_finite() else _plain(value)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
