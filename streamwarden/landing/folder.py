"""The contents of a landing folder, on this machine's disk or on S3."""

from __future__ import annotations

import os
import stat
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path

from typing_extensions import override

from streamwarden.errors import StreamwardenError
from streamwarden.landing.file import LandedFile, shown
from streamwarden.model.source_spec import FileSource
from streamwarden.storage import S3Location
from streamwarden.store.workspace import Workspace

__all__ = ["LandingFolder", "Listing", "landing_folder"]


@dataclass
class Listing:
    """One listing of a landing folder.

    Parameters
    ----------
    files
        The files to read, by name.
    passed_over
        Sorted names of skipped folders and hidden files; folders end with a slash.
    troubles
        Messages for folders that should be read and can't be.
    """

    files: dict[str, LandedFile] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


class LandingFolder(ABC):
    """A folder in which files land.

    Files whose names begin with ``.`` or ``_``, or end with ``._COPYING_``, are still being written and are not read.
    Links to folders are not read either, nor folders unless they are named ``key=value``.
    """

    atomic: bool
    """Whether a file appears only when it is complete, as on S3."""

    @abstractmethod
    def look(self) -> Listing:
        """Return the folder's contents.

        Raises
        ------
        StreamwardenError
            ``LANDING_UNREADABLE`` if the folder is missing, or can't be listed; errors of the S3 server.
        """

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Land a complete file; return False if a file of this name is there.

        Raises
        ------
        StreamwardenError
            ``LANDING_UNREADABLE``; errors of the S3 server.
        """


def landing_folder(workspace: Workspace, source: FileSource) -> LandingFolder:
    """Return a source's folder. Makes no request yet.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` if it is neither on disk nor on S3, or on S3 in a profile without S3.
    """
    # Parsed as in Hadoop: nothing in an address is escaped.
    scheme, is_address, rest = (address := workspace.source_path(source.path)).partition("://")
    if not is_address or scheme == "file":
        return _LocalFolder(Path(rest or address))
    if scheme == "s3a" and workspace.s3 is not None:
        bucket, _, prefix = rest.partition("/")
        # All buckets are read from the profile's server.
        return _S3Folder(replace(workspace.s3, bucket=bucket, prefix=prefix.strip("/")))
    raise StreamwardenError(
        "CONFIG_INVALID",
        f"source.path: {address}: files are read from a folder on disk, or from s3a:// with a profile that has s3",
    )


class _LocalFolder(LandingFolder):
    atomic = False

    def __init__(self, root: Path) -> None:
        self._root = root

    @override
    def look(self) -> Listing:
        found = Listing()
        try:
            self._read("", found)
        except OSError as error:
            raise StreamwardenError("LANDING_UNREADABLE", f"{self._root}: {error.strerror}") from error
        found.passed_over.sort()
        return found

    @override
    def create(self, name: str, data: bytes) -> bool:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            # Hidden until it is complete: a listing passes it over.
            handle, hidden = tempfile.mkstemp(dir=self._root, prefix=f".{name}-")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                # As other files, and not for this user alone.
                Path(hidden).chmod(0o644)
                os.link(hidden, self._root / name)
            except FileExistsError:
                return False
            finally:
                Path(hidden).unlink(missing_ok=True)
        except OSError as error:
            raise StreamwardenError("LANDING_UNREADABLE", f"{self._root}: {error.strerror}") from error
        return True

    def _read(self, inner: str, found: Listing) -> None:
        with os.scandir(self._root / inner) as entries:
            for entry in entries:
                name = f"{inner}{entry.name}"
                # Do not follow links: they may form a cycle.
                if entry.is_dir(follow_symlinks=False):
                    if not _is_partition(entry.name):
                        found.passed_over.append(f"{name}/")
                        continue
                    try:
                        self._read(f"{name}/", found)
                    except OSError as error:
                        found.troubles.append(f"{shown(name)}/ can't be read: {error.strerror}")
                elif _is_hidden(entry.name):
                    found.passed_over.append(name)
                elif (file := self._file(name, entry)) is None:
                    found.passed_over.append(f"{name}/")
                else:
                    found.files[name] = file

    def _file(self, name: str, entry: os.DirEntry[str]) -> LandedFile | None:
        """Return a file's description; None for a link to a folder."""
        refused = None
        try:
            status = entry.stat()
            if stat.S_ISDIR(status.st_mode):
                return None
        except OSError as error:
            # A link that is broken, circular or into an unreadable folder; or a file that was just removed.
            refused = f"FILE_UNREADABLE: {error.strerror}"
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                return None
        if refused is None and not stat.S_ISREG(status.st_mode):
            # Reading a pipe would block forever.
            refused = "FILE_UNREADABLE: not a regular file"
        return LandedFile(name, str(self._root), status.st_size, status.st_mtime_ns // 1_000_000, refused=refused)


class _S3Folder(LandingFolder):
    atomic = True

    def __init__(self, location: S3Location) -> None:
        # Here, because it loads botocore. A workspace on S3 has checked that this is installed.
        from streamwarden.storage.s3_client import Bucket

        self._location = location
        self._bucket = Bucket(location, connections=1, attempts=3, read_timeout_s=20)

    @override
    def look(self) -> Listing:
        found = Listing()
        passed_over: set[str] = set()
        for item in self._bucket.list():
            *folders, name = item["Key"].split("/")
            odd = next((number for number, folder in enumerate(folders) if not _is_partition(folder)), None)
            if odd is not None:
                passed_over.add("/".join(folders[: odd + 1]) + "/")
            elif _is_hidden(name):
                passed_over.add(item["Key"])
            elif name:
                # A key with a trailing slash marks a folder. Whole seconds, as in the HEAD response that a reader gets.
                modified_ms = int(item["LastModified"].timestamp()) * 1000
                found.files[item["Key"]] = LandedFile.on_s3(
                    self._location, name=item["Key"], length=item["Size"], modified_ms=modified_ms
                )
        found.passed_over = sorted(passed_over)
        return found

    @override
    def create(self, name: str, data: bytes) -> bool:
        from streamwarden.storage import Conflict, S3Storage

        try:
            S3Storage(self._location).create(name, data)
        except Conflict:
            return False
        return True


def _is_partition(folder: str) -> bool:
    return "=" in folder and not _is_hidden(folder)


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_")) or name.endswith("._COPYING_")
