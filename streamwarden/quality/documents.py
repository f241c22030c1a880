"""Write and read the documents of runs: results, report, and the list of runs."""

from __future__ import annotations

import json

from pydantic import ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.quality.report import render_index, render_report
from streamwarden.quality.results import QualityRun
from streamwarden.storage import Storage
from streamwarden.store.config import describe_validation

__all__ = ["latest_runs", "read_run", "write_run"]

RESULTS = "results.json"
REPORT = "report.html"
INDEX = "index.html"
# Maximum runs in the list: four days with one run an hour.
LISTED = 100


def write_run(storage: Storage, prefix: str, run: QualityRun) -> None:
    """Write ``RUN_ID/results.json``, ``RUN_ID/report.html`` and ``index.html`` below a prefix, each atomically.

    The report is rendered from the written document, so both have the same content. Old runs are not removed.
    """
    # NaN and infinity are not JSON; they were converted to text before.
    document = json.dumps(run.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False)
    # Results first: a reader of the report can rely on them.
    storage.write(f"{prefix}/{run.run_id}/{RESULTS}", document.encode())
    storage.write(f"{prefix}/{run.run_id}/{REPORT}", render_report(QualityRun.model_validate_json(document)).encode())
    storage.write(f"{prefix}/{INDEX}", render_index(latest_runs(storage, prefix)).encode())


def read_run(storage: Storage, prefix: str, run_id: str) -> QualityRun:
    """Return the results of a run.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_INVALID`` if it is missing, or has another format.
    """
    key = f"{prefix}/{run_id}/{RESULTS}"
    entry = storage.read(key)
    if entry is None:
        raise StreamwardenError("DOCUMENT_INVALID", f"{key}: no such run")
    try:
        return QualityRun.model_validate_json(entry.data)
    except ValidationError as error:
        raise StreamwardenError("DOCUMENT_INVALID", f"{key}: {describe_validation(error)}") from error


def latest_runs(storage: Storage, prefix: str, limit: int = LISTED) -> list[QualityRun]:
    """Return the latest runs, newest first. Unreadable documents are skipped, not reported."""
    keys = [key for key in storage.list(prefix) if key.endswith(f"/{RESULTS}")]
    # A run id begins with its start time.
    run_ids = sorted((key.split("/")[-2] for key in keys), reverse=True)
    runs = []
    for run_id in run_ids[:limit]:
        try:
            runs.append(read_run(storage, prefix, run_id))
        except StreamwardenError:
            continue
    return runs
