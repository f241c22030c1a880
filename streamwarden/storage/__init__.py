"""Small documents behind one interface with compare-and-swap, and trees of large files behind another."""

from streamwarden.storage.base import Conflict, Entry, Storage
from streamwarden.storage.files import FileInfo, FileStore, Hashed, LocalFiles
from streamwarden.storage.local import LocalStorage

__all__ = ["Conflict", "Entry", "FileInfo", "FileStore", "Hashed", "LocalFiles", "LocalStorage", "Storage"]
