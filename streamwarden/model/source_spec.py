"""The sources of a job's spec."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import AwareDatetime, Field, field_validator, model_validator

from streamwarden.model.spec_base import Strict, bytes_of, check_name, is_name

__all__ = [
    "THE_SOURCE",
    "DeltaSource",
    "FileSource",
    "HistorySource",
    "HistorySpec",
    "KafkaSource",
    "Source",
    "check_several",
]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ADDRESS = re.compile(r"(?:[^\s:,\[\]]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
_SIZE = re.compile(r"[1-9]\d*[kmg]")


_FILES_BEFORE = 256


class HistorySpec(Strict):
    """A Delta table of earlier rows, which a new job reads before its source: see docs/history.md."""

    table: str = Field(description="A table name; it stands in the profile's tables folder.")
    where: str | None = Field(
        default=None,
        description="An SQL condition on the table's columns: other rows are not read. For rows that the source has,"
        " too. None: all rows.",
    )
    live_from: AwareDatetime | None = Field(
        default=None,
        description="Kafka only, and needed there: after the history, the topic is read from the first record of this"
        " time on, by Kafka's timestamps. Such as 2026-03-01T00:00:00Z.",
    )
    max_files_per_batch: int = Field(
        default=_FILES_BEFORE, ge=1, description="256: as for a source that is a Delta table."
    )

    _name = field_validator("table")(check_name)


class FileSource(Strict):
    """Files that appear in a folder, on disk or on S3, each read once.

    The job gets the names and opens the files itself, so that a corrupt file does not end the query. Hidden files
    (``.x``, ``_x``) are not read, and neither are folders, unless they are named ``key=value``.
    """

    kind: Literal["files"]
    path: str = Field(description="Folder, relative to the profile's root, or absolute, or s3a://BUCKET/PREFIX.")
    max_files_per_batch: int = Field(
        default=64,
        ge=1,
        description="64: with files of some minutes of trips, a batch takes well under a minute on one core.",
    )
    max_batch_size: str = Field(
        default="512m",
        description="Bytes of a batch's files, such as 512m or 2g. A larger file is a batch by itself. 512m: some"
        " minutes on one core, less than trigger.timeout.",
    )
    max_file_size: str = Field(
        default="4g",
        description="A larger file is quarantined by its name, without reading it. 4g: a year of the densest trips."
        " At some MB per second, a larger file would delay all others for hours.",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_history(cls, given: Any) -> Any:
        if isinstance(given, dict) and "history" in given:
            raise ValueError(
                "history goes with kind delta or kafka: a table has rows, and this job reads files. Land the files in a"
                " table by a job of its own, and read that table"
            )
        return given

    @field_validator("max_batch_size", "max_file_size")
    @classmethod
    def _size(cls, value: str) -> str:
        if not _SIZE.fullmatch(value):
            raise ValueError(f"{value!r} is not a size: write a whole number and k, m or g, like 512m")
        return value

    @field_validator("path")
    @classmethod
    def _readable(cls, value: str) -> str:
        scheme, is_address, _ = value.partition("://")
        if not value or (is_address and scheme not in ("file", "s3a")):
            raise ValueError(
                f"{value!r} is no folder: files are read from a folder on disk, or from s3a://BUCKET/PREFIX"
            )
        return value

    @property
    def max_batch_bytes(self) -> int:
        """`max_batch_size` in bytes."""
        return bytes_of(self.max_batch_size)

    @property
    def max_file_bytes(self) -> int:
        """`max_file_size` in bytes."""
        return bytes_of(self.max_file_size)


class DeltaSource(Strict):
    """Rows appended to a Delta table. Rows that are changed or deleted later can't be retracted from the outputs."""

    kind: Literal["delta"]
    table: str = Field(description="A table name; it stands in the profile's tables folder.")
    max_files_per_batch: int = Field(
        default=_FILES_BEFORE, ge=1, description="256: small files from frequent commits add up."
    )
    on_change: Literal["fail", "skip"] = Field(
        default="fail",
        description="Reaction to a commit that deletes, updates or overwrites rows. fail: ends with"
        " SOURCE_ROWS_CHANGED and keeps its position. skip: logs and skips the whole commit. Rows that"
        " such a commit adds, as by MERGE or an overwrite, are then not read.",
    )
    history: HistorySpec | None = Field(
        default=None, description="Rows that a new job reads first. A job with a checkpoint ignores it."
    )

    _name = field_validator("table")(check_name)

    @model_validator(mode="after")
    def _history(self) -> Self:
        if self.history is not None and self.history.table == self.table:
            raise ValueError(f"history.table {self.table} is the source itself, which is read from its beginning")
        if self.history is not None and self.history.live_from is not None:
            raise ValueError(
                "history.live_from goes with kind kafka: a table is read from its beginning. Leave out of the history"
                " what the table has, too: history.where"
            )
        return self


class KafkaSource(Strict):
    """Records of a Kafka topic: in Kafka's own columns, with key and value as bytes; or the fields of JSON values.

    Other client properties, such as credentials, come from the environment: ``STREAMWARDEN_KAFKA_SASL_JAAS_CONFIG``
    sets Kafka's ``sasl.jaas.config``, and so on for every property. The environment overrides this section.
    """

    kind: Literal["kafka"]
    topic: str
    bootstrap_servers: str = Field(description="Bootstrap addresses: host:port, with commas between several.")
    json_columns: str | None = Field(
        default=None,
        description="Columns of a value that is JSON, as Spark's DDL: `payment_id string, amount double`. Each becomes"
        " a column. Beside them: `_corrupt` (text that is not such JSON), `_tombstone` (a null value), and `_kafka`"
        " (key, topic, partition, offset, timestamp, headers). None: Kafka's own columns.",
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

    @field_validator("topic")
    @classmethod
    def _topic(cls, value: str) -> str:
        # Kafka's own rule.
        if not _TOPIC.fullmatch(value) or value in (".", ".."):
            raise ValueError(f"{value!r} is no topic: letters, digits, '.', '_' and '-', at most 249")
        return value

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers(cls, value: str) -> str:
        wrong = [one for one in value.split(",") if not _ADDRESS.fullmatch(one.strip())]
        if wrong:
            raise ValueError(f"{wrong[0].strip()!r} is no address: write host:port, with commas between several")
        return value

    @model_validator(mode="after")
    def _history(self) -> Self:
        if self.history is not None and self.history.live_from is None:
            raise ValueError("history.live_from is missing: from which time on is the topic read after the history?")
        if self.history is not None and self.starting_offsets != "earliest":
            raise ValueError("starting_offsets does not go with history: history.live_from says where the topic begins")
        return self


class HistorySource(DeltaSource):
    """The history as the source of a query; it is not written in YAML.

    Parameters
    ----------
    where
        The condition of the history.
    live
        The job's source, whose columns the query gets.
    """

    where: str | None
    live: DeltaSource | KafkaSource


Source = FileSource | DeltaSource | KafkaSource

THE_SOURCE = "source"
"""The name of a job's source if it has one only, given as `source`."""


def check_several(sources: dict[str, Source]) -> None:
    """Raise for what is wrong with the sources of a job that has several; for validators."""
    if len(sources) < 2:
        raise ValueError("sources: name two or more, or give the only one as source")
    for name in sources:
        if not is_name(name):
            raise ValueError(f"sources.{name}: a name has lower-case letters, digits and _, and starts with a letter")
        if getattr(sources[name], "history", None) is not None:
            raise ValueError(f"sources.{name}.history: a job has a history only if it has one source")
    files = [name for name, one in sources.items() if isinstance(one, FileSource)]
    if len(files) > 1:
        raise ValueError(
            f"sources: {' and '.join(files)} are both of kind files, and a job has at most one: land the others in"
            " tables by jobs of their own"
        )
