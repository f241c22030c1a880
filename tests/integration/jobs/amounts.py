"""A job without state that reads rows of landed JSON lines, and refuses those without an id."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from streamwarden.driver.job_api import JobSettings, LandedFile

VERSION = 1

_ORIGIN = [StructField("source_file", StringType()), StructField("source_row", LongType())]
_MAIN = StructType([StructField("id", StringType()), StructField("amount", LongType()), *_ORIGIN])
_REFUSED = StructType([StructField("raw", StringType()), StructField("reasons", ArrayType(StringType())), *_ORIGIN])
OUTPUTS: Mapping[str, StructType] = {"main": _MAIN, "refused": _REFUSED}
SOURCE_ROWS = ("main",)
_ALL = StructType([*_MAIN.fields, StructField("raw", StringType())])


def transform(source: DataFrame, settings: JobSettings) -> DataFrame:
    return source.select("file").mapInArrow(_read, _ALL)


def outputs(batch: DataFrame) -> Mapping[str, DataFrame]:
    refused = batch.where("id IS NULL").withColumn("reasons", F.array(F.lit("NO_ID")))
    return {
        "main": batch.where("id IS NOT NULL").select(*_MAIN.names),
        "refused": refused.select(*_REFUSED.names),
    }


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("amount", pa.int64()),
            ("source_file", pa.string()),
            ("source_row", pa.int64()),
            ("raw", pa.string()),
        ]
    )
    for batch in batches:
        for line in batch.column("file").to_pylist():
            file = LandedFile.from_json(line)
            with file.open() as handle:
                lines = handle.read().decode().splitlines()
            rows = [
                {**json.loads(text), "source_file": file.label, "source_row": number, "raw": text}
                for number, text in enumerate(lines)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema)
