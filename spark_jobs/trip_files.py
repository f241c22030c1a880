"""Read a landed file of any format as checked rows."""

from __future__ import annotations

import errno
import gzip
import io
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa

from spark_jobs.parquet_files import parquet_rows
from spark_jobs.text_files import csv_rows, json_rows
from spark_jobs.trip_columns import BadLines, FileRefusedError, Rows
from spark_jobs.trip_rules import Rules, judge, not_rows
from streamwarden.driver.job_api import LandedFile, LandedFileChanged, LandedFileGone

__all__ = ["read_file"]

# A damaged page may come last, so a file is decoded whole before its first row is emitted. Up to this size (decoded
# bytes) the rows are kept; a larger file is decoded twice, to bound memory.
_KEEP_BYTES: Final = 64 * 1024 * 1024

_READ_BYTES: Final = 1024 * 1024

# If a local file can't be opened for one of these reasons, a retry won't help. Other errors may be temporary.
_OF_THE_FILE: Final = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP)

_MAX_MESSAGE: Final = 300


def read_file(file: LandedFile, rules: Rules) -> Iterator[pa.RecordBatch]:
    """Read one file of any format.

    Parameters
    ----------
    file
        The planned file.
    rules
        The rules for its rows.

    Yields
    ------
    RecordBatch
        Rows in the file's order, or one row for a file that is quarantined whole.

    Raises
    ------
    LandedFileGone
        If the file is gone.
    OSError
        If the disk or server currently fails.
    """
    if file.refused is not None:
        yield _whole_file(file, file.refused)
        return
    try:
        handle = file.open()
    except LandedFileChanged as error:
        yield _whole_file(file, _changed(error))
        return
    except OSError as error:
        if "://" in file.folder or error.errno not in _OF_THE_FILE:
            raise
        yield _whole_file(file, f"FILE_UNREADABLE: {_message(error)}")
        return
    with handle:
        yield from _read(file, _Storage(handle), rules)


def _read(file: LandedFile, storage: _Storage, rules: Rules) -> Iterator[pa.RecordBatch]:
    def judged() -> Iterator[pa.RecordBatch]:
        for rows in _rows(file.name, storage):
            if isinstance(rows, Rows):
                yield judge(rows, file.label, rules)
            else:
                yield not_rows(file.label, rows.reasons, rows.numbers, rows.raw)

    kept: deque[pa.RecordBatch] | None = deque()
    size = 0
    # All exceptions: whatever pyarrow raises for a damaged file is the file's fault, and must not stop the job (Arrow,
    # OS, overflow, Unicode, an absurd allocation from a damaged header). Errors of disk and server are the exception.
    try:
        for batch in judged():
            size += batch.nbytes
            if size > _KEEP_BYTES:
                kept = None
            if kept is not None:
                kept.append(batch)
        _check_unchanged(file)
    except FileRefusedError as error:
        yield _whole_file(file, str(error))
        return
    except LandedFileChanged as error:
        yield _whole_file(file, _changed(error))
        return
    except Exception as error:
        if storage.error is not None:
            raise storage.error from error
        yield _whole_file(file, f"FILE_UNREADABLE: {_message(error)}")
        return
    if kept is None:
        yield from judged()
        # Rows were already emitted: the batch fails, and its retry detects the change before the first row.
        _check_unchanged(file)
        return
    while kept:
        yield kept.popleft()


def _check_unchanged(file: LandedFile) -> None:
    """Check that the file did not change between the readings."""
    with suppress(LandedFileGone):  # It was read whole before that.
        file.open().close()


class _Storage(io.RawIOBase):
    """The open file. Remembers errors of its disk or server, which are not the file's fault."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.error: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self.handle.read(None if size < 0 else size))
        except OSError as error:
            self.error = error
            raise

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self.handle.seek(offset, whence))

    def tell(self) -> int:
        return int(self.handle.tell())

    def close(self) -> None:
        """Do nothing: the next reading uses the same handle."""


def _rows(name: str, storage: _Storage) -> Iterator[Rows | BadLines]:
    """Read the file from its first byte; the content decides the format, or else the name."""
    storage.seek(0)
    begin = storage.read(4)
    storage.seek(0)
    if not begin:
        raise FileRefusedError("FILE_UNREADABLE: the file is empty")
    if begin == b"PAR1":
        return parquet_rows(storage)
    content: BinaryIO = io.BufferedReader(storage, _READ_BYTES)
    if begin.startswith(b"\x1f\x8b"):
        content = cast(BinaryIO, gzip.GzipFile(fileobj=content))
    plain_name = name.casefold().removesuffix(".gz")
    if plain_name.endswith(".csv"):
        return csv_rows(content)
    if plain_name.endswith((".json", ".jsonl", ".ndjson")):
        return json_rows(content)
    raise FileRefusedError(
        "FILE_UNREADABLE: not Parquet by its first bytes, nor .csv, .json, .jsonl or .ndjson by its name (or with .gz)"
    )


def _changed(error: LandedFileChanged) -> str:
    return f"FILE_CHANGED: {error}; read it again with streamwarden landing reread"


def _message(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"


def _whole_file(file: LandedFile, reason: str) -> pa.RecordBatch:
    return not_rows(file.label, [[reason]], [None], [None])
