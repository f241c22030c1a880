"""Putting an output table back to an earlier version, without Spark.

Delta's RESTORE compares the two versions in Spark jobs: fifteen to forty seconds of a restore or a way back in which
nothing is committed, for a table of a few files. delta-rs does the same from the log alone, in a tenth of a second.
"""

from __future__ import annotations

import logging
from typing import Any

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from streamwarden.control.workspace import Workspace

__all__ = ["put_back"]

_log = logging.getLogger(__name__)


def put_back(workspace: Workspace, table: str, version: int, *, author: str) -> bool:
    """Give a table the contents that it had at a version, and tell whether that was done.

    By a new commit, unless it is the newest version. It is not done, and Spark's RESTORE is to be asked, where the
    table's schema, properties or protocol were others then, where delta-rs can't write a table of its kind, and where
    the version or one of its files is gone or out of reach. Transaction ids stay as they are.

    Parameters
    ----------
    table
        The table's name.
    version
        The version to go back to.
    author
        Who does it; ``userMetadata`` of the commit.
    """
    address, options = workspace.delta_rs(table)
    try:
        then = DeltaTable(address, version=version, storage_options=options)
        now = DeltaTable(address, storage_options=options)
        if _kind(then) != _kind(now):
            _log.info("%s: was of another kind at version %d", table, version)
            return False
        if now.version() == version:
            return True
        now.restore(version, commit_properties=CommitProperties(custom_metadata={"userMetadata": author}))
    except (DeltaError, OSError) as error:
        _log.info("%s: delta-rs can't put it back: %s", table, error)
        return False
    return True


def _kind(table: DeltaTable) -> tuple[Any, ...]:
    metadata, protocol = table.metadata(), table.protocol()
    return (metadata.id, metadata.partition_columns, metadata.configuration, table.schema().to_json(), protocol)
