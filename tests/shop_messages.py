"""Messages of Protobuf for tests, without protoc: a descriptor set as it would write."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMPS

F = FieldDescriptorProto


def descriptors() -> bytes:
    """Return a descriptor set of shop.Sale, proto3."""
    file = FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="CASH", number=0)
    kind.value.add(name="CARD", number=1)
    sale = file.message_type.add(name="Sale")
    _add(sale, "id", 1, F.TYPE_STRING)
    _add(sale, "cents", 2, F.TYPE_INT64)
    _add(sale, "kind", 3, F.TYPE_ENUM, type_name=".shop.Kind")
    _add(sale, "at", 4, F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    _add(sale, "tags", 5, F.TYPE_STRING, label=F.LABEL_REPEATED)
    _add(sale, "big", 6, F.TYPE_UINT64)
    _add(sale, "raw", 7, F.TYPE_BYTES)
    _add(sale, "note", 8, F.TYPE_STRING, proto3_optional=True, oneof_index=0)
    sale.oneof_decl.add(name="_note")
    sale.nested_type.add(name="PartsEntry").options.map_entry = True
    entry = sale.nested_type[0]
    _add(entry, "key", 1, F.TYPE_STRING)
    _add(entry, "value", 2, F.TYPE_INT32)
    _add(sale, "parts", 9, F.TYPE_MESSAGE, type_name=".shop.Sale.PartsEntry", label=F.LABEL_REPEATED)
    chain = file.message_type.add(name="Chain")
    _add(chain, "next", 1, F.TYPE_MESSAGE, type_name=".shop.Chain")
    first = FileDescriptorProto()
    TIMESTAMPS.CopyToProto(first)
    return FileDescriptorSet(file=[first, file]).SerializeToString()


def _add(message: DescriptorProto, name: str, number: int, kind: int, **more: object) -> None:
    fields = {"label": F.LABEL_OPTIONAL, **more}
    message.field.add(name=name, number=number, type=kind, **fields)  # type: ignore[arg-type]
