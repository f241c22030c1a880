"""The storage interface that every control document goes through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

__all__ = ["Conflict", "Entry", "Storage"]


class Conflict(Exception):
    """A conditional write found another version than it expected. Nothing was written."""


@dataclass(frozen=True)
class Entry:
    """A stored document.

    Parameters
    ----------
    data
        Its bytes.
    etag
        Names this version. Made from the content, as S3 does it: a document written twice with the same bytes has
        the same etag, so a document that must not suffer from that carries a counter.
    """

    data: bytes
    etag: str


class Storage(ABC):
    """Documents of some kilobytes under keys like ``control/JOB/lease.json``.

    Not for tables, checkpoints or anything large: those are written by Spark.
    """

    @abstractmethod
    def read(self, key: str) -> Entry | None:
        """Return the document, or None where there is none. Never a half-written one."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> str:
        """Write whatever stands there now, and return the new etag."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> str:
        """Write only where nothing stands, and return the etag.

        Raises
        ------
        Conflict
            If the key exists. Of many racing callers exactly one succeeds.
        """

    @abstractmethod
    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Write only over the version that `etag` names, and return the new etag.

        Raises
        ------
        Conflict
            If another version, or nothing, stands there. Of many racing callers exactly one succeeds.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the document; no error where there is none."""

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """Return the keys below a folder-like prefix, sorted."""
