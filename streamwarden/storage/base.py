"""The storage interface that every control document goes through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

__all__ = ["Conflict", "Entry", "Storage"]


class Conflict(Exception):
    """A conditional write found another version than expected. Nothing was written."""


@dataclass(frozen=True)
class Entry:
    """A stored document.

    Parameters
    ----------
    data
        Its bytes.
    etag
        The version's name. As on S3, equal bytes have equal etags. A document for which that is a problem carries a
        counter.
    """

    data: bytes
    etag: str


class Storage(ABC):
    """Documents of some kilobytes under keys like ``control/JOB/lease.json``.

    Not for tables, checkpoints or other large files: Spark writes those.
    """

    @abstractmethod
    def read(self, key: str) -> Entry | None:
        """Return the document, or None if it does not exist. Never returns a half-written document."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> str:
        """Write the document unconditionally, and return the new etag."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> str:
        """Write the document if the key does not exist, and return the etag.

        Raises
        ------
        Conflict
            If the key exists. Of many racing callers exactly one succeeds.
        """

    @abstractmethod
    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Write the document if its current version is `etag`, and return the new etag.

        Raises
        ------
        Conflict
            If the key has another version, or does not exist. Of many racing callers exactly one succeeds.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the document; no error if it does not exist."""

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """Return the keys below a folder-like prefix, sorted."""
