"""Preview how a deploy would change the columns of a job's tables."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.formats.output_columns import Column, Comparison, columns_of, compare, record_of
from streamwarden.model.record import ErrorInfo
from streamwarden.model.spec import JobSpec, SinkSpec
from streamwarden.store.workspace import Workspace

__all__ = ["TableColumns", "compared_columns", "existing_tables"]

_log = logging.getLogger(__name__)

_IMPORT_S = 120
"""Seconds for the import of a module. 120 s: two of them are pyspark's, and more on a heavily loaded machine."""


@dataclass(frozen=True)
class TableColumns:
    """The columns of an existing table.

    Parameters
    ----------
    columns
        All columns.
    record
        The job's columns; see :func:`~streamwarden.formats.output_columns.record_of`.
    partition_by
        The partition columns.
    """

    columns: tuple[Column, ...]
    record: frozenset[str] | None
    partition_by: tuple[str, ...]


def existing_tables(workspace: Workspace, spec: JobSpec) -> dict[str, TableColumns]:
    """Return, by name, the job's output tables that exist and are readable without Spark."""
    # Here, so that parsing a DAG does not load delta-rs.
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    found = {}
    for sink in spec.delta_sinks:
        if DeltaLog(workspace.files, sink.table).latest is None:
            continue
        address, options = workspace.delta_rs(sink.table)
        try:
            table = DeltaTable(address, storage_options=options)
            metadata = table.metadata()
            found[sink.table] = TableColumns(
                columns_of(json.loads(table.schema().to_json())["fields"]),
                record_of(metadata.configuration),
                tuple(metadata.partition_columns),
            )
        except (DeltaError, OSError) as error:
            # The driver checks this table instead.
            _log.info("%s: its columns can't be read here: %s", sink.table, error)
    return found


def compared_columns(
    workspace: Workspace, spec: JobSpec, tables: Mapping[str, TableColumns], *, released: bool
) -> list[tuple[SinkSpec, Comparison]]:
    """Compare the module's declared columns with the job's tables, as its driver will at its start.

    Imports the module in a separate process, as a driver would import it.

    Parameters
    ----------
    spec
        The job's new spec.
    tables
        See :func:`existing_tables`.
    released
        See :func:`~streamwarden.formats.output_columns.compare`.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID``.
    """
    if not tables:
        return []
    outputs = _declared(workspace, spec)
    found = []
    for sink in spec.delta_sinks:
        table = tables.get(sink.table)
        if table is None:
            continue
        comparison = compare(
            columns_of(outputs[sink.output], sink),
            table.columns,
            table.record,
            place=f"delta.`{workspace.table(sink.table)}`",
            released=released,
        )
        found.append((sink, comparison))
    return found


def _declared(workspace: Workspace, spec: JobSpec) -> dict[str, list[dict[str, Any]]]:
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "streamwarden.driver.declared"],
            input=spec.model_dump_json(),
            capture_output=True,
            text=True,
            timeout=_IMPORT_S,
            # The working directory of a driver.
            cwd=workspace.config.parent,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        what = f"{spec.name}: importing {spec.module} takes longer than {_IMPORT_S} s"
        raise StreamwardenError("JOB_MODULE_INVALID", what) from error
    if ended.returncode:
        what = f"{spec.name}: importing {spec.module}: {ended.stderr[-2000:]}"
        raise StreamwardenError("JOB_MODULE_INVALID", what)
    answer = json.loads(ended.stdout)
    if "error" in answer:
        raise ErrorInfo.model_validate(answer["error"]).to_exception()
    outputs: dict[str, list[dict[str, Any]]] = answer["outputs"]
    return outputs
