"""Turn the values of Kafka's records into columns. No record is dropped: what can't be read is kept and named.

Each format gives the fields of a value, and three columns beside them: ``_corrupt`` (a value that can't be read; then
all fields are null), ``_tombstone`` (a null value) and ``_kafka`` (where the record was).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StringType, StructField, StructType

from streamwarden.driver.causes import headline
from streamwarden.driver.pipeline.protobuf_values import message_columns, message_reader
from streamwarden.driver.schema_registry import Subject, read_subject
from streamwarden.errors import StreamwardenError
from streamwarden.model.kafka_spec import AvroValue, JsonValue, KafkaSource, ProtobufValue
from streamwarden.store.value_schemas import avro_schema, protobuf_message, record_of

__all__ = ["OWN_COLUMNS", "UNKNOWN_SCHEMA", "with_columns"]

OWN_COLUMNS = ("_corrupt", "_tombstone", "_kafka")

UNKNOWN_SCHEMA = "Unknown schema"
"""How the error begins by which a batch fails at a schema id that its query does not know."""

_CORRUPT = "_corrupt"
_READ = "_streamwarden_read"
"""A field of the reader's Avro schema. Spark turns a value that it can't decode into a record of nulls, and a writer's
record may equal it. This field has a default that no writer overrides, so it is null for the former only."""


def with_columns(records: DataFrame, job: str, field: str, source: KafkaSource, config: Path) -> DataFrame:
    """Return records with the fields of their values as columns.

    Parameters
    ----------
    records
        In Kafka's own columns, headers included.
    job, field
        The job, and the source's dotted field in its YAML, for messages.
    config
        The configuration folder.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID``; for a registry see :func:`~streamwarden.driver.schema_registry.read_subject`.
    """
    where = f"{job}: {field}.value"
    value = source.value
    if isinstance(value, JsonValue):
        parsed, names, text = _json(where, value)
    elif isinstance(value, AvroValue):
        text = F.base64("value")
        if value.schema_file is not None:
            schema = avro_schema(config, value.schema_file, f"{where}.schema_file")
            parsed, names = _avro(F.col("value"), schema, schema), _fields(schema)
        else:
            assert value.registry is not None
            subject = read_subject(value.registry, value.subject or f"{source.topic}-value")
            parsed, names = _registered(subject, fails=value.unknown_schema == "fail"), _fields(subject.newest)
    else:
        assert isinstance(value, ProtobufValue)
        message = protobuf_message(config, value, where)
        text = F.base64("value")
        content = (config / value.descriptor_file).read_bytes()
        parsed, names = message_reader(content, value.message)(F.col("value")), message_columns(message).fieldNames()
    taken = sorted({*OWN_COLUMNS, _READ} & set(names))
    if taken:
        raise StreamwardenError(
            "CONFIG_INVALID", f"{where}: a field is named {taken[0]}, as a column beside the fields"
        )
    try:
        rows = records.withColumn("_value", parsed)
    except AnalysisException as error:
        raise StreamwardenError("CONFIG_INVALID", f"{where}: {headline(error)}") from error
    fields = {one.name for one in _struct(rows).fields}
    if _CORRUPT in fields:
        # Told by Spark's parser.
        unread = F.coalesce(F.col("_value")[_CORRUPT], F.when(F.col("_value").isNull(), text))
    else:
        unread = F.when(F.col("_value")[_READ].isNull() if _READ in fields else F.col("_value").isNull(), text)
    own = F.struct(
        F.make_valid_utf8(F.col("key").cast("string")).alias("key"),
        "topic",
        "partition",
        "offset",
        "timestamp",
        "headers",
    )
    return rows.select(
        *[F.col("_value")[name].alias(name) for name in names],
        F.when(F.col("value").isNotNull(), unread).alias(_CORRUPT),
        F.col("value").isNull().alias("_tombstone"),
        own.alias("_kafka"),
    )


def _struct(rows: DataFrame) -> StructType:
    found = rows.schema["_value"].dataType
    assert isinstance(found, StructType)
    return found


def _json(where: str, value: JsonValue) -> tuple[Column, list[str], Column]:
    try:
        fields = StructType.fromDDL(value.columns)
    except ParseException as error:
        what = f"{where}.columns {value.columns!r}: {headline(error)}"
        raise StreamwardenError("CONFIG_INVALID", what) from error
    if not isinstance(fields, StructType):
        raise StreamwardenError("CONFIG_INVALID", f"{where}.columns {value.columns!r}: name each column")
    text = F.make_valid_utf8(F.col("value").cast("string"))
    # Spark would read the first object of an array and drop the others.
    single = F.when(~F.ltrim(text).startswith("["), text)
    # A value that is no object, or has a field of another type, makes all fields null, and is in the last one.
    schema = StructType([*fields.fields, StructField(_CORRUPT, StringType())])
    return F.from_json(single, schema, {"columnNameOfCorruptRecord": _CORRUPT}), fields.fieldNames(), text


def _fields(schema: str) -> list[str]:
    fields = record_of(schema)["fields"]
    assert isinstance(fields, list)
    return [str(one["name"]) for one in fields]


def _avro(value: Column, written: str, read: str) -> Column:
    """Return a value decoded by the writer's schema, with the fields of the reader's; see :data:`_READ`."""
    schema = record_of(read)
    fields = schema["fields"]
    assert isinstance(fields, list)
    marked = {**schema, "fields": [*fields, {"name": _READ, "type": "boolean", "default": True}]}
    return from_avro(value, written, {"mode": "PERMISSIVE", "avroSchema": json.dumps(marked)})


def _registered(subject: Subject, *, fails: bool) -> Column:
    """Return the value decoded by the schema whose id it begins with: a byte 0, and the id in 4 bytes."""
    value = F.col("value")
    framed = F.substring(value, 1, 1) == F.lit(bytearray(1))
    number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("long")
    content = F.expr("substring(value, 6)")
    framed = framed & (F.length(value) > 5)
    by_id: Mapping[int, str] = subject.by_id
    decoded = None
    for id_, schema in by_id.items():
        matches, fields = framed & (number == id_), _avro(content, schema, subject.newest)
        decoded = F.when(matches, fields) if decoded is None else decoded.when(matches, fields)
    assert decoded is not None
    if not fails:
        return decoded
    place = [F.lit(", partition "), F.col("partition"), F.lit(", offset "), F.col("offset")]
    told = [F.lit(f"{UNKNOWN_SCHEMA}: subject {subject.name} has no schema of id "), number, F.lit(": topic ")]
    return decoded.when(framed, F.raise_error(F.concat(*told, F.col("topic"), *place)))
