"""Messages of Protobuf as Spark's columns, read by Google's library.

Spark's own reader is a jar that is not on every mirror. It also turns a message that it can't read into a row of nulls,
which a message of defaults equals.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from streamwarden.spark.arrow_types import arrow_type
from streamwarden.store.value_schemas import message_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

__all__ = ["message_columns", "message_reader", "read_message"]

_TIMESTAMP = "google.protobuf.Timestamp"

# By FieldDescriptor.CPPTYPE_…: INT32, INT64, UINT32, UINT64, DOUBLE, FLOAT, BOOL.
_PLAIN: dict[int, DataType] = {
    1: IntegerType(),
    2: LongType(),
    3: LongType(),
    4: DecimalType(20, 0),
    5: DoubleType(),
    6: FloatType(),
    7: BooleanType(),
    # An enum by the name of its value.
    8: StringType(),
}
_UINT64, _ENUM, _STRING, _MESSAGE, _BYTES = 4, 8, 9, 10, 12


def message_columns(message: Descriptor) -> StructType:
    """Return the columns of a message: ``uint32`` as long, ``uint64`` as decimal, an enum by its value's name.

    Raises
    ------
    ValueError
        For a message that holds itself, which no column can.
    """
    return _struct(message, ())


def _struct(message: Descriptor, above: tuple[str, ...]) -> StructType:
    if message.full_name in above:
        raise ValueError(f"message {message.full_name} holds itself")
    path = (*above, message.full_name)
    return StructType([StructField(field.name, _type(field, path)) for field in message.fields])


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> DataType:
    if _is_map(field):
        keys, values = field.message_type.fields_by_number[1], field.message_type.fields_by_number[2]
        return MapType(_single(keys, above), _single(values, above))
    return ArrayType(_single(field, above)) if field.is_repeated else _single(field, above)


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> DataType:
    if field.cpp_type == _MESSAGE:
        if field.message_type.full_name == _TIMESTAMP:
            return TimestampType()
        return _struct(field.message_type, above)
    if field.cpp_type == _STRING:
        return BinaryType() if field.type == _BYTES else StringType()
    return _PLAIN[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.cpp_type == _MESSAGE and field.message_type.GetOptions().map_entry)


def read_message(factory: type[Message], value: bytes | None) -> dict[str, Any] | None:
    """Return a message's fields; None for a value that is no such message.

    A field that was not set is null if it can be unset, and its default otherwise. Fields that the descriptor does not
    have are left out, as readers of Protobuf do.
    """
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    if value is None:
        return None
    try:
        message = factory.FromString(value)
    except DecodeError:
        return None
    # A field of that number with another type: the bytes are of another message.
    if any(one.field_number in factory.DESCRIPTOR.fields_by_number for one in UnknownFieldSet(message)):
        return None
    try:
        return _plain(message)
    except (OverflowError, ValueError):
        # A timestamp that no calendar has.
        return None


def _plain(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if _is_map(field):
            values = field.message_type.fields_by_number[2]
            held = getattr(message, field.name)
            found[field.name] = [(key, _value(values, held[key])) for key in held]
        elif field.is_repeated:
            found[field.name] = [_value(field, one) for one in getattr(message, field.name)]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _value(field, getattr(message, field.name))
    return found


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.cpp_type == _MESSAGE:
        if field.message_type.full_name == _TIMESTAMP:
            value.ToDatetime()  # raises outside of the calendar
            return value.seconds * 1_000_000 + value.nanos // 1000
        return _plain(value)
    if field.cpp_type == _ENUM:
        known = field.enum_type.values_by_number.get(value)
        # A value that the descriptor lacks, as a later version may have.
        return known.name if known is not None else str(value)
    return Decimal(value) if field.cpp_type == _UINT64 else value


def message_reader(descriptors: bytes, message: str) -> Callable[[Column], Column]:
    """Return a function from a column of values to a column of their fields; null for what is no such message.

    Parameters
    ----------
    descriptors
        A descriptor set, as protoc writes it.
    message
        The message's full name.
    """
    columns = message_columns(message_of(descriptors, message))
    kind = arrow_type(columns, "UTC")

    def read(values: pa.Array) -> pa.Array:
        from google.protobuf.message_factory import GetMessageClass

        factory = GetMessageClass(message_of(descriptors, message))
        return pa.array([read_message(factory, one) for one in values.to_pylist()], type=kind)

    return cast("Callable[[Column], Column]", cast(Any, arrow_udf)(read, columns))
