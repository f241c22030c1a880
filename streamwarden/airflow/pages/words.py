"""Values as text for the pages: numbers, sizes, durations, times."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

from markupsafe import Markup, escape

__all__ = ["ago", "clock", "count", "counted", "percent", "rate", "seconds", "shell", "size"]

_UNITS = ("B", "kB", "MB", "GB", "TB")


def count(value: float | None) -> str:
    """Return a number with separators; a dash for none."""
    return "-" if value is None else f"{value:,.0f}"


def counted(value: float, unit: str) -> str:
    """Return a number with its unit, whose last letter is left out for one: ``1 file``, ``2 files``."""
    return f"{count(value)} {unit.removesuffix('s') if value == 1 else unit}"


def rate(value: float | None) -> str:
    """Return a rate, with a digit more where it is small."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if 0 < abs(value) < 10 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Return bytes in a unit that fits."""
    if value is None:
        return "-"
    unit = 0
    while abs(value) >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {_UNITS[unit]}"


def seconds(value: float | None) -> str:
    """Return a duration: ``0.4 s``, ``3 min 5 s``, ``2 h 10 min``, ``4 d 2 h``."""
    if value is None:
        return "-"
    if value < 60:
        return f"{value:.1f} s".replace(".0 s", " s") if value < 10 else f"{value:.0f} s"
    whole = round(value)
    for big, name, small, unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= big:
            rest = whole % big // small
            return f"{whole // big} {name}" + (f" {rest} {unit}" if rest else "")
    raise AssertionError


def percent(value: float | None) -> str:
    """Return a share of 1 in percent."""
    if value is None:
        return "-"
    return "under 1 %" if 0 < value < 0.01 else f"{100 * value:.0f} %"


def clock(at: datetime | None) -> str:
    """Return a time in UTC."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def shell(value: str) -> str:
    """Return a text as one word of a command."""
    return shlex.quote(value)


def ago(at: datetime | str | None) -> Markup:
    """Return a time as an element that a script turns into its age; without the script it is the time."""
    if at is None:
        return Markup("-")
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return Markup('<time datetime="{}" data-ago>{}</time>').format(moment.isoformat(), escape(clock(moment)))
