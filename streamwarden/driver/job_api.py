"""What a module in ``spark_jobs/`` offers, and what it may use of the library.

A job module is DataFrame in, DataFrame out. It has

``VERSION : int``
    Grows with every change that makes old state unusable.
``OUTPUTS : Mapping[str, StructType]``
    The columns of each output table, by output name; ``main`` is there always. Spec sinks name them by ``output``.
``Options : type[pydantic.BaseModel]``
    Optional. The job's own options (``options`` of its YAML); unknown keys refused.
``transform(source, settings) -> DataFrame``
    The streaming query. An upserted output may carry a boolean column ``_deleted``: true removes the row of its keys.
``outputs(batch) -> Mapping[str, DataFrame]``
    Optional. Splits one batch of `transform`'s rows into the outputs; without it the batch is ``main``.
``refused_files(batch) -> DataFrame``
    Optional, of a job that reads ``files``. The files of one batch of `transform`'s rows that were refused whole:
    columns ``source_file`` (:attr:`LandedFile.label`) and ``reason``.

A source of kind ``files`` hands over one column ``file``: lines of JSON, which :meth:`LandedFile.from_json` reads. The
job opens each file itself, and lets :class:`LandedFileGone` through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from streamwarden.landing.file import LandedFile, LandedFileChanged, LandedFileGone

__all__ = [
    "DELETED",
    "EVENT_ENDS",
    "JobOptions",
    "JobSettings",
    "LandedFile",
    "LandedFileChanged",
    "LandedFileGone",
    "StreamingJob",
    "observe_event_ends",
]

DELETED = "_deleted"
"""Column of an upserted output: true removes the row that has these keys."""

EVENT_ENDS = "event_ends"
"""Name of the observed metric from which the driver counts late rows; see :func:`observe_event_ends`."""

# histogram_numeric is exact as long as there are fewer distinct values than bins: here, hours in a batch. 9,000 is more
# than a year of them.
_BINS = 9_000


class JobOptions(BaseModel):
    """Base of a job's ``Options``: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class JobSettings:
    """What a job is told besides its source.

    Parameters
    ----------
    watermark
        The spec's ``watermark``.
    ttl
        The spec's ``state.ttl``.
    options
        The validated ``Options`` of the module, or None where it has none.
    """

    watermark: timedelta | None
    ttl: timedelta | None
    options: BaseModel | None


@runtime_checkable
class StreamingJob(Protocol):
    """The part of a job module that every job has."""

    VERSION: int
    OUTPUTS: Mapping[str, StructType]

    def transform(self, source: DataFrame, settings: JobSettings) -> DataFrame:
        """Return the streaming query."""
        ...


def observe_event_ends(rows: DataFrame, end: Column) -> DataFrame:
    """Let the driver count late rows of an aggregation exactly.

    Spark's own ``numRowsDroppedByWatermark`` counts, for an aggregation, rows after the partial aggregation: groups and
    not input rows. So the batch's input is observed as a histogram over `end`, and the driver, who knows the watermark
    that the batch dropped rows by, sums the part at or below it.

    Parameters
    ----------
    rows
        The input, one row an event, with a watermark.
    end
        Timestamp until which the row's group is kept: a row is late once the watermark has reached it. Few distinct
        values (window ends); more than 9,000 in a batch make the count approximate.
    """
    return rows.observe(
        EVENT_ENDS, F.histogram_numeric(F.unix_seconds(end).cast("double"), F.lit(_BINS)).alias("histogram")
    )
