"""Spark's settings for S3, in one place, each with its reason."""

from __future__ import annotations

from typing import Protocol

from streamwarden.spark.conditional_put import CHECKPOINT_FILE_MANAGER, LOG_STORE

__all__ = ["S3Server", "s3_settings"]

_A = "spark.hadoop.fs.s3a"

# Credentials are not among them: settings are shown on pages and written to logs. S3A takes them from the environment,
# by the variables that boto3 takes them from.
_ALWAYS: dict[str, str] = {
    # Spark's default writes a file of a checkpoint under another name and renames it. On S3 a rename is a copy and a
    # delete, in that order and one by one; this manager writes an object whole or, when interrupted, not at all. And
    # where two drivers write the same entry of a log, one of them fails, as on disk.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER,
    # Delta's own for s3a does not keep two writers of one table apart.
    "spark.delta.logStore.s3a.impl": LOG_STORE,
    # The defaults wait for minutes: 30 s for a connection (15 is the least it takes), 200 s of silence, 7 repetitions
    # by S3A around 5 by the SDK. A batch that fails is tried again by the driver, out of a budget that a person has
    # set, and says why; one that waits says nothing. As it is, a server that is back within some 10 s is not noticed,
    # and one that stays away fails the batch after 20.
    f"{_A}.connection.establish.timeout": "15s",
    f"{_A}.connection.timeout": "30s",
    f"{_A}.attempts.maximum": "3",
    f"{_A}.retry.limit": "4",
    f"{_A}.retry.interval": "500ms",
}


class S3Server(Protocol):
    """Which server, as :class:`streamwarden.storage.S3Location` has it too."""

    @property
    def endpoint(self) -> str | None:
        """``http(s)://host:port``, or None for Amazon's."""

    @property
    def region(self) -> str:
        """The region that requests are signed for."""


def s3_settings(server: S3Server) -> dict[str, str]:
    """Return the settings of a session that reads and writes ``s3a://`` on a server."""
    settings = {**_ALWAYS, f"{_A}.endpoint.region": server.region}
    if server.endpoint is not None:
        settings[f"{_A}.endpoint"] = server.endpoint
        settings[f"{_A}.connection.ssl.enabled"] = str(server.endpoint.startswith("https:")).lower()
        # One host name for all buckets.
        settings[f"{_A}.path.style.access"] = "true"
    return settings
