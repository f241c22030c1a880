"""One bucket's client: made when it is first used, with limits of time, and errors in the catalogue's words."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore import exceptions as failures

from streamwarden.errors import StreamwardenError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, HeadObjectOutputTypeDef, ObjectTypeDef

__all__ = ["Bucket", "S3Location", "error_code", "make_client"]

_BODY_TRIES = 3
_ABSENT = {"404", "NoSuchKey", "NotFound"}
# 503 without words is what a HEAD gets for SlowDown.
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


@dataclass(frozen=True)
class S3Location:
    """Where on S3. Credentials are no part of it: boto3 and Spark each take them from the environment.

    Parameters
    ----------
    bucket
        The bucket's name. It must exist.
    prefix
        What every key begins with, without a slash at either end; empty for the whole bucket.
    endpoint
        ``http(s)://host:port`` of a server that is not Amazon's; buckets are then addressed by path, because such a
        server has one name. None for Amazon's.
    region
        The region that requests are signed for.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"

    def uri(self, scheme: str) -> str:
        """Return the place as an address, without a slash at its end: ``s3a`` for Spark, ``s3`` for others."""
        return f"{scheme}://{self.bucket}/{self.prefix}".rstrip("/")


class Bucket:
    """The objects below a location's prefix, by keys relative to it. Thread-safe.

    Buckets of one server share one client in a process, and with it open connections: a supervisor opens its place
    anew at every look.

    Parameters
    ----------
    location
        Where.
    connections
        How many threads may speak at once without waiting for each other.
    attempts
        How often a request is made in all. botocore's standard mode repeats what was not answered, and 5xx, after
        random waits of up to 0.05, 0.1, 0.2 … s, and SlowDown after up to 1, 2, 4 … 20 s. After some 35 repetitions in
        short time it stops to repeat anything, until requests succeed again.
    read_timeout_s
        Seconds of silence after which an answer is given up.
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
        """The client. Making it asks no server, and takes half a second, so it waits for the first request."""
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
            If a part is empty, ``.`` or ``..``: a folder on disk would refuse it or lead elsewhere.
        """
        parts = key.strip("/").split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"not a key: {key!r}")
        return "/".join([self.location.prefix, *parts]) if self.location.prefix else "/".join(parts)

    def list(self, prefix: str = "", *, after: str = "") -> list[ObjectTypeDef]:
        """Return what is below a folder-like prefix, sorted by key. ``Key`` is relative, as everywhere here.

        What ends with a slash is no file but the mark of a folder, which Spark leaves behind.

        Parameters
        ----------
        after
            If given, only keys that sort behind ``prefix/after``; the others are not listed.
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
            If there is none.
        """
        with self.errors("read", key):
            for further in reversed(range(_BODY_TRIES)):
                answer = self.open(key)
                try:
                    return answer["Body"].read(), answer["ETag"]
                except _NO_ANSWER:
                    # botocore repeats requests, and leaves it to us when the connection breaks inside an answer.
                    if not further:
                        raise
        raise AssertionError("unreachable")

    def head(self, key: str) -> HeadObjectOutputTypeDef:
        """Return what is known of an object: size, ETag, metadata.

        Raises
        ------
        FileNotFoundError
            If there is none.
        """
        with self.errors("look at", key):
            try:
                return self.client.head_object(Bucket=self.name, Key=self.key(key))
            except failures.ClientError as error:
                if error_code(error) == "404":
                    # An answer to HEAD has no words: this asks again whether it is the bucket that is missing.
                    self.client.list_objects_v2(Bucket=self.name, Prefix=self.key(key), MaxKeys=1)
                raise

    def delete(self, key: str) -> None:
        """Remove an object; no error where there is none."""
        try:
            with self.errors("delete", key):
                self.client.delete_object(Bucket=self.name, Key=self.key(key))
        except FileNotFoundError:
            # Amazon says nothing of an object that was not there; other servers do.
            return

    def open(self, key: str) -> GetObjectOutputTypeDef:
        """Ask for an object, whose body is read later. Errors are botocore's: for use inside :meth:`errors`."""
        return self.client.get_object(Bucket=self.name, Key=self.key(key))

    @contextmanager
    def errors(self, doing: str, key: str) -> Iterator[None]:
        """Make botocore's errors ours, saying what was being done to which key.

        Raises
        ------
        FileNotFoundError
            If the object is not there.
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
    """Make a client, once for the same arguments. `process` is this one's id: connections don't outlive a fork."""
    # Half a second, which a process that stays on its disk needn't spend.
    import boto3
    from botocore.config import Config

    config = Config(
        # The time of a TCP handshake, with room for one lost packet and its repetition.
        connect_timeout=2,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=connections,
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    # A session of its own: boto3's default one may not be shared by threads while it makes clients.
    return boto3.session.Session().client("s3", region_name=region, endpoint_url=endpoint, config=config)


def error_code(error: failures.ClientError) -> str:
    """Return the server's word for what is wrong: ``NoSuchKey``, or an HTTP status where the answer has no words."""
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
    # The rest says that a request was put together wrongly: a mistake of this program.
    return None


def _refusal(error: failures.ClientError, where: str) -> Exception:
    code = error_code(error)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    # Code and message only: the answer's other fields repeat what was signed.
    what = f"{where}: {code}: {error.response.get('Error', {}).get('Message', '')}"
    if code in _ABSENT:
        return FileNotFoundError(what)
    if code == "NoSuchBucket":
        return StreamwardenError("S3_BUCKET_MISSING", what)
    if code in _THROTTLED or status == 429:
        return StreamwardenError("S3_THROTTLED", what)
    if status >= 500 and status != 501:
        return StreamwardenError("S3_UNREACHABLE", what)
    if code in _ELSEWHERE:
        return StreamwardenError(
            "S3_REFUSED", what, remedy="The bucket is in another region: set `region` of the profile's `s3` to it."
        )
    return StreamwardenError("S3_REFUSED", what)
