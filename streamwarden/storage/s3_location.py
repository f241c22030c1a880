"""A location on S3, without a client: importing it needs no boto3."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["S3Location"]


@dataclass(frozen=True)
class S3Location:
    """A location on S3. Credentials are not part of it: boto3 and Spark each read them from the environment.

    Parameters
    ----------
    bucket
        The bucket's name. It must exist.
    prefix
        Common beginning of every key, without a slash at either end; empty for the whole bucket.
    endpoint
        ``http(s)://host:port`` of another server than Amazon's. Its buckets are addressed by path, because such a
        server has one host name. None for Amazon's.
    region
        Region for which requests are signed.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"

    def uri(self, scheme: str) -> str:
        """Return the location as an address without a final slash: ``s3a`` for Spark, ``s3`` for others."""
        return f"{scheme}://{self.bucket}/{self.prefix}".rstrip("/")
