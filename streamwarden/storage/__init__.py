"""Interfaces for small documents with compare-and-swap, and for trees of large files."""

from typing import TYPE_CHECKING

from streamwarden.errors import require_extra
from streamwarden.storage.base import Conflict, Entry, Storage
from streamwarden.storage.files import FileInfo, FileStore, Hashed, LocalFiles
from streamwarden.storage.local import LocalStorage
from streamwarden.storage.s3_location import S3Location

if TYPE_CHECKING:
    from streamwarden.storage.s3 import S3Files, S3Storage

__all__ = [
    "Conflict",
    "Entry",
    "FileInfo",
    "FileStore",
    "Hashed",
    "LocalFiles",
    "LocalStorage",
    "S3Files",
    "S3Location",
    "S3Storage",
    "Storage",
]


def __getattr__(name: str) -> object:
    # Loaded on first use: boto3 is an extra, and a process without S3 need not wait for botocore.
    if name not in ("S3Files", "S3Storage"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra("s3", "boto3")
    from streamwarden.storage import s3

    return getattr(s3, name)
