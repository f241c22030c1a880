"""A landed file, as named in a batch's plan and as opened by a job."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from streamwarden.foreign_json import parse_object
from streamwarden.storage import S3Location

__all__ = ["LandedFile", "LandedFileChanged", "LandedFileGone", "shown"]


class LandedFileGone(Exception):
    """A planned file is no longer in its folder. The driver reports it as ``SOURCE_DATA_GONE``."""


class LandedFileChanged(Exception):
    """A file was replaced after it was planned: a repeated batch would read other rows than the first time."""


# Includes characters that control a terminal or reverse its text direction.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(name: str) -> str:
    r"""Return a file's name for tables, documents and terminals: always UTF-8, and unique.

    Bytes that aren't UTF-8, and control characters, are written as ``\xNN`` or ``\uNNNN``, and ``\`` as ``\\``.
    """
    plain = os.fsencode(name.replace("\\", r"\\")).decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda match: _escaped(ord(match[0])), plain)


def _escaped(character: int) -> str:
    # Characters beyond ASCII use \u: \x marks a byte that isn't UTF-8.
    return f"\\x{character:02x}" if character < 0x80 else f"\\u{character:04x}"


@dataclass(frozen=True)
class LandedFile:
    """A file of a landing folder, as it was when it was planned into a batch.

    Parameters
    ----------
    name
        Path relative to the folder, with ``/``. May hold any character that the file system allows; bytes that aren't
        UTF-8 are lone surrogates, as :func:`os.fsdecode` makes them.
    folder
        The landing folder: an absolute path, or ``s3a://BUCKET/PREFIX``.
    length
        Bytes.
    modified_ms
        Modification time, milliseconds since the epoch. Names the version of the file, together with `length`.
    reading
        1 for the first reading of the file; more after ``streamwarden landing reread``.
    refused
        Why the file must not be read, such as ``FILE_TOO_LARGE: …``; None if it may be read.
    endpoint, region
        The S3 server, if the folder is on S3. Credentials come from the environment.
    """

    name: str
    folder: str
    length: int
    modified_ms: int
    reading: int = 1
    refused: str | None = None
    endpoint: str | None = None
    region: str | None = None

    @property
    def label(self) -> str:
        """The identifier of this reading in tables (``source_file``): the name, with suffix ``#2`` for a second one.

        The name is as :func:`shown` writes it. Two readings never share a label.
        """
        name = shown(self.name)
        own = name.rpartition("#")[2]
        # If a file's own name ends like a second reading's label, its label always has a number.
        return f"{name}#{self.reading}" if self.reading > 1 or (own.isdigit() and "#" in name) else name

    def open(self) -> Any:
        """Open the file for random access and return pyarrow's ``NativeFile``; nothing is read yet.

        Raises
        ------
        LandedFileGone
            If the file does not exist.
        LandedFileChanged
            If its length or its modification time is not as planned.
        OSError
            If it can't be opened.
        """
        if "://" not in self.folder:
            return self._open_local()
        return self._open_s3()

    def _open_local(self) -> Any:
        import pyarrow as pa

        path = Path(self.folder) / self.name
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise LandedFileGone(str(path)) from None
        self._check(found.st_size, found.st_mtime_ns // 1_000_000)
        # Through a Python file: pyarrow's own files accept only UTF-8 names.
        return pa.PythonFile(path.open("rb"), mode="r")

    def _open_s3(self) -> Any:
        from pyarrow import fs

        bucket, _, prefix = self.folder.partition("://")[2].partition("/")
        key = "/".join(part for part in (bucket, prefix.strip("/"), self.name) if part)
        server = _server(self.region, self.endpoint)
        found = server.get_file_info(key)
        if found.type == fs.FileType.NotFound:
            raise LandedFileGone(f"{self.folder.rstrip('/')}/{self.name}")
        self._check(found.size, found.mtime_ns // 1_000_000)
        return server.open_input_file(key)

    def _check(self, length: int, modified_ms: int) -> None:
        if (length, modified_ms) != (self.length, self.modified_ms):
            raise LandedFileChanged(
                f"{self.label}: planned with {self.length} bytes, and now has {length}, or another modification time"
            )

    def to_json(self) -> str:
        """Return the file as one line of ASCII, which passes any name through Spark unchanged."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(given, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> LandedFile:
        """Parse a line of :meth:`to_json`. Ignores fields that a later version has added."""
        found = parse_object(line)
        given = {field.name: found[field.name] for field in fields(cls) if field.name in found}
        for name, value in given.items():
            if not isinstance(value, int if name in ("length", "modified_ms", "reading") else str):
                raise ValueError(f"{name} has a value of another type")
        return cls(**given)

    @classmethod
    def on_s3(cls, location: S3Location, **given: Any) -> LandedFile:
        """Create a file of a folder on S3."""
        return cls(folder=location.uri("s3a"), endpoint=location.endpoint, region=location.region, **given)


@lru_cache(maxsize=8)
def _server(region: str | None, endpoint: str | None) -> Any:
    """Return pyarrow's client of an S3 server: each client has its own connections."""
    from pyarrow import fs

    scheme, _, host = (endpoint or "").rpartition("://")
    return fs.S3FileSystem(region=region, endpoint_override=host or None, scheme=scheme or "https")
