"""A sink's serving store beside its table: written, deleted from, and filled, with keys of several types."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from streamwarden.driver.pipeline.serving import ServingWriter
from streamwarden.model.record import utc_now
from streamwarden.model.spec import ServeSpec, SinkSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.serving.sqlite import SqliteStore
from streamwarden.serving.store import Position, key_text

pytestmark = pytest.mark.spark

SINK = SinkSpec(table="t", mode="upsert", keys=("name", "price", "at"), serve=ServeSpec(kind="sqlite"))
AT = datetime(2023, 3, 8, 12, 0, 0, 250_000, tzinfo=UTC)
SCHEMA = "name string, price decimal(18,2), at timestamp, trips long, is_final boolean, _deleted boolean"


def frame(spark: SparkSession, *rows: tuple[str, str, int, bool]) -> DataFrame:
    made = [(name, Decimal(price), AT, trips, True, deleted) for name, price, trips, deleted in rows]
    return spark.createDataFrame(made, SCHEMA)


def get(store: SqliteStore, name: str, price: str) -> dict[str, Any] | None:
    found = store.get(key_text({"name": name, "price": Decimal(price), "at": AT}), now_ms=0)
    return dict(found.value) if found is not None else None


def test_batches_are_written_and_a_lost_store_is_filled_from_the_table(spark: SparkSession, tmp_path: Path) -> None:
    path, table = tmp_path / "t.sqlite", tmp_path / "table"
    columns = {"name": ['ü"\x1f', "b"], "price": pa.array([Decimal("12.30"), Decimal("1.00")], pa.decimal128(18, 2))}
    times = pa.array([AT, AT], pa.timestamp("us", "UTC"))
    write_deltalake(str(table), pa.table({**columns, "at": times, "trips": [7, 8], "is_final": [True, False]}))
    store = SqliteStore(path, None, writes=True)
    server = ServingWriter(store, SINK, spark, str(table), epoch=1, generation=1)
    reference = CheckpointRef(job="j", generation=1, path="c", since=utc_now(), reason="")
    server.begin(reference, 3)
    assert get(store, 'ü"\x1f', "12.30") == {"trips": 7} and get(store, "b", "1.00") == {"trips": 8}

    server.write(frame(spark, ("b", "1.00", 0, True), ("c", "2.50", 9, False)), 2, 4, 0)
    assert get(store, "b", "1.00") is None and get(store, "c", "2.50") == {"trips": 9}
    assert store.position() == Position(1, 1, 4)

    # The table of this test does not have batch 4: what is there after a loss comes from the table.
    SqliteStore(path, None, writes=True).clear()
    server.write(frame(spark, ("c", "2.50", 10, False)), 1, 5, 0)
    assert get(store, "b", "1.00") == {"trips": 8} and get(store, "c", "2.50") is None
    assert store.position() == Position(1, 1, 5)
