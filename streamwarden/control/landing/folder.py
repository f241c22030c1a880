"""What lies in a landing folder, on this machine's disk or on S3."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from typing_extensions import override

from streamwarden.control.landing.file import LandedFile
from streamwarden.control.spec import FileSource
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError
from streamwarden.storage import Bucket, S3Location

__all__ = ["LandingFolder", "Listing", "landing_folder"]


@dataclass
class Listing:
    """One look into a landing folder.

    Parameters
    ----------
    files
        What is to be read, by name.
    passed_over
        Names of folders and hidden files that are not read, sorted; of folders with a slash at the end.
    """

    files: dict[str, LandedFile] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)


class LandingFolder(ABC):
    """A folder in which files land.

    Files whose names begin with ``.`` or ``_``, or end with ``._COPYING_``, are somebody's work in progress and are not
    read, and neither are folders, unless they are named ``key=value``: what Spark's file source does.
    """

    atomic: bool
    """Whether a file is there whole or not at all, as on S3."""

    @abstractmethod
    def look(self) -> Listing:
        """Return what is there.

        Raises
        ------
        OSError, StreamwardenError
            If the folder is not there, or can't be listed.
        """


def landing_folder(workspace: Workspace, source: FileSource) -> LandingFolder:
    """Return a source's folder. Asks nobody yet.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` if it is neither on disk nor on S3, or on S3 in a profile without it.
    """
    # As Hadoop reads addresses: nothing in them is escaped.
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
        for file in self._below("", found.passed_over):
            found.files[file.name] = file
        found.passed_over.sort()
        return found

    def _below(self, inner: str, passed_over: list[str]) -> Iterator[LandedFile]:
        with os.scandir(self._root / inner) as entries:
            for entry in entries:
                name = f"{inner}{entry.name}"
                # A broken link is no folder, and told as a file that can't be read.
                if entry.is_dir():
                    if _is_partition(entry.name):
                        yield from self._below(f"{name}/", passed_over)
                    else:
                        passed_over.append(f"{name}/")
                elif _is_hidden(entry.name):
                    passed_over.append(name)
                elif (file := self._file(name, entry)) is not None:
                    yield file

    def _file(self, name: str, entry: os.DirEntry[str]) -> LandedFile | None:
        refused = None
        try:
            found = entry.stat()
        except FileNotFoundError:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                # Removed since the folder was read.
                return None
            refused = "FILE_UNREADABLE: a link to a file that is not there"
        if refused is None and not stat.S_ISREG(found.st_mode):
            # Reading a pipe would wait for ever.
            refused = "FILE_UNREADABLE: not a regular file"
        return LandedFile(name, str(self._root), found.st_size, found.st_mtime_ns // 1_000_000, refused=refused)


class _S3Folder(LandingFolder):
    atomic = True

    def __init__(self, location: S3Location) -> None:
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
                # What ends with a slash is the mark of a folder. In whole seconds, as a HEAD says it to who reads it.
                modified_ms = int(item["LastModified"].timestamp()) * 1000
                found.files[item["Key"]] = LandedFile.on_s3(
                    self._location, name=item["Key"], length=item["Size"], modified_ms=modified_ms
                )
        found.passed_over = sorted(passed_over)
        return found


def _is_partition(folder: str) -> bool:
    return "=" in folder and not _is_hidden(folder)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
