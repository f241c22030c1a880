"""What is wrong with a row of events: used by jobs that read tables which nobody has checked before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Self

from pydantic import Field, field_validator, model_validator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from streamwarden.driver.job_api import JobOptions

__all__ = ["REFUSED", "PlausibleTimes", "checked", "is_good", "nothing", "row_text"]

REFUSED: Final = StructType(
    [
        StructField("source", StringType()),
        StructField("raw", StringType()),
        StructField("reasons", ArrayType(StringType())),
    ]
)
"""Columns of a quarantined event: the source's name, the row as JSON, and every reason."""

_LONGEST = 1024
"""Characters of a key. Longer ones are faults of a producer, and would be in each index and file name statistic."""


class PlausibleTimes(JobOptions):
    """Bounds of event times: a single one in the future would move the watermark there, and make all others late."""

    earliest: datetime = Field(
        default=datetime(2009, 1, 1, tzinfo=UTC), description="Earlier times are quarantined. The first TLC trips."
    )
    latest: datetime = Field(
        default=datetime(2100, 1, 1, tzinfo=UTC), description="Times from here on are quarantined."
    )

    @field_validator("earliest", "latest")
    @classmethod
    def _utc(cls, value: datetime) -> datetime:
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.earliest >= self.latest:
            raise ValueError("earliest must be before latest")
        return self


def checked(
    rows: DataFrame,
    options: PlausibleTimes,
    *,
    keys: Sequence[str] = (),
    times: Sequence[str] = (),
    amounts: Sequence[str] = (),
    largest: float = 1e9,
    called: Mapping[str, str] | None = None,
) -> DataFrame:
    """Add ``reasons``, every fault of a row, and ``raw``, the row as JSON if it has none; other columns stay.

    Parameters
    ----------
    rows
        The events.
    options
        The bounds of times.
    keys, times, amounts
        Columns that must be there: texts of at most 1,024 characters, timestamps, finite numbers.
    largest
        Numbers of this size or more are no amounts.
    called
        The names of columns in the reasons, where they differ: those of the source, which the reader knows.
    """
    reasons, names = [], called or {}
    for name in keys:
        text = F.col(name).cast("string")
        reasons.append(F.when(text.isNull(), f"{names.get(name, name)} is missing"))
        reasons.append(
            F.when(F.length(text) > _LONGEST, f"{names.get(name, name)} is longer than {_LONGEST} characters")
        )
    for name in times:
        reasons.append(F.when(F.col(name).isNull(), f"{names.get(name, name)} is missing"))
        is_out = (F.col(name) < F.lit(options.earliest)) | (F.col(name) >= F.lit(options.latest))
        reasons.append(F.when(is_out, f"{names.get(name, name)} is not plausible"))
    for name in amounts:
        # NaN compares as greater than any number.
        is_amount = F.col(name).isNotNull() & (F.abs(F.col(name)) < F.lit(largest))
        reasons.append(F.when(~is_amount, f"{names.get(name, name)} is no number below {largest:g}"))
    found = rows.withColumn("reasons", F.array_compact(F.array(*reasons)))
    return found if "raw" in rows.columns else found.withColumn("raw", row_text(rows, keys))


def row_text(rows: DataFrame, keys: Sequence[str]) -> Column:
    """Return each row as JSON, with all its columns.

    Parameters
    ----------
    keys
        Columns of which only the beginning is shown: the quarantine must hold what the table could not.
    """
    shown = [
        F.substring(F.col(name).cast("string"), 1, _LONGEST).alias(name) if name in keys else name
        for name in rows.columns
    ]
    exact = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
    return F.to_json(F.struct(*shown), exact)


def is_good() -> Column:
    """Return whether a checked row has no fault."""
    return F.size("reasons") == 0


def nothing(columns: StructType) -> list[Column]:
    """Return nulls of these columns, for the rows of another output."""
    return [F.lit(None).cast(one.dataType).alias(one.name) for one in columns]
