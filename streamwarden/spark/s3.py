"""Spark's settings for S3, each with its reason."""

from __future__ import annotations

from typing import Protocol

from streamwarden.spark.conditional_put import CHECKPOINT_FILE_MANAGER, LOG_STORE

__all__ = ["S3Server", "s3_settings"]

_A = "spark.hadoop.fs.s3a"

# No credentials: pages and logs show settings. S3A reads credentials from the environment, by boto3's variables.
_ALWAYS: dict[str, str] = {
    # Spark's default writes a checkpoint file under another name and renames it. On S3 a rename is a copy and a delete
    # for each file. This manager writes an object whole, or not at all if interrupted. Of two drivers that write the
    # same log entry, one fails, as on disk.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER,
    # Delta's own store for s3a does not separate two writers of one table.
    "spark.delta.logStore.s3a.impl": LOG_STORE,
    # The defaults wait for minutes: 30 s for a connection (15 is the minimum), 200 s of silence, 7 retries by S3A
    # around 5 by the SDK. The driver retries a failed batch itself, within a configured budget and with a reason; a
    # waiting batch gives none. With these values, a server's outage of some 10 s is not noticed, and a longer one fails
    # the batch after 20 s.
    f"{_A}.connection.establish.timeout": "15s",
    f"{_A}.connection.timeout": "30s",
    f"{_A}.attempts.maximum": "3",
    f"{_A}.retry.limit": "4",
    f"{_A}.retry.interval": "500ms",
}


class S3Server(Protocol):
    """The S3 server, as :class:`streamwarden.storage.S3Location` describes it too."""

    @property
    def endpoint(self) -> str | None:
        """``http(s)://host:port``, or None for Amazon's server."""

    @property
    def region(self) -> str:
        """Region for which requests are signed."""


def s3_settings(server: S3Server) -> dict[str, str]:
    """Return a session's settings for ``s3a://`` addresses of a server."""
    settings = {**_ALWAYS, f"{_A}.endpoint.region": server.region}
    if server.endpoint is not None:
        settings[f"{_A}.endpoint"] = server.endpoint
        settings[f"{_A}.connection.ssl.enabled"] = str(server.endpoint.startswith("https:")).lower()
        # The server has one host name for all buckets.
        settings[f"{_A}.path.style.access"] = "true"
    return settings
