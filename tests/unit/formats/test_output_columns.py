"""Columns by what delta-rs and by what Spark say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as T

from streamwarden.formats.output_columns import columns_of

pytestmark = pytest.mark.unit

KINDS: list[tuple[pa.DataType, T.DataType]] = [
    (pa.string(), T.StringType()),
    (pa.bool_(), T.BooleanType()),
    (pa.int8(), T.ByteType()),
    (pa.int16(), T.ShortType()),
    (pa.int32(), T.IntegerType()),
    (pa.int64(), T.LongType()),
    (pa.float32(), T.FloatType()),
    (pa.float64(), T.DoubleType()),
    (pa.decimal128(18, 2), T.DecimalType(18, 2)),
    (pa.date32(), T.DateType()),
    (pa.timestamp("us", "UTC"), T.TimestampType()),
    (pa.timestamp("us"), T.TimestampNTZType()),
    (pa.binary(), T.BinaryType()),
    (pa.list_(pa.int32()), T.ArrayType(T.IntegerType(), containsNull=False)),
    (pa.map_(pa.string(), pa.float64()), T.MapType(T.StringType(), T.DoubleType())),
    (
        pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]),
        T.StructType([T.StructField("x", T.IntegerType(), False), T.StructField("y", T.ArrayType(T.StringType()))]),
    ),
]


def test_a_table_s_types_are_a_module_s(tmp_path: Path) -> None:
    """Or each deploy would be refused: the control side compares the one with the other."""
    names = [f"c{number}" for number in range(len(KINDS))]
    write_deltalake(tmp_path, pa.schema(list(zip(names, [kind for kind, _ in KINDS], strict=True))).empty_table())
    table = columns_of(json.loads(DeltaTable(tmp_path).schema().to_json())["fields"])
    fields = [T.StructField(name, kind) for name, (_, kind) in zip(names, KINDS, strict=True)]
    assert columns_of(T.StructType(fields).jsonValue()["fields"]) == table
    # As a person writes them, and Spark's ALTER TABLE reads them.
    assert [column.type for column in table] == [kind.simpleString() for _, kind in KINDS]
