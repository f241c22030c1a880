"""``python -m streamwarden.driver.state_migration``: make a checkpoint from the state of a job's earlier version.

It runs the job's query for one batch without input and without tables, with the old state as its initial state. Its
standard output is one JSON line: ``{"rows": N, "sources": […]}``, the rows that the job's ``migrate`` has returned and
the names of the query's sources; or ``{"error": "…"}``. Called by :mod:`streamwarden.savepoints.migrated_checkpoint`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StateOperatorProgress
from pyspark.sql.types import StructType

from streamwarden.driver.causes import headline
from streamwarden.driver.job_session import checkpoint_session
from streamwarden.driver.pipeline.module import load_module, output_mode, settings_for
from streamwarden.driver.pipeline.plan import TAG
from streamwarden.driver.pipeline.source import Opener, job_rows, open_source, query_sources
from streamwarden.driver.previous_state import PreviousState
from streamwarden.driver.state_only_batch import run_batch
from streamwarden.driver.state_rows import plain_path
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.runtime import work_dirs
from streamwarden.runtime.state_reader import SCRATCH
from streamwarden.store.ids import new_id
from streamwarden.store.workspace import Workspace, open_workspace

_INITIAL = "streamwarden_initial_state"
"""An alias by which a plan shows that it uses the initial state."""


def main() -> int:
    """Make the checkpoint and print the result."""
    parser = argparse.ArgumentParser(prog="python -m streamwarden.driver.state_migration")
    for name in ("profile", "config", "root", "spec", "old", "new"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("batch", "version"):
        parser.add_argument(f"--{name}", required=True, type=int)
    given = parser.parse_args()
    workspace = open_workspace(given.profile, config=Path(given.config), root=given.root)
    spec = JobSpec.model_validate_json(given.spec)
    # Leftovers of killed ones.
    work_dirs.sweep(workspace, SCRATCH)
    own = work_dirs.claim(workspace, SCRATCH, new_id())
    os.environ["TMPDIR"] = str(own)
    try:
        session = checkpoint_session(workspace, spec, own)
        session.sparkContext.setLogLevel("ERROR")
        try:
            # State stores report to a coordinator that is created with the session's streaming side.
            _ = session.streams.active
            with plain_path(workspace.uri(given.old)) as path:
                old = PreviousState(session, path, given.batch, given.version)
                answer = _migrate(session, workspace, spec, old, workspace.uri(given.new), own / "empty")
        except StreamwardenError as error:
            answer = {"error": error.what}
        except Exception as error:
            # Any exception, also of the job's code: the caller leaves the job as it was.
            answer = {"error": f"{spec.module}.migrate: {headline(error)}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        session.stop()
    finally:
        work_dirs.remove(own)
    return 0


def _migrate(
    session: SparkSession, workspace: Workspace, spec: JobSpec, old: PreviousState, checkpoint: str, folder: Path
) -> dict[str, Any]:
    module = load_module(spec)
    initial = module.migrate(old).persist()  # type: ignore[attr-defined]
    rows = initial.count()
    settings = replace(settings_for(spec, module), initial_state=initial.alias(_INITIAL))

    def query(opener: Opener) -> DataFrame:
        made = job_rows(session, workspace, spec, module, settings=settings, opener=opener)
        # Not told by the rows of the new state: all may have expired.
        if _INITIAL not in made._jdf.queryExecution().logical().toString():
            raise StreamwardenError("MIGRATION_FAILED", "transform has not used settings.initial_state")
        return made

    schemas = {name: open_source(session, workspace, spec, name).schema for name in spec.inputs}
    names, operators = run_without_input(session, schemas, query, checkpoint, folder, output_mode(module))
    for number, operator in enumerate(operators):
        if not operator.operatorName.startswith("transformWithState"):
            what = f"operator {number}, {operator.operatorName}, takes no initial state: its state would be lost"
            raise StreamwardenError("MIGRATION_FAILED", what)
    return {"rows": rows, "sources": names}


def run_without_input(
    session: SparkSession,
    schemas: Mapping[str, StructType],
    query: Callable[[Opener], DataFrame],
    checkpoint: str,
    folder: Path,
    mode: str = "update",
) -> tuple[list[str], Sequence[StateOperatorProgress]]:
    """Run a query's first batch without input and without tables.

    Parameters
    ----------
    schemas
        The columns of its sources, by name.
    query
        Returns the query over sources that the given function opens.
    checkpoint
        Where its checkpoint is made, in the form that Spark writes to.
    folder
        A new folder for the sources.
    mode
        Spark's output mode.

    Returns
    -------
    names, operators
        The names of the sources in Spark's order; the progress of the stateful operators.
    """

    def opened(name: str, _: object) -> DataFrame:
        # A file source begins a batch for a file without rows.
        session.createDataFrame([], schemas[name]).write.parquet(str(folder / name))
        return session.readStream.schema(schemas[name]).option(TAG, name).parquet(str(folder / name))

    rows = query(opened)
    return [one.name for one in query_sources(rows)], run_batch(rows, checkpoint, "migration", mode)


if __name__ == "__main__":
    sys.exit(main())
