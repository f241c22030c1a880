"""Trees of large immutable files (checkpoints, savepoints): copy, hash and remove many files at once."""

from __future__ import annotations

import hashlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import override

from streamwarden.names import check_key, is_part

__all__ = ["FileInfo", "FileStore", "Hashed", "LocalFiles"]

_CHUNK = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class FileInfo:
    """A file in a store.

    Parameters
    ----------
    key
        Its key, relative to the store's root.
    size
        Bytes.
    links
        Number of names of the file's bytes. More than 1: another tree shares them. Always 1 on S3.
    """

    key: str
    size: int
    links: int = 1


@dataclass(frozen=True)
class Hashed:
    """Size and SHA-256 (hexadecimal) of a file that was read whole."""

    size: int
    sha256: str


class FileStore(ABC):
    """Files under keys like ``checkpoints/JOB/g000001/offsets/0``, relative to one root.

    For files that never change. Methods raise :class:`FileNotFoundError` for a missing file, and :class:`OSError` or a
    :class:`~streamwarden.errors.StreamwardenError` for an unreachable store.

    Parameters
    ----------
    workers
        Number of files processed at once.
    """

    def __init__(self, *, workers: int) -> None:
        self._workers = workers

    @abstractmethod
    def walk(self, prefix: str, *, after: str = "") -> Iterator[FileInfo]:
        """Yield every file below a folder-like prefix, hidden ones too, sorted by key; none if it does not exist.

        Parameters
        ----------
        after
            If given, only files whose keys sort after ``prefix/after``. On S3 the other files are not listed.
        """

    @abstractmethod
    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders right below a prefix, sorted; without those that no key can have."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Return a small file's bytes."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Write a small file atomically, over any existing file."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Give a file's bytes a second name: a hard link, a server-side copy, or else a byte copy.

        An existing target is replaced.
        """

    @abstractmethod
    def hash(self, key: str) -> Hashed:
        """Read a whole file and return size and SHA-256 of what was read."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a file; no error if it does not exist."""

    @abstractmethod
    def delete_tree(self, prefix: str) -> int:
        """Remove every file below a prefix, and return their number; no error if there are none. May be repeated."""

    @abstractmethod
    def prune(self, prefix: str) -> None:
        """Remove folders without files, from a prefix down; no effect on stores without folders."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Return the free bytes of the store, or None if it has no such limit."""

    @abstractmethod
    def device(self) -> int | None:
        """Return the id of the store's disk, or None if the store is not on a disk."""

    def copy_many(self, pairs: Iterable[tuple[str, str]], *, done: Callable[[int], None] | None = None) -> None:
        """Copy many files at once.

        Parameters
        ----------
        pairs
            Source and target of each.
        done
            Called with the number of files copied so far, from several threads.

        Raises
        ------
        FileNotFoundError
            If a source is gone. Files copied until then stay.
        """
        self._each(lambda pair: self.copy(*pair), list(pairs), done)

    def hash_many(self, keys: Iterable[str], *, done: Callable[[int], None] | None = None) -> dict[str, Hashed]:
        """Hash many files at once; `done` as for :meth:`copy_many`."""
        chosen = list(keys)
        return dict(zip(chosen, self._each(self.hash, chosen, done), strict=True))

    def _each(self, work: Callable[[Any], T], items: list[Any], done: Callable[[int], None] | None) -> list[T]:
        finished = 0
        with ThreadPoolExecutor(self._workers, thread_name_prefix="files") as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                pending = set(futures)
                while pending:
                    ready, pending = wait(pending, timeout=0.5, return_when=FIRST_EXCEPTION)
                    for future in ready:
                        future.result()
                    finished += len(ready)
                    if done is not None:
                        done(finished)
            finally:
                # After an error, queued files are not begun; running ones are awaited.
                pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures]


class LocalFiles(FileStore):
    """Files below a root folder; copies are hard links within one file system.

    A hard link shares the bytes with the original. That is safe because Spark replaces a checkpoint's files and never
    changes them.

    Parameters
    ----------
    root
        The folder.
    """

    def __init__(self, root: Path) -> None:
        # Hashing takes most of the time, and releases the interpreter's lock.
        super().__init__(workers=min(4, os.cpu_count() or 1))
        self.root = root

    @override
    def walk(self, prefix: str, *, after: str = "") -> Iterator[FileInfo]:
        # By strings: pathlib took most of the time of a walk through thousands of files.
        folder = str(self._path(prefix))
        found, first, base = [], f"{prefix}/{after}", len(folder) - len(prefix.strip("/"))
        pending = [folder]
        while pending:
            try:
                with os.scandir(pending.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                            continue
                        key = entry.path[base:]
                        if after and key <= first:
                            continue
                        try:
                            status = entry.stat()
                        except FileNotFoundError:
                            # Spark may remove old files while a checkpoint is listed.
                            continue
                        found.append(FileInfo(key, status.st_size, status.st_nlink))
            except (FileNotFoundError, NotADirectoryError):
                continue
        yield from sorted(found, key=lambda info: info.key)

    @override
    def folders(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self._path(prefix)) as entries:
                return sorted(entry.name for entry in entries if is_part(entry.name) and entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    @override
    def read(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    @override
    def write(self, key: str, data: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)

    @override
    def copy(self, source: str, target: str) -> None:
        origin, path = self._path(source), self._path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            path.hardlink_to(origin)
        except FileNotFoundError:
            raise
        except OSError:
            # Another file system, or a file system without hard links.
            temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
            shutil.copyfile(origin, temporary)
            temporary.replace(path)

    @override
    def hash(self, key: str) -> Hashed:
        digest, size = hashlib.sha256(), 0
        with self._path(key).open("rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
        return Hashed(size, digest.hexdigest())

    @override
    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    @override
    def delete_tree(self, prefix: str) -> int:
        number = 0
        for info in list(self.walk(prefix)):
            self._path(info.key).unlink(missing_ok=True)
            number += 1
        self.prune(prefix)
        return number

    @override
    def prune(self, prefix: str) -> None:
        root = self._path(prefix)
        for folder, _, _ in sorted(os.walk(root), reverse=True):
            try:
                Path(folder).rmdir()
            except OSError:
                # Another process writes there now; the next housekeeping removes what is left.
                continue

    @override
    def free_bytes(self) -> int | None:
        status = os.statvfs(self._there())
        return status.f_bavail * status.f_frsize

    @override
    def device(self) -> int | None:
        return self._there().stat().st_dev

    def _there(self) -> Path:
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        return folder

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*check_key(key).split("/"))
