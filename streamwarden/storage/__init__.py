"""Small documents behind one interface with compare-and-swap."""

from streamwarden.storage.base import Conflict, Entry, Storage
from streamwarden.storage.local import LocalStorage

__all__ = ["Conflict", "Entry", "LocalStorage", "Storage"]
