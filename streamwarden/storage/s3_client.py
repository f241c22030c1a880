"""Client for one bucket: created on first use, with timeouts, and errors of our catalogue."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from botocore import exceptions as failures

from streamwarden.errors import StreamwardenError
from streamwarden.names import check_key
from streamwarden.storage.s3_location import S3Location

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, HeadObjectOutputTypeDef, ObjectTypeDef

__all__ = ["Bucket", "error_code", "make_client"]

_BODY_TRIES = 3
_ABSENT = {"404", "NoSuchKey", "NotFound"}
# A HEAD request gets a plain 503 for SlowDown.
_THROTTLED = {"429", "503", "RequestLimitExceeded", "ServiceUnavailable", "SlowDown", "Throttling"}
_ELSEWHERE = {"301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
_NO_CREDENTIALS = (
    failures.ConfigNotFound,
    failures.CredentialRetrievalError,
    failures.NoCredentialsError,
    failures.PartialCredentialsError,
    failures.ProfileNotFound,
)
_NO_ANSWER = (failures.ConnectionError, failures.HTTPClientError, failures.IncompleteReadError)


class Bucket:
    """The objects below a location's prefix, by keys relative to it. Thread-safe.

    Buckets of one server share one client in a process, and its open connections, because a supervisor opens its
    workspace anew in every check.

    Parameters
    ----------
    location
        Where.
    connections
        Number of threads that can send requests at the same time.
    attempts
        Total attempts for each request. botocore's standard mode retries unanswered requests and 5xx after random waits
        of up to 0.05, 0.1, 0.2 … s. SlowDown waits up to 1, 2, 4 … 20 s. After some 35 retries in a short time it stops
        retrying until requests succeed again.
    read_timeout_s
        Seconds of silence after which a request fails.
    """

    def __init__(self, location: S3Location, *, connections: int, attempts: int, read_timeout_s: float) -> None:
        self.location = location
        self._connections = connections
        self._attempts = attempts
        self._read_timeout_s = read_timeout_s

    @property
    def name(self) -> str:
        """The bucket's name, for requests."""
        return self.location.bucket

    @property
    def client(self) -> S3Client:
        """The client, created by the first request: creation takes half a second, and contacts no server."""
        return make_client(
            self.location.endpoint,
            self.location.region,
            self._connections,
            self._attempts,
            self._read_timeout_s,
            os.getpid(),
        )

    def key(self, key: str) -> str:
        """Return the object's full key.

        Raises
        ------
        ValueError
            If a part is empty, ``.`` or ``..``: on disk such a part is refused or leads to another folder.
        """
        inner = check_key(key)
        return f"{self.location.prefix}/{inner}" if self.location.prefix else inner

    def list(self, prefix: str = "", *, after: str = "") -> list[ObjectTypeDef]:
        """Return the objects below a folder-like prefix, sorted by key. ``Key`` is relative.

        A key that ends with a slash is a folder marker, which Spark leaves behind.

        Parameters
        ----------
        after
            If given, only keys that sort after ``prefix/after`` are listed.
        """
        start = len(self.location.prefix) + 1 if self.location.prefix else 0
        below = self.key(prefix) if prefix else self.location.prefix
        found: list[ObjectTypeDef] = []
        with self.errors("list", prefix):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.name,
                Prefix=f"{below}/" if below else "",
                StartAfter=f"{below}/{after}" if after else "",
            )
            for page in pages:
                found += [{**item, "Key": item["Key"][start:]} for item in page.get("Contents", [])]
        return sorted(found, key=lambda item: item["Key"])

    def get(self, key: str) -> tuple[bytes, str]:
        """Return a small object's bytes and ETag.

        Raises
        ------
        FileNotFoundError
            If the object does not exist.
        """
        with self.errors("read", key):
            for further in reversed(range(_BODY_TRIES)):
                answer = self.open(key)
                try:
                    return answer["Body"].read(), answer["ETag"]
                except _NO_ANSWER:
                    # botocore retries requests, but not connections that break inside an answer.
                    if not further:
                        raise
        raise AssertionError("unreachable")

    def head(self, key: str) -> HeadObjectOutputTypeDef:
        """Return an object's size, ETag and metadata.

        Raises
        ------
        FileNotFoundError
            If the object does not exist.
        """
        with self.errors("look at", key):
            try:
                return self.client.head_object(Bucket=self.name, Key=self.key(key))
            except failures.ClientError as error:
                if error_code(error) == "404":
                    # An answer to HEAD has no error code: this request finds out whether the bucket is missing.
                    self.client.list_objects_v2(Bucket=self.name, Prefix=self.key(key), MaxKeys=1)
                raise

    def delete(self, key: str) -> None:
        """Remove an object; no error if it does not exist."""
        try:
            with self.errors("delete", key):
                self.client.delete_object(Bucket=self.name, Key=self.key(key))
        except FileNotFoundError:
            # Amazon reports no error for a missing object; other servers do.
            return

    def open(self, key: str) -> GetObjectOutputTypeDef:
        """Request an object whose body is read later. Raises botocore's errors: use it inside :meth:`errors`."""
        return self.client.get_object(Bucket=self.name, Key=self.key(key))

    @contextmanager
    def errors(self, doing: str, key: str) -> Iterator[None]:
        """Translate botocore's errors into ours, with the action and the key.

        Raises
        ------
        FileNotFoundError
            If the object does not exist.
        StreamwardenError
            ``S3_CREDENTIALS_MISSING``, ``S3_REFUSED``, ``S3_BUCKET_MISSING``, ``S3_UNREACHABLE``, ``S3_THROTTLED`` or
            ``S3_OBJECT_DAMAGED``.
        """
        try:
            yield
        except (failures.BotoCoreError, failures.ClientError) as error:
            where = f"{doing} {self.location.uri('s3')}/{key}"
            if self.location.endpoint:
                where += f" at {self.location.endpoint}"
            translated = _translated(error, where)
            if translated is None:
                raise
            raise translated from error


@functools.lru_cache(maxsize=16)
def make_client(
    endpoint: str | None,
    region: str,
    connections: int,
    attempts: int,
    read_timeout_s: float,
    process: int,  # noqa: ARG001
) -> S3Client:
    """Create a client, cached by its arguments. `process` is the process id: connections don't survive a fork."""
    # The import takes half a second, which a process without S3 need not spend.
    import boto3
    from botocore.config import Config

    config = Config(
        # Time of a TCP handshake, with room for one lost packet and its retransmission.
        connect_timeout=2,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=connections,
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    # Own session: threads may not share boto3's default session while they create clients.
    return boto3.session.Session().client("s3", region_name=region, endpoint_url=endpoint, config=config)


def error_code(error: failures.ClientError) -> str:
    """Return the server's error code, such as ``NoSuchKey``, or the HTTP status if the answer has none."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _translated(error: Exception, where: str) -> Exception | None:
    if isinstance(error, failures.ClientError):
        return _refusal(error, where)
    if isinstance(error, _NO_CREDENTIALS):
        return StreamwardenError("S3_CREDENTIALS_MISSING", f"{where}: {error}")
    if isinstance(error, failures.FlexibleChecksumError | failures.ChecksumError):
        return StreamwardenError("S3_OBJECT_DAMAGED", f"{where}: {error}")
    if isinstance(error, _NO_ANSWER):
        return StreamwardenError("S3_UNREACHABLE", f"{where}: {error}")
    # Other errors mean a malformed request, which is a bug in this program.
    return None


def _refusal(error: failures.ClientError, where: str) -> Exception:
    code = error_code(error)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    # Code and message only: other fields of the answer repeat signed data.
    what = f"{where}: {code}: {error.response.get('Error', {}).get('Message', '')}"
    if code in _ABSENT:
        return FileNotFoundError(what)
    if code == "NoSuchBucket":
        return StreamwardenError("S3_BUCKET_MISSING", what)
    if code in _THROTTLED or status == 429:
        return StreamwardenError("S3_THROTTLED", what)
    # Without a status, it is the answer for one key of many.
    if (status >= 500 and status != 501) or code == "InternalError":
        return StreamwardenError("S3_UNREACHABLE", what)
    if code in _ELSEWHERE:
        return StreamwardenError(
            "S3_REFUSED", what, remedy="The bucket is in another region: set `region` of the profile's `s3` to it."
        )
    return StreamwardenError("S3_REFUSED", what)
