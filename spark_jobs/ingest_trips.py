"""Turn landed trip files into typed, valid trips, and a quarantine for the rest.

The source names the files; pyarrow opens and reads each here. So a corrupt or foreign file becomes one quarantine row
and does not end the query. Files with different column types (TLC changes them) are read side by side. No file is ever
in memory whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Final, Self

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from spark_jobs.schemas import QUARANTINE, TRIPS
from spark_jobs.trip_files import read_file
from spark_jobs.trip_rules import Rules
from spark_jobs.trip_times import check_time_zone, micros_of, moment
from streamwarden.driver.job_api import JobOptions, JobSettings, LandedFile
from streamwarden.errors import StreamwardenError

__all__ = ["OUTPUTS", "SOURCE_ROWS", "VERSION", "Options", "outputs", "refused_files", "rules_of", "transform"]

VERSION = 1

OUTPUTS: Mapping[str, StructType] = {"main": TRIPS, "quarantine": QUARANTINE}

# A row of a file is one trip with the same columns, or one row of the quarantine. A trip that is read again, as JSON,
# is the same trip.
SOURCE_ROWS = ("main",)


class Options(JobOptions):
    """Options of ``ingest_trips``."""

    earliest: Annotated[datetime, BeforeValidator(moment)] = Field(
        description="Pickups before this are quarantined. No default: it depends on what is replayed."
    )
    latest: Annotated[datetime, BeforeValidator(moment)] = Field(
        description="Pickups at or after this are quarantined: one far in the future would carry every watermark along."
    )
    time_zone: Annotated[str, AfterValidator(check_time_zone)] = Field(
        default="UTC",
        description="Whose clock shows the times that have no zone in the file. UTC: taken as they stand.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.earliest >= self.latest:
            raise ValueError("earliest must be before latest")
        return self


def rules_of(options: Options) -> Rules:
    """Return the options as the limits that rows are compared with."""
    return Rules(micros_of(options.earliest), micros_of(options.latest), options.time_zone)


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    """Read and check the files of each batch.

    Parameters
    ----------
    source
        One column ``file``: each row is a line of :meth:`LandedFile.to_json`.
    settings
        Needs the module's options.

    Returns
    -------
    DataFrame
        All columns of both outputs. ``reasons`` is null in a valid row; :func:`outputs` splits by it.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` without options.
    """
    if not isinstance(settings.options, Options):
        raise StreamwardenError("CONFIG_INVALID", "ingest_trips: options: earliest and latest are required")
    parsed = source.select("file").mapInArrow(partial(_read_files, rules_of(settings.options)), _PARSED)
    # In a streaming plan this is the batch's time from the checkpoint: a replayed batch gets the same.
    return parsed.withColumn("quarantined_at", F.current_timestamp())


def outputs(batch: DataFrame) -> Mapping[str, DataFrame]:
    """Split a batch into trips (``main``) and ``quarantine``."""
    return {
        "main": batch.where(F.col("reasons").isNull()).select(*TRIPS.names),
        "quarantine": batch.where(F.col("reasons").isNotNull()).select(*QUARANTINE.names),
    }


def refused_files(batch: DataFrame) -> DataFrame:
    """Return the files of a batch that were quarantined whole: ``source_file`` and ``reason``."""
    whole = batch.where(F.col("reasons").isNotNull() & F.col("source_row").isNull())
    return whole.select("source_file", F.col("reasons")[0].alias("reason"))


def _read_files(rules: Rules, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for line in batch.column("file").to_pylist():
            yield from read_file(LandedFile.from_json(line), rules)


_PARSED: Final = StructType(
    [*TRIPS.fields, StructField("raw", StringType()), StructField("reasons", ArrayType(StringType()))]
)
