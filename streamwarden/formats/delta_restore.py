"""Restore an output table to an earlier version, without Spark.

Delta's RESTORE compares the two versions in Spark jobs. Even for a table of a few files, nothing is
committed for fifteen to forty seconds of a restore or rollback. From the log alone, delta-rs does the same in 0.1 s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from streamwarden.errors import StreamwardenError
from streamwarden.store.workspace import Workspace

__all__ = ["put_back"]

_log = logging.getLogger(__name__)


_TRIES = 20
"""Maximum lost races. Each is another commit: by OPTIMIZE, or by a successor, for which the guard raises."""


def put_back(
    workspace: Workspace, table: str, version: int, *, author: str, guard: Callable[[], None] = lambda: None
) -> bool:
    """Restore a table's contents, schema and properties to a version; return whether this was done.

    Makes a new commit, unless the version is the newest. Returns False if the table's
    protocol has changed, if delta-rs can't write this kind of table, or if the version or one of its files is missing
    or unreachable. The caller then uses Spark's RESTORE. Transaction ids stay as they are.

    Parameters
    ----------
    table
        The table's name.
    version
        The target version.
    author
        The author; ``userMetadata`` of the commit.
    guard
        Called before the commit, which only succeeds on top of the version that was the newest before; raises if this
        driver may not write any more.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_CONFLICT`` if others commit all the time.
    """
    address, options = workspace.delta_rs(table)
    for _ in range(_TRIES):
        try:
            then = DeltaTable(address, version=version, storage_options=options)
            now = DeltaTable(address, storage_options=options)
            if (then.metadata().id, then.protocol()) != (now.metadata().id, now.protocol()):
                _log.info("%s: had another protocol at version %d", table, version)
                return False
            if now.version() == version:
                return True
            guard()
            now.restore(version, commit_properties=CommitProperties(custom_metadata={"userMetadata": author}))
            # Observed with the locked version of delta-rs; its documentation does not mention it.
            if _shape(now) != _shape(then):
                _log.warning(
                    "%s: delta-rs left another schema, or other properties, than version %d had", table, version
                )
                return False
        except CommitFailedError as error:
            if DeltaTable(address, storage_options=options).version() > now.version():
                continue
            _log.info("%s: delta-rs can't put it back: %s", table, error)
            return False
        except (DeltaError, OSError) as error:
            _log.info("%s: delta-rs can't put it back: %s", table, error)
            return False
        return True
    raise StreamwardenError("DOCUMENT_CONFLICT", f"table {table}: {_TRIES} commits were lost to other writers")


def _shape(table: DeltaTable) -> tuple[Any, ...]:
    metadata = table.metadata()
    return metadata.partition_columns, metadata.configuration, table.schema().to_json()
