"""The schema files that jobs name for values of Kafka: read, and checked before Spark starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.model.kafka_spec import AvroValue, ProtobufValue
from streamwarden.model.source_spec import THE_SOURCE
from streamwarden.model.spec import JobSpec

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

__all__ = ["avro_schema", "check_schema_files", "message_of", "protobuf_message", "record_of"]


def check_schema_files(config: Path, spec: JobSpec) -> None:
    """Check the schema files of a job's sources.

    Parameters
    ----------
    config
        The configuration folder, which relative paths start from.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID``, naming the field and the file.
    """
    for name, source in spec.kafka_sources.items():
        field = f"{spec.name}: {'source' if name == THE_SOURCE else f'sources.{name}'}.value"
        if isinstance(source.value, AvroValue) and source.value.schema_file is not None:
            avro_schema(config, source.value.schema_file, f"{field}.schema_file")
        elif isinstance(source.value, ProtobufValue):
            protobuf_message(config, source.value, field)


def avro_schema(config: Path, file: str, field: str) -> str:
    """Return the Avro schema of a file, JSON text of a record.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID``.
    """
    path = config / file
    try:
        text = _read(path, field).decode()
        record_of(text)
    except ValueError as error:
        raise StreamwardenError("CONFIG_INVALID", f"{field}: {path}: {error}") from None
    return text


def record_of(schema: str) -> dict[str, object]:
    """Return a parsed Avro schema; raise ValueError if it is no record, whose fields can become columns."""
    try:
        parsed = parse(schema)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(parsed, dict) or parsed.get("type") != "record" or not isinstance(parsed.get("fields"), list):
        raise ValueError("no Avro record: its fields become the columns")
    return parsed


def protobuf_message(config: Path, value: ProtobufValue, field: str) -> Descriptor:
    """Return the descriptor of a message.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID``: the file is missing or no descriptor set, or has no such message.
    """
    from google.protobuf.message import DecodeError

    path = config / value.descriptor_file
    content = _read(path, f"{field}.descriptor_file")
    try:
        return message_of(content, value.message)
    except KeyError:
        raise StreamwardenError("CONFIG_INVALID", f"{field}.message: {path} has no {value.message}") from None
    except (DecodeError, TypeError, ValueError) as error:
        what = f"{field}.descriptor_file: {path}: no set of descriptors, as protoc writes it: {error}"
        raise StreamwardenError("CONFIG_INVALID", what) from None


def message_of(descriptors: bytes, message: str) -> Descriptor:
    """Return the descriptor of a message of a descriptor set; raise KeyError if the set has none of that name."""
    # Not at the top: a parser of DAG files imports this module.
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return pool.FindMessageTypeByName(message)


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StreamwardenError("CONFIG_INVALID", f"{field}: {path}: {error.strerror}") from None
