"""What a message's bytes become, without Spark."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.pandas.types import to_arrow_type

from streamwarden.driver.pipeline.protobuf_values import message_columns, read_message
from streamwarden.store.value_schemas import message_of
from tests.shop_messages import descriptors

pytestmark = pytest.mark.unit

SALE = message_of(descriptors(), "shop.Sale")
Sale = GetMessageClass(SALE)


def test_the_columns_of_a_message() -> None:
    assert message_columns(SALE).simpleString() == (
        "struct<id:string,cents:bigint,kind:string,at:timestamp,tags:array<string>,big:decimal(20,0),raw:binary,"
        "note:string,parts:map<string,int>>"
    )
    with pytest.raises(ValueError, match="holds itself"):
        message_columns(message_of(descriptors(), "shop.Chain"))


def test_fields_are_read_and_what_was_not_set_is_null_or_its_default() -> None:
    sale = Sale(id="a", cents=-5, kind=1, tags=["x"], big=2**64 - 1, raw=b"\xff", note="", parts={"k": 3})  # type: ignore[call-arg]
    sale.at.seconds, sale.at.nanos = 10, 5_000
    full, empty = read_message(Sale, sale.SerializeToString()), read_message(Sale, b"")
    assert full is not None and empty is not None
    assert full["at"] == 10_000_005 and full["big"] == Decimal(2**64 - 1) and full["parts"] == [("k", 3)]
    assert (full["kind"], full["note"], full["raw"]) == ("CARD", "", b"\xff")
    assert empty == {
        **dict.fromkeys(("at", "note")),
        **{"id": "", "cents": 0, "kind": "CASH", "tags": [], "big": Decimal(0), "raw": b"", "parts": []},
    }
    kind = to_arrow_type(message_columns(SALE), timezone="UTC")
    assert pa.array([full, empty, None], type=kind).null_count == 1


def test_what_is_no_such_message_is_none() -> None:
    assert read_message(Sale, None) is None
    assert read_message(Sale, b"\x0a\x09a") is None, "cut off"
    assert read_message(Sale, b"\x0a\x01\xff") is None, "no UTF-8"
    assert read_message(Sale, b"\x08\x01") is None, "field 1 as a number"
    # A later version's field.
    assert read_message(Sale, b"\x98\x06\x01") == read_message(Sale, b"")
    unknown = read_message(Sale, b"\x18\x07")
    assert unknown is not None and unknown["kind"] == "7"
    assert read_message(Sale, b"\x22\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x10\x01") is None, "no calendar has it"
