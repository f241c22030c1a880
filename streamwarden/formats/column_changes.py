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

__all__ = ["TableColumns", "compared_columns", "declared_outputs", "existing_tables"]

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
    outputs = declared_outputs(workspace, spec)
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


def declared_outputs(workspace: Workspace, spec: JobSpec) -> dict[str, list[dict[str, Any]]]:
    """Return the fields of each output that a job's module declares.

    Imports the module in a process of its own, as a driver would import it. That takes some seconds.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID``, ``CONFIG_INVALID``: as a driver ends with them before it starts Spark.
    """
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
        what = f"config/jobs/{spec.name}.yaml: module: the import of {spec.module} takes longer than {_IMPORT_S} s"
        remedy = "Do no work when the module is imported; transform is called once, by the driver."
        raise StreamwardenError("JOB_MODULE_INVALID", what, remedy=remedy) from error
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        what = f"config/jobs/{spec.name}.yaml: module: the import of {spec.module} ended its process with status"
        remedy = f'For its output: `python -c "import {spec.module}"` in {workspace.config.parent}.'
        raise StreamwardenError("JOB_MODULE_INVALID", f"{what} {ended.returncode}: {last}", remedy=remedy)
    answer = json.loads(ended.stdout)
    if "error" in answer:
        raise ErrorInfo.model_validate(answer["error"]).to_exception()
    outputs: dict[str, list[dict[str, Any]]] = answer["outputs"]
    return outputs
