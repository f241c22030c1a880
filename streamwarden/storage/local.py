"""Documents on a local file system: an atomic rename under a lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import override

from streamwarden.storage.base import Conflict, Entry, Storage

__all__ = ["LocalStorage"]

_LOCKS = ".locks"


class LocalStorage(Storage):
    """Documents as files below a root folder.

    Readers take no lock: a rename is atomic, so they see the old document or the new one. Conditional writers take an
    ``flock`` on one of the 256 files in ``ROOT/.locks``; the kernel drops it when a process dies, so a killed writer
    blocks nobody. Keys that share a file wait for each other, and nobody ever holds two. One that is paused in the
    midst of a rename blocks until it goes on or is killed, as a supervisor does. It holds between processes of one
    machine, not on network file systems without POSIX locks.

    Parameters
    ----------
    root
        The folder. Made when first written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @override
    def read(self, key: str) -> Entry | None:
        try:
            # Not by pathlib, which takes as long as the reading: supervisors read ten documents at every look.
            with open(self._name(key), "rb") as stream:  # noqa: PTH123
                data = stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Entry(data, _etag(data))

    @override
    def write(self, key: str, data: bytes) -> str:
        # Under the lock too: an unconditional write must not slip between another's comparison and its rename.
        with self._written(key, data) as temporary, self._lock(key):
            temporary.replace(self._path(key))
        return _etag(data)

    @override
    def create(self, key: str, data: bytes) -> str:
        with self._written(key, data) as temporary, self._lock(key):
            try:
                # Fails where a file stands, also one that somebody else wrote without our lock, as Delta does its log.
                os.link(temporary, self._path(key))
            except FileExistsError:
                raise Conflict(f"{key} exists") from None
        return _etag(data)

    @override
    def replace(self, key: str, data: bytes, etag: str) -> str:
        with self._written(key, data) as temporary, self._lock(key):
            entry = self.read(key)
            if entry is None or entry.etag != etag:
                raise Conflict(f"{key} is not at version {etag}")
            temporary.replace(self._path(key))
        return _etag(data)

    @override
    def delete(self, key: str) -> None:
        with self._lock(key):
            self._path(key).unlink(missing_ok=True)

    @override
    def list(self, prefix: str) -> list[str]:
        folder = self._path(prefix)
        if not folder.is_dir():
            return []
        return sorted(
            path.relative_to(self.root).as_posix()
            for path in folder.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        )

    def _path(self, key: str) -> Path:
        return Path(self._name(key))

    def _name(self, key: str) -> str:
        inner = key.strip("/")
        if any(part in ("", ".", "..") for part in inner.split("/")):
            raise ValueError(f"not a storage key: {key!r}")
        return f"{self.root}/{inner}"

    @contextmanager
    def _written(self, key: str, data: bytes) -> Iterator[Path]:
        """Give the file that is to be the document, written and synced before anybody waits for the lock.

        A process that is paused with the lock makes all others wait for as long: no longer than a rename takes shall
        one hold it.
        """
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                # Without it a power cut can leave an empty file under the final name.
                os.fsync(stream.fileno())
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        folder = self.root / _LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        # Never removed, which would let two holders hold two different files. So there are few, and not one for each
        # key: every launch, savepoint and operation has keys of its own.
        name = hashlib.sha256(key.encode()).hexdigest()[:2]
        with (folder / name).open("wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
