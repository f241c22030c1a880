"""The interface of a module in ``spark_jobs/``, and what it may use of the library.

A job module turns a DataFrame into a DataFrame. It has

``VERSION : int``
    Increases with every change that makes old state unusable.
``OUTPUTS : Mapping[str, StructType]``
    The columns of each output table, by output name; ``main`` always exists. Spec sinks name them by ``output``.
``Options : type[pydantic.BaseModel]``
    Optional. The job's own options (``options`` of its YAML); unknown keys refused.
``transform(source, settings) -> DataFrame``
    The streaming query. With ``sources`` in the YAML, it gets a mapping of their DataFrames by name instead of one
    DataFrame. An upserted output may carry a boolean column ``_deleted``: true removes the row of its keys.
``SOURCES : Mapping[str, str | None]``
    Needed with ``sources`` in the YAML. The names that ``transform`` reads, each with the column that it gives to
    ``withWatermark``; None for a source without a watermark. Write literals: a deploy reads them without an import.
``OUTPUT_MODE : str``
    Optional, Spark's output mode: ``update`` by default, or ``append``, which joins of streams need.
``outputs(batch) -> Mapping[str, DataFrame]``
    Optional. Splits one batch of `transform`'s rows into the outputs; without it the batch is ``main``.
``MIGRATES_FROM : tuple[int, ...]``
    Optional. Earlier values of ``VERSION`` whose state ``migrate`` reads: numbers, not expressions.
``migrate(old: PreviousState) -> DataFrame``
    Needed with ``MIGRATES_FROM``. Returns the new version's initial state. `transform` gets it once, as
    ``settings.initial_state``, and gives it to ``with_keyed_state`` or transformWithState.
``SOURCE_ROWS : tuple[str, ...]``
    Optional. The outputs whose rows are rows of the source. One row of the source gives at most one row of the output,
    with the same columns and values. Read again, such a row gives itself. Only such rows can be replayed
    if a row rule has quarantined them (docs/quarantine.md). Write literals: a replay reads them without an import.
``refused_files(batch) -> DataFrame``
    Optional, for a job that reads ``files``. Returns the files of one batch of `transform`'s rows that were refused
    as a whole: columns ``source_file`` (:attr:`LandedFile.label`) and ``reason``.

A source of kind ``files`` provides one column ``file``: lines of JSON, which :meth:`LandedFile.from_json` parses. The
job opens each file itself, and does not catch :class:`LandedFileGone`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from streamwarden.driver.previous_state import PreviousState
from streamwarden.landing.file import LandedFile, LandedFileChanged, LandedFileGone

__all__ = [
    "DELETED",
    "EVENT_ENDS",
    "JobOptions",
    "JobSettings",
    "LandedFile",
    "LandedFileChanged",
    "LandedFileGone",
    "PreviousState",
    "StreamingJob",
    "observe_event_ends",
]

DELETED = "_deleted"
"""Column of an upserted output: true removes the row with these keys."""

EVENT_ENDS = "event_ends"
"""Name of the observed metric from which the driver counts late rows; see :func:`observe_event_ends`."""

# histogram_numeric is exact while there are fewer distinct values than bins; here the values are hours in a batch.
# 9,000 hours are more than a year.
_BINS = 9_000


class JobOptions(BaseModel):
    """Base of a job's ``Options``: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class JobSettings:
    """The settings that a job receives besides its source.

    Parameters
    ----------
    watermark
        The spec's ``watermark``.
    ttl
        The spec's ``state.ttl``.
    options
        The validated ``Options`` of the module, or None if it has none.
    buckets
        The spec's ``state.buckets``, for :func:`~streamwarden.keyed_state.with_keyed_state`.
    initial_state
        What the module's ``migrate`` has returned; None but in the one batch by which a restore migrates the state.
    lookups
        The spec's lookup tables by name. Join one, and do not collect it: each batch reads its newest version.
    """

    watermark: timedelta | None
    ttl: timedelta | None
    options: BaseModel | None
    buckets: int | None = None
    initial_state: DataFrame | None = None
    lookups: Mapping[str, DataFrame] = field(default_factory=dict)


@runtime_checkable
class StreamingJob(Protocol):
    """The mandatory part of a job module."""

    VERSION: int
    OUTPUTS: Mapping[str, StructType]

    def transform(self, source: DataFrame, settings: JobSettings) -> DataFrame:
        """Return the streaming query."""
        ...


def observe_event_ends(rows: DataFrame, end: Column) -> DataFrame:
    """Observe rows, so that the driver counts an aggregation's late rows exactly.

    For an aggregation, Spark's own ``numRowsDroppedByWatermark`` counts rows after the partial aggregation: groups and
    not input rows. So the batch's input is observed as a histogram over `end`. The driver knows the watermark by which
    the batch dropped rows, and sums the part at or below it.

    Parameters
    ----------
    rows
        The input, one row per event, with a watermark.
    end
        Timestamp until which the row's group is kept: a row is late once the watermark has reached it. It needs few
        distinct values (window ends); more than 9,000 in a batch make the count approximate.
    """
    return rows.observe(
        EVENT_ENDS, F.histogram_numeric(F.unix_seconds(end).cast("double"), F.lit(_BINS)).alias("histogram")
    )
