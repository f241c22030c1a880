"""Documents and files on S3: conditional PUTs instead of locked renames, server-side copies instead of links."""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential
from typing_extensions import override

from streamwarden.errors import StreamwardenError
from streamwarden.names import is_part
from streamwarden.storage.base import Conflict, Entry, Storage
from streamwarden.storage.files import FileInfo, FileStore, Hashed
from streamwarden.storage.s3_client import Bucket, error_code
from streamwarden.storage.s3_location import S3Location

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, CopySourceTypeDef

__all__ = ["S3Files", "S3Storage"]

_CHUNK = 1 << 20
_DELETED_AT_ONCE = 1000

# Largest file that Amazon copies by one request; larger files are copied by parts.
_COPIED_AT_ONCE = 5 << 30
# Amazon allows 10,000 parts, so this is enough for the largest possible object (5 TB).
_PART = 1 << 30

# Metadata key of a random word in each document's PUT. If the answer was lost, the writer recognises its own write by
# the word, also among writers of the same bytes.
_WRITE = "streamwarden-write"


class S3Storage(Storage):
    """Documents as objects below a location's prefix.

    `create` and `replace` are PUTs with ``If-None-Match: *`` and ``If-Match: ETAG``: of many writers exactly one
    succeeds. Amazon S3, versitygw, MinIO and Ceph support this. A server that ignores these headers is not fit for
    control documents; this class can't detect it.

    An unanswered request is repeated. The repetition may fail because the first request changed the version. So a
    conditional write compares the stored document with its own before it raises
    :class:`~streamwarden.storage.Conflict`. If that read fails, it raises ``S3_UNREACHABLE``; then the document may
    have either version.

    Parameters
    ----------
    location
        Where. The first request checks the bucket and the credentials.
    """

    def __init__(self, location: S3Location) -> None:
        # A lease of 20 s is renewed through this bucket. Three attempts of 5 s, with waits of at most 3 s, end before
        # it expires. A document of some kilobytes normally takes milliseconds. Few threads of a driver use documents:
        # heartbeat, batch, listener.
        self._bucket = Bucket(location, connections=10, attempts=3, read_timeout_s=5)

    @override
    def read(self, key: str) -> Entry | None:
        try:
            data, etag = self._bucket.get(key)
        except FileNotFoundError:
            return None
        return Entry(data, etag)

    @override
    def write(self, key: str, data: bytes) -> str:
        with self._bucket.errors("write", key):
            return self._put(key, data)

    @override
    def create(self, key: str, data: bytes) -> str:
        return self._put_if(key, data, IfNoneMatch="*")

    @override
    def replace(self, key: str, data: bytes, etag: str) -> str:
        return self._put_if(key, data, IfMatch=etag)

    @override
    def delete(self, key: str) -> None:
        self._bucket.delete(key)

    @override
    def list(self, prefix: str) -> list[str]:
        keys = [item["Key"] for item in self._bucket.list(prefix)]
        # Folder markers end with a slash. A name that begins with a dot is hidden, as on disk.
        return [key for key in keys if not key.endswith("/") and not key.rsplit("/", 1)[-1].startswith(".")]

    def _put(self, key: str, data: bytes, **options: Any) -> str:
        answer = self._bucket.client.put_object(
            Bucket=self._bucket.name, Key=self._bucket.key(key), Body=data, **options
        )
        return answer["ETag"]

    def _put_if(self, key: str, data: bytes, **condition: str) -> str:
        word = secrets.token_hex(16)
        try:
            with self._bucket.errors("write", key):
                try:
                    return self._put(key, data, Metadata={_WRITE: word}, **condition)
                except ClientError as error:
                    if not _lost_race(error):
                        raise
        except StreamwardenError as error:
            if not error.retryable:
                raise
            # The request was not answered completely, but may have succeeded.
            try:
                etag = self._own(key, word)
            except StreamwardenError:
                raise error from None
            if etag is None:
                raise
            return etag
        etag = self._own(key, word)
        if etag is None:
            raise Conflict(f"{key} has changed since it was read")
        return etag

    def _own(self, key: str, word: str) -> str | None:
        """Return the ETag of the stored document if the write with this word stored it."""
        try:
            found = self._bucket.head(key)
        except FileNotFoundError:
            return None
        return found["ETag"] if found["Metadata"].get(_WRITE) == word else None


def _lost_race(error: ClientError) -> bool:
    # 412: another version is stored. 409: a concurrent write was in progress. No such key: If-Match on a missing
    # document.
    return error_code(error) in ("412", "ConditionalRequestConflict", "NoSuchKey", "PreconditionFailed")


P = ParamSpec("P")
T = TypeVar("T")


def _patient(
    method: Callable[Concatenate[S3Files, P], T],
) -> Callable[Concatenate[S3Files, P], T]:
    """Repeat a method while the server is away or throttles. Only for methods that may run twice."""

    @functools.wraps(method)
    def repeated(self: S3Files, /, *args: P.args, **kwargs: P.kwargs) -> T:
        trying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, StreamwardenError) and error.retryable),
            wait=wait_random_exponential(multiplier=0.5, max=5),
            stop=stop_after_delay(self.patience_s),
            reraise=True,
        )
        return trying(method, self, *args, **kwargs)

    return repeated


class S3Files(FileStore):
    """Files as objects below a location's prefix; the server makes copies, without network traffic.

    An object exists whole or not at all, so an aborted copy leaves nothing under its key. A killed copy by parts leaves
    parts that no listing shows: use a lifecycle rule of the bucket that removes incomplete uploads.

    Parameters
    ----------
    location
        Where.
    copied_at_once
        Size in bytes up to which one request copies a file. Default 5 GiB, Amazon's limit.
    patience_s
        Seconds for which each file is retried while the server is away. Default 30: the time of a server's restart, so
        that a restart does not fail a copy of thousands of files.
    """

    def __init__(
        self, location: S3Location, *, copied_at_once: int = _COPIED_AT_ONCE, patience_s: float = 30.0
    ) -> None:
        # Requests mostly wait: 2,000 small files take 5 s with 8 threads, and little less with more threads.
        super().__init__(workers=8)
        self._copied_at_once = copied_at_once
        self.patience_s = patience_s
        # A server may be silent while it copies some gigabytes in one request.
        self._bucket = Bucket(location, connections=self._workers, attempts=3, read_timeout_s=120)

    @override
    def walk(self, prefix: str, *, after: str = "") -> Iterator[FileInfo]:
        yield from self._files(prefix, after=after)

    @override
    @_patient
    def folders(self, prefix: str) -> list[str]:
        start = f"{self._bucket.key(prefix)}/"
        found: set[str] = set()
        with self._bucket.errors("list", prefix):
            pages = self._bucket.client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket.name, Prefix=start, Delimiter="/"):
                found |= {item["Prefix"][len(start) :].rstrip("/") for item in page.get("CommonPrefixes", [])}
        return sorted(filter(is_part, found))

    @override
    @_patient
    def read(self, key: str) -> bytes:
        return self._bucket.get(key)[0]

    @override
    @_patient
    def write(self, key: str, data: bytes) -> None:
        with self._bucket.errors("write", key):
            self._bucket.client.put_object(Bucket=self._bucket.name, Key=self._bucket.key(key), Body=data)

    @override
    @_patient
    def copy(self, source: str, target: str) -> None:
        found = self._bucket.head(source)
        with self._bucket.errors("copy", source):
            # Copy exactly this version, also by parts.
            origin: CopySourceTypeDef = {"Bucket": self._bucket.name, "Key": self._bucket.key(source)}
            if found["ContentLength"] > self._copied_at_once:
                self._copy_by_parts(origin, found["ETag"], found["ContentLength"], target)
            else:
                self._bucket.client.copy_object(
                    Bucket=self._bucket.name,
                    Key=self._bucket.key(target),
                    CopySource=origin,
                    CopySourceIfMatch=found["ETag"],
                )

    @override
    @_patient
    def hash(self, key: str) -> Hashed:
        digest, size = hashlib.sha256(), 0
        with self._bucket.errors("hash", key):
            body = self._bucket.open(key)["Body"]
            try:
                while chunk := body.read(_CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
            except FlexibleChecksumError:
                # Raised at the end of a body that differs from the stored one. The caller compares the hashes.
                pass
            finally:
                body.close()
        return Hashed(size, digest.hexdigest())

    @override
    @_patient
    def delete(self, key: str) -> None:
        self._bucket.delete(key)

    @override
    @_patient
    def delete_tree(self, prefix: str) -> int:
        # Includes folder markers, each after its contents: servers on a file system refuse another order.
        keys = [item["Key"] for item in reversed(self._bucket.list(prefix))]
        self._delete_all(keys, prefix)
        return sum(not key.endswith("/") for key in keys)

    @override
    @_patient
    def prune(self, prefix: str) -> None:
        # Hadoop leaves markers of empty folders, and treats them as folders.
        keys = [item["Key"] for item in reversed(self._bucket.list(prefix))]
        self._delete_all([key for key in keys if key.endswith("/")], prefix)

    def _delete_all(self, keys: list[str], prefix: str) -> None:
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            chosen = keys[start : start + _DELETED_AT_ONCE]
            with self._bucket.errors("delete", prefix):
                answer = self._bucket.client.delete_objects(
                    Bucket=self._bucket.name,
                    Delete={"Objects": [{"Key": self._full(key)} for key in chosen], "Quiet": True},
                )
                for refused in answer.get("Errors", []):
                    if refused.get("Code") not in ("NoSuchKey", None):
                        # Treat as a refused request: the repetition removes the rest.
                        raise ClientError({"Error": refused}, "DeleteObjects")

    @override
    def free_bytes(self) -> int | None:
        return None

    @override
    def device(self) -> int | None:
        return None

    @_patient
    def _files(self, prefix: str, *, after: str = "") -> list[FileInfo]:
        found = self._bucket.list(prefix, after=after)
        return [FileInfo(item["Key"], item["Size"]) for item in found if not item["Key"].endswith("/")]

    def _full(self, key: str) -> str:
        # A marker's key includes its final slash.
        return self._bucket.key(key) + ("/" if key.endswith("/") else "")

    def _copy_by_parts(self, origin: CopySourceTypeDef, etag: str, size: int, target: str) -> None:
        client, name, key = self._bucket.client, self._bucket.name, self._bucket.key(target)
        upload = client.create_multipart_upload(Bucket=name, Key=key)["UploadId"]
        length = min(_PART, self._copied_at_once)
        try:
            parts: list[CompletedPartTypeDef] = []
            for number, start in enumerate(range(0, size, length), start=1):
                part = client.upload_part_copy(
                    Bucket=name,
                    Key=key,
                    UploadId=upload,
                    PartNumber=number,
                    CopySource=origin,
                    CopySourceIfMatch=etag,
                    CopySourceRange=f"bytes={start}-{min(start + length, size) - 1}",
                )
                parts.append({"ETag": part["CopyPartResult"]["ETag"], "PartNumber": number})
            client.complete_multipart_upload(Bucket=name, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            # The caller gets the first error.
            with suppress(BotoCoreError, ClientError):
                client.abort_multipart_upload(Bucket=name, Key=key, UploadId=upload)
            raise
