"""Data of charts: small curves as SVG, and large ones for uPlot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

__all__ = ["Chart", "Series", "sparkline"]

Values = Sequence[float | None]


@dataclass(frozen=True)
class Series:
    """One curve of a chart.

    Parameters
    ----------
    label
        Its name.
    values
        A value for each point.
    fill
        Whether the area below it is filled: for parts that are stacked.
    """

    label: str
    values: Values
    fill: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart over the page's time.

    Parameters
    ----------
    name
        Its name in the page.
    title
        Its title.
    unit
        ``rows``, ``rows/s``, ``s`` or ``bytes``: how its values are written.
    series
        Its curves.
    help
        What it shows, in a sentence.
    stacked
        Whether its curves are parts of a whole.
    """

    name: str
    title: str
    unit: str
    series: list[Series] = field(default_factory=list)
    help: str = ""
    stacked: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(value is not None for one in self.series for value in one.values)

    @property
    def is_above_zero(self) -> bool:
        """Whether any value is above zero."""
        return any(value for one in self.series for value in one.values)

    def last(self) -> list[tuple[str, float | None]]:
        """Return the newest value of each curve, for readers of text."""
        return [(one.label, next((value for value in reversed(one.values) if value is not None), None))
                for one in self.series]  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return it for the script that draws it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "stacked": self.stacked,
            "series": [{"label": one.label, "values": list(one.values), "fill": one.fill} for one in self.series],
        }


def sparkline(values: Values, *, width: int = 110, height: int = 24, top: float | None = None) -> str:
    """Return the path of a small curve for SVG's ``d``; empty without values.

    Parameters
    ----------
    top
        The value of the upper edge; default the largest one.
    """
    most = top or max((value for value in values if value is not None), default=0)
    if not any(value is not None for value in values):
        return ""
    parts, pen = [], "M"
    tenths, heights = 10 * (height - 2) / most if most else 0, _tenths(height)
    for x, value in zip(_steps(width, len(values)), values, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{x} {heights[min(round(value * tenths), len(heights) - 1)]}")
        pen = "L"
    return "".join(parts)


# A list of a hundred jobs formats twelve thousand numbers otherwise, and waits for that.
@cache
def _tenths(height: int) -> tuple[str, ...]:
    return tuple(f"{height - 1 - number / 10:.1f}" for number in range(10 * (height - 2) + 1))


@cache
def _steps(width: int, points: int) -> tuple[str, ...]:
    return tuple(f"{number * width / max(points - 1, 1):.1f}" for number in range(points))
