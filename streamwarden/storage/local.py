"""Documents on a local file system, written by an atomic rename under a lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import override

from streamwarden.names import check_key
from streamwarden.storage.base import Conflict, Entry, Storage

__all__ = ["LocalStorage"]

_LOCKS = ".locks"


class LocalStorage(Storage):
    """Documents as files below a root folder.

    Readers take no lock: a rename is atomic, so they read the old document or the new one. Conditional writers acquire
    an ``flock`` on one of the 256 files in ``ROOT/.locks``. The kernel releases a dead process's lock. Keys that share
    a lock file wait for each other; no process holds two locks. A process that is paused during a rename blocks them
    until it continues or is killed. Locks don't work on network file systems without POSIX locks.

    Parameters
    ----------
    root
        The folder. Created by the first write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @override
    def read(self, key: str) -> Entry | None:
        try:
            # pathlib would take as long as the read itself: supervisors read ten documents in every check.
            with open(self._name(key), "rb") as stream:  # noqa: PTH123
                data = stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Entry(data, _etag(data))

    @override
    def write(self, key: str, data: bytes) -> str:
        # Needs the lock too: an unconditional write must not fall between another writer's comparison and its rename.
        with self._written(key, data) as temporary, self._lock(key):
            temporary.replace(self._path(key))
        return _etag(data)

    @override
    def create(self, key: str, data: bytes) -> str:
        with self._written(key, data) as temporary, self._lock(key):
            try:
                # Fails if the file exists, also if its writer did not take our lock, as Delta does for its log.
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
        def failed(error: OSError) -> None:
            # A folder may be deleted at any time.
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        start = len(str(self.root)) + 1
        # pathlib takes seven times as long, and a list of a hundred jobs lists as many folders.
        return sorted(
            f"{folder}/{name}"[start:]
            for folder, _, names in os.walk(self._name(prefix), onerror=failed)
            for name in names
            if not name.startswith(".")
        )

    def _path(self, key: str) -> Path:
        return Path(self._name(key))

    def _name(self, key: str) -> str:
        return f"{self.root}/{check_key(key)}"

    @contextmanager
    def _written(self, key: str, data: bytes) -> Iterator[Path]:
        """Yield the temporary file for the document, written and synced before the lock is acquired.

        A process that is paused with the lock blocks all others. So the lock is held for the rename only.
        """
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                # Without the sync a power cut can leave an empty file under the final name.
                os.fsync(stream.fileno())
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        folder = self.root / _LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        # Lock files are never removed: otherwise two holders could lock two different files. So there are few of them:
        # one for each key would grow with every launch, savepoint and operation.
        name = hashlib.sha256(key.encode()).hexdigest()[:2]
        with (folder / name).open("wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
