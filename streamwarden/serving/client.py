"""Open a table's serving store, and read from it."""

from __future__ import annotations

import os
import time
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec, ServeSpec, SinkSpec
from streamwarden.serving.redis import RedisStore
from streamwarden.serving.sqlite import SqliteStore
from streamwarden.serving.store import Served, ServingStore, key_text
from streamwarden.store.config import job_names
from streamwarden.store.workspace import Workspace

__all__ = ["REDIS_URL", "FeatureReader", "open_store", "served_sink"]

REDIS_URL = "STREAMWARDEN_REDIS_URL"


def open_store(workspace: Workspace, table: str, spec: ServeSpec, *, writes: bool) -> ServingStore:
    """Open the serving store of a table.

    Parameters
    ----------
    table
        The table's name.
    spec
        The sink's ``serve``.
    writes
        Whether the caller writes: a file is made if it does not exist.

    Raises
    ------
    StreamwardenError
        ``SERVING_NONE`` if a file to read from does not exist; ``EXTRA_MISSING``.
    """
    if spec.kind == "redis":
        try:
            return RedisStore(os.environ.get(REDIS_URL, spec.url), table, spec.expire_after)
        except ValueError:
            # Without the cause, which has a part of the address: of one with a slip, maybe the password.
            what = f"table {table}: {REDIS_URL} is no redis://[USER:PASSWORD@]HOST:PORT/DATABASE"
            raise StreamwardenError("CONFIG_INVALID", what) from None
    path = workspace.serving_file(table)
    if not writes and not path.exists():
        raise StreamwardenError("SERVING_NONE", f"{path} does not exist yet: no driver has written table {table}")
    return SqliteStore(path, spec.expire_after, writes=writes)


def served_sink(workspace: Workspace, table: str) -> tuple[JobSpec, SinkSpec, ServeSpec]:
    """Return the job and the sink that serve a table, by the jobs' YAML.

    Raises
    ------
    StreamwardenError
        ``SERVING_NONE``.
    """
    served = []
    for name in job_names(workspace.config):
        spec = workspace.job(name)
        for sink in spec.delta_sinks:
            if sink.serve is not None:
                served.append(sink.table)
                if sink.table == table:
                    return spec, sink, sink.serve
    raise StreamwardenError("SERVING_NONE", f"no sink serves table {table}; served are: {', '.join(served) or 'none'}")


class FeatureReader:
    """Reads the newest row of single keys. Keep one open: to open it reads the jobs' YAML.

    Parameters
    ----------
    workspace
        As :func:`~streamwarden.store.workspace.open_workspace` returns it.
    table
        A table whose sink has ``serve``.

    Raises
    ------
    StreamwardenError
        ``SERVING_NONE``; ``EXTRA_MISSING`` without the package redis.

    Examples
    --------
    >>> reader = FeatureReader(open_workspace("local"), "zone_features")  # doctest: +SKIP
    >>> reader.get(zone_id=74).value["trips_1h"]  # doctest: +SKIP
    """

    def __init__(self, workspace: Workspace, table: str) -> None:
        _, self._sink, serve = served_sink(workspace, table)
        self._store = open_store(workspace, table, serve, writes=False)

    def get(self, **key: Any) -> Served | None:
        """Return the row of a key, or None if there is none or it has expired.

        Parameters
        ----------
        key
            All columns of the sink's ``keys``, with values of their types.

        Raises
        ------
        ValueError
            If the columns are others.
        StreamwardenError
            ``SERVING_UNREACHABLE``.
        """
        if set(key) != set(self._sink.keys):
            raise ValueError(f"the key of {self._sink.table} is {', '.join(self._sink.keys)}")
        text = key_text({name: key[name] for name in self._sink.keys})
        return self._store.get(text, now_ms=time.time_ns() // 1_000_000)

    def close(self) -> None:
        """Close the connection."""
        self._store.close()
