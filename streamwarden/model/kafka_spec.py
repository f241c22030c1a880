"""Topics of Kafka in a job's spec: a source of records, the formats of their values, and a sink."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from streamwarden.model.history_spec import HistorySpec
from streamwarden.model.spec_base import Strict

__all__ = ["AvroValue", "JsonValue", "KafkaSinkSpec", "KafkaSource", "ProtobufValue", "ValueSpec"]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ADDRESS = re.compile(r"(?:[^\s:,\[\]]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
_REGISTRY = re.compile(r"https?://[^\s@/?#]+(/[^\s@?#]*)?")


def _check_topic(value: str) -> str:
    # Kafka's own rule.
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise ValueError(f"{value!r} is no topic: letters, digits, '.', '_' and '-', at most 249")
    return value


def _check_servers(value: str) -> str:
    wrong = [one for one in value.split(",") if not _ADDRESS.fullmatch(one.strip())]
    if wrong:
        raise ValueError(f"{wrong[0].strip()!r} is no address: write host:port, with commas between several")
    return value


class JsonValue(Strict):
    """Values that are JSON objects."""

    format: Literal["json"]
    columns: str = Field(
        description="The fields that become columns, as Spark's DDL: `payment_id string, amount double`."
    )


class AvroValue(Strict):
    """Values that are Avro records: with `schema_file`, plain; with `registry`, in the wire format of its clients.

    The registry's login comes from the environment: ``STREAMWARDEN_SCHEMA_REGISTRY_URL`` overrides `registry`.
    """

    format: Literal["avro"]
    schema_file: str | None = Field(
        default=None, description="The records' schema, a file of JSON (.avsc). Relative to the configuration folder."
    )
    registry: str | None = Field(
        default=None,
        description="Address of a schema registry, http://HOST:PORT. A value begins with a byte 0 and its schema's id"
        " in 4 bytes. Columns are the fields of the subject's newest version when the query starts.",
    )
    subject: str | None = Field(
        default=None, description="The registry's subject. Default: TOPIC-value. Several topics need it."
    )
    unknown_schema: Literal["fail", "corrupt"] = Field(
        default="fail",
        description="Reaction to a schema id that the subject did not have when the query started. fail: the batch"
        " fails with SOURCE_SCHEMA_UNKNOWN. Its next try reads the registry again. corrupt: the value is put into"
        " `_corrupt`.",
    )

    @field_validator("registry")
    @classmethod
    def _no_secret(cls, value: str | None) -> str | None:
        if value is not None and not _REGISTRY.fullmatch(value):
            raise ValueError(
                f"{value.rpartition('@')[2]!r} is no http://HOST:PORT; one with a password belongs in"
                " STREAMWARDEN_SCHEMA_REGISTRY_URL"
            )
        return value

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.schema_file is None) == (self.registry is None):
            raise ValueError("give schema_file or registry")
        if self.registry is None and self.subject is not None:
            raise ValueError("subject goes with registry")
        return self


class ProtobufValue(Strict):
    """Values that are messages of Protobuf."""

    format: Literal["protobuf"]
    descriptor_file: str = Field(
        description="What `protoc --include_imports --descriptor_set_out=FILE` writes. Relative to the configuration"
        " folder."
    )
    message: str = Field(description="The message's full name, with its package: `shop.Payment`.")


ValueSpec = Annotated[JsonValue | AvroValue | ProtobufValue, Field(discriminator="format")]
"""How a record's value becomes columns."""


class KafkaSource(Strict):
    """Records of Kafka topics: in Kafka's own columns, with key and value as bytes; or the fields of their values.

    Give one of `topic`, `topics` and `topic_pattern`.

    Other client properties, such as credentials, come from the environment: ``STREAMWARDEN_KAFKA_SASL_JAAS_CONFIG``
    sets Kafka's ``sasl.jaas.config``, and so on for every property. The environment overrides this section.
    """

    kind: Literal["kafka"]
    topic: str | None = Field(default=None, description="One topic.")
    topics: tuple[str, ...] | None = Field(default=None, min_length=1, description="Several topics.")
    topic_pattern: str | None = Field(
        default=None, description="All topics whose whole name matches this regular expression, future ones included."
    )
    bootstrap_servers: str = Field(description="Bootstrap addresses: host:port, with commas between several.")
    value: ValueSpec | None = Field(
        default=None,
        description="How values become columns. Beside them: `_corrupt` (a value that is not of that format),"
        " `_tombstone` (a null value), and `_kafka` (key, topic, partition, offset, timestamp, headers). None: Kafka's"
        " own columns.",
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Where the job's first start begins; later starts continue from the checkpoint. earliest: reads"
        " everything that the topic still has.",
    )
    max_offsets_per_batch: int = Field(
        default=100_000,
        ge=1,
        description="100,000: with records of a kilobyte, a first batch over a backlog fits the heap.",
    )

    history: HistorySpec | None = Field(
        default=None, description="Rows that a new job reads first. A job with a checkpoint ignores it."
    )

    _servers = field_validator("bootstrap_servers")(_check_servers)

    @field_validator("topic", "topics")
    @classmethod
    def _names(cls, value: Any) -> Any:
        for one in (value,) if isinstance(value, str) else value or ():
            _check_topic(one)
        if isinstance(value, tuple) and len(set(value)) != len(value):
            raise ValueError("a topic is named twice")
        return value

    @field_validator("topic_pattern")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value

    @model_validator(mode="after")
    def _history(self) -> Self:
        if self.history is None:
            return self
        if self.topic is None:
            raise ValueError("history goes with one topic")
        if self.history.live_from is None:
            raise ValueError("history.live_from is missing: from which time on is the topic read after the history?")
        if self.starting_offsets != "earliest":
            raise ValueError("starting_offsets does not go with history: history.live_from says where the topic begins")
        return self

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(one is not None for one in (self.topic, self.topics, self.topic_pattern)) != 1:
            raise ValueError("give one of topic, topics and topic_pattern")
        value = self.value
        if isinstance(value, AvroValue) and value.registry and not value.subject and self.topic is None:
            raise ValueError("value.subject: several topics need it")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that are given by name; none for a pattern."""
        return (self.topic,) if self.topic is not None else self.topics or ()

    @property
    def title(self) -> str:
        """The topics, for people."""
        if self.topic_pattern is not None:
            return f"topics like {self.topic_pattern}"
        return f"topic{'s' if len(self.names) > 1 else ''} {', '.join(self.names)}"

    def reads(self, topic: str) -> bool:
        """Return whether a topic is one of those that are read."""
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return topic in self.names


class KafkaSinkSpec(Strict):
    """A topic that gets the rows of an output, beside its table: at least once, see docs/kafka.md.

    Client properties come from the environment, as for a source.
    """

    kind: Literal["kafka"]
    topic: str
    bootstrap_servers: str = Field(description="Bootstrap addresses: host:port, with commas between several.")
    output: str = Field(default="main", description="Which of the job module's OUTPUTS is written to this topic.")
    keys: tuple[str, ...] = Field(
        min_length=1,
        description="Columns that make the record's key: the text of a single one, a JSON object of several.",
    )

    _name = field_validator("topic")(_check_topic)
    _servers = field_validator("bootstrap_servers")(_check_servers)
