"""A table on S3 that is put back without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from streamwarden.formats.delta_restore import put_back
from tests.integration.conftest import Place

pytestmark = pytest.mark.s3


def test_a_table_on_s3_is_put_back_and_written_on(place: Place) -> None:
    address, options = place.workspace.delta_rs("numbers")
    for number in range(4):
        rows = pa.table({"number": [number]})
        write_deltalake(address, rows, mode="overwrite" if number == 3 else "append", storage_options=options)
    assert put_back(place.workspace, "numbers", 1, author="a driver")
    write_deltalake(address, pa.table({"number": [9]}), mode="append", storage_options=options)
    found = DeltaTable(address, storage_options=options).to_pyarrow_table()["number"].to_pylist()
    assert sorted(found) == [0, 1, 9]
