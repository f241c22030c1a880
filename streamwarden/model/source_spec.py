"""The sources of a job's spec."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from streamwarden.model.history_spec import FILES, HistorySpec
from streamwarden.model.kafka_spec import KafkaSource
from streamwarden.model.spec_base import Strict, bytes_of
from streamwarden.names import Name, is_name

__all__ = [
    "THE_SOURCE",
    "DeltaSource",
    "FileSource",
    "HistorySource",
    "KafkaSource",
    "Source",
    "check_several",
]

_SIZE = re.compile(r"[1-9]\d*[kmg]")


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
    table: Name = Field(description="A table name; it stands in the profile's tables folder.")
    published: bool = Field(
        default=False,
        description="Read only the versions that the gate has published: docs/gate.md. false: each version at once,"
        " also of tables that the gate does not watch.",
    )
    max_files_per_batch: int = Field(default=FILES, ge=1, description="256: small files from frequent commits add up.")
    on_change: Literal["fail", "skip"] = Field(
        default="fail",
        description="Reaction to a commit that deletes, updates or overwrites rows. fail: ends with"
        " SOURCE_ROWS_CHANGED and keeps its position. skip: logs and skips the whole commit. Rows that"
        " such a commit adds, as by MERGE or an overwrite, are then not read.",
    )
    history: HistorySpec | None = Field(
        default=None, description="Rows that a new job reads first. A job with a checkpoint ignores it."
    )

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
