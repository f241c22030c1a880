"""Documents and files on S3: a conditional PUT where a disk has a rename under a lock, server-side copies for links."""

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
from streamwarden.storage.base import Conflict, Entry, Storage
from streamwarden.storage.files import FileInfo, FileStore, Hashed
from streamwarden.storage.s3_client import Bucket, S3Location, error_code

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, CopySourceTypeDef

__all__ = ["S3Files", "S3Storage"]

_CHUNK = 1 << 20
_DELETED_AT_ONCE = 1000

# What Amazon copies by one request; more goes by parts.
_COPIED_AT_ONCE = 5 << 30
# Of 10,000 parts at most, so this is enough for the largest object that there is (5 TB).
_PART = 1 << 30

# A document's PUT carries a random word of its own: by it a writer whose answer was lost knows its write again, also
# among others that wrote the very same bytes.
_WRITE = "streamwarden-write"


class S3Storage(Storage):
    """Documents as objects below a location's prefix.

    `create` and `replace` are PUTs with ``If-None-Match: *`` and ``If-Match: ETAG``: the server lets exactly one of
    many through. Amazon S3 does so, and so do versitygw, MinIO and Ceph; a server that passes over these headers is
    not fit for control documents, and nothing here can tell.

    A request that was not answered is made again, and so may be told by the second answer that the key is at another
    version: the first one's. Before it says :class:`~streamwarden.storage.Conflict`, a conditional write therefore
    looks whether what stands there is its own. Where that can't be found out, it says ``S3_UNREACHABLE``, and the
    document may be at either version.

    Parameters
    ----------
    location
        Where. Neither the bucket nor the credentials are looked at before the first request.
    """

    def __init__(self, location: S3Location) -> None:
        # Through this a lease of 20 s is renewed: three attempts of 5 s, with waits of 3 s at most between, end
        # before it runs out. A document of some kilobytes takes milliseconds where all is well. A driver has few
        # threads that read and write documents: heartbeat, batch, listener.
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
        # A folder's mark ends with a slash; a name with a dot before it is hidden, as on disk.
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
            # Not answered to the end: it may have been done all the same.
            try:
                etag = self._own(key, word)
            except StreamwardenError:
                raise error from None
            if etag is None:
                raise
            return etag
        etag = self._own(key, word)
        if etag is None:
            raise Conflict(f"{key} is not at the version that was to be written over")
        return etag

    def _own(self, key: str, word: str) -> str | None:
        """Return the ETag of what stands there, if the write of this word put it there."""
        try:
            found = self._bucket.head(key)
        except FileNotFoundError:
            return None
        return found["ETag"] if found["Metadata"].get(_WRITE) == word else None


def _lost_race(error: ClientError) -> bool:
    # 412: another version stands there. 409: another write was being done at that moment. No such key: If-Match, and
    # nothing stands there.
    return error_code(error) in ("412", "ConditionalRequestConflict", "NoSuchKey", "PreconditionFailed")


P = ParamSpec("P")
T = TypeVar("T")


def _patient(
    method: Callable[Concatenate[S3Files, P], T],
) -> Callable[Concatenate[S3Files, P], T]:
    """Repeat a method while the server is away or asks for patience: for what may be done twice."""

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
    """Files as objects below a location's prefix; copies are made by the server and cross no network.

    An object is there whole or not at all, so a copy that was broken off leaves nothing under its key. One by parts
    that is killed leaves parts that no listing shows: let a lifecycle rule of the bucket remove incomplete uploads.

    Parameters
    ----------
    location
        Where.
    copied_at_once
        Bytes up to which a file is copied by one request. Default 5 GiB, Amazon's limit.
    patience_s
        Seconds for which each file is tried again while the server is away. Default 30: as long as a server takes to
        be started anew. A copy of thousands of files should not end with the first that met such a moment.
    """

    def __init__(
        self, location: S3Location, *, copied_at_once: int = _COPIED_AT_ONCE, patience_s: float = 30.0
    ) -> None:
        # A request is mostly waiting: 2,000 small files take 5 s with 8 threads, and little less with more.
        super().__init__(workers=8)
        self._copied_at_once = copied_at_once
        self.patience_s = patience_s
        # A server may say nothing while it copies some gigabytes within a request.
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
        return sorted(found)

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
            # Of this version and no other, also where it is copied by parts.
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
                # Said at the end of a body that is not what was stored. The caller compares, and knows what with.
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
        # Folders' marks too, and each after what is in it: a server on a file system refuses them otherwise.
        keys = [item["Key"] for item in reversed(self._bucket.list(prefix))]
        self._delete_all(keys, prefix)
        return sum(not key.endswith("/") for key in keys)

    @override
    @_patient
    def prune(self, prefix: str) -> None:
        # Hadoop leaves marks of empty folders, and takes them for folders.
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
                        # As if the whole request had been refused: it may be repeated, and then finds what is left.
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
        # The slash at a mark's end is part of its key.
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
            # What went wrong first is what the caller is told.
            with suppress(BotoCoreError, ClientError):
                client.abort_multipart_upload(Bucket=name, Key=key, UploadId=upload)
            raise
