"""Read a query's analyzed plan: the sources of its leaves, its watermarks, and why Spark refuses its join."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

__all__ = ["TAG", "each", "join_lacks_watermark", "source_of", "watermarks"]

TAG = "streamwarden.source"
"""A reader's option that names its source: no format knows it, and the query's plan keeps it."""


def each(found: Any) -> Iterator[Any]:
    """Return the elements of a Scala collection."""
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()


def source_of(leaf: Any) -> str:
    """Return the name of the source that a leaf of a plan reads."""
    # A relation of the first version of Spark's sources, or of the second.
    is_first = leaf.getClass().getSimpleName() == "StreamingRelation"
    options = leaf.dataSource().options() if is_first else leaf.extraOptions()
    name = options.get(TAG)
    # A Scala option, or a Java map's value.
    return str(name if isinstance(name, str) else name.get())


def watermarks(rows: DataFrame) -> set[tuple[str, str]]:
    """Return the watermarks of a query: the name of each source that one is for, and its column."""
    return {
        (source_of(leaf), plan.eventTime().name())
        for plan in _nodes(rows._jdf.queryExecution().analyzed(), "EventTimeWatermark")
        for leaf in each(plan.collectLeaves())
        if leaf.isStreaming()
    }


def join_lacks_watermark(rows: DataFrame) -> bool:
    """Return whether an outer join of streams has a side that needs a watermark and has none.

    Otherwise, if Spark refuses the join, its condition lacks a range of time. As ``UnsupportedOperationChecker`` of
    Spark 4.2: the side of a join whose columns may be null needs the watermark.
    """
    for join in _nodes(rows._jdf.queryExecution().analyzed(), "Join"):
        kind = str(join.joinType().toString())
        nullable = [join.right()] if kind in ("LeftOuter", "LeftSemi", "FullOuter") else []
        nullable += [join.left()] if kind in ("RightOuter", "FullOuter") else []
        if not (join.left().isStreaming() and join.right().isStreaming()):
            continue
        if any(next(_nodes(side, "EventTimeWatermark"), None) is None for side in nullable):
            return True
    return False


def _nodes(plan: Any, kind: str) -> Iterator[Any]:
    """Return the nodes of a plan that are of a class, from above."""
    plans = [plan]
    while plans:
        found = plans.pop()
        if found.getClass().getSimpleName() == kind:
            yield found
        plans += each(found.children())
