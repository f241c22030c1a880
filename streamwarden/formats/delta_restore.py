"""Putting an output table back to an earlier version, without Spark.

Delta's RESTORE compares the two versions in Spark jobs: fifteen to forty seconds of a restore or a way back in which
nothing is committed, for a table of a few files. delta-rs does the same from the log alone, in a tenth of a second.
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
"""Each lost race is a commit of somebody else: OPTIMIZE, or a successor, whom the guard then tells of."""


def put_back(
    workspace: Workspace, table: str, version: int, *, author: str, guard: Callable[[], None] = lambda: None
) -> bool:
    """Give a table the contents, schema and properties that it had at a version, and tell whether that was done.

    By a new commit, unless it is the newest version. It is not done, and Spark's RESTORE is to be asked, where the
    table's protocol was another then, where delta-rs can't write a table of its kind, and where the version or one of
    its files is gone or out of reach. Transaction ids stay as they are.

    Parameters
    ----------
    table
        The table's name.
    version
        The version to go back to.
    author
        Who does it; ``userMetadata`` of the commit.
    guard
        Called before the commit, which comes only over the version that was the newest before; raises if this driver
        may not write any more.

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
            # Seen of the delta-rs that is locked; no word of its documentation says so.
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
