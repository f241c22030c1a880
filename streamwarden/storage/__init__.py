"""Interfaces for small documents with compare-and-swap, and for trees of large files."""

from streamwarden.storage.base import Conflict, Entry, Storage
from streamwarden.storage.files import FileInfo, FileStore, Hashed, LocalFiles
from streamwarden.storage.local import LocalStorage
from streamwarden.storage.s3 import S3Files, S3Storage
from streamwarden.storage.s3_client import Bucket, S3Location

__all__ = [
    "Bucket",
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
