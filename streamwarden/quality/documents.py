"""Write, read and remove the documents of runs: results, report, and the list of runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.model.gate import Decision, Verdict
from streamwarden.names import part
from streamwarden.quality.report import render_index, render_report
from streamwarden.quality.results import QualityRun
from streamwarden.storage import Conflict, Storage
from streamwarden.store.config import describe_validation

__all__ = ["latest_runs", "read_run", "remove_old_runs", "write_decision", "write_run"]

RESULTS = "results.json"
REPORT = "report.html"
INDEX = "index.html"
LIST = "runs.json"
"""What the list shows of each run, so that a run need not read the results of others."""
# Maximum runs in the list: four days with one run an hour.
LISTED = 100
_RUN_ID = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]+")
_RACES = 10


def write_run(storage: Storage, prefix: str, run: QualityRun) -> None:
    """Write ``RUN_ID/results.json``, ``RUN_ID/report.html`` and ``index.html`` below a prefix, each atomically.

    The report is rendered from the written document, so both have the same content. For old runs see
    :func:`remove_old_runs`.
    """
    # NaN and infinity are not JSON; they were converted to text before.
    document = json.dumps(run.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False)
    # Results first: a reader of the report can rely on them.
    storage.write(f"{prefix}/{part(run.run_id)}/{RESULTS}", document.encode())
    storage.write(f"{prefix}/{run.run_id}/{REPORT}", render_report(QualityRun.model_validate_json(document)).encode())
    _list(storage, prefix, lambda listed: [_line(run), *(one for one in listed if one["run_id"] != run.run_id)])


def write_decision(storage: Storage, prefix: str, decision: Decision) -> None:
    """Write a run's report again, with a hold or an acceptance. Without the run, there is nothing to do.

    Nor for what is published: its report needs no further words, and each decision would be rendered twice.
    """
    if decision.run is None or decision.verdict is Verdict.PUBLISHED:
        return
    try:
        run = read_run(storage, prefix, decision.run)
    except StreamwardenError:
        # It was removed as old, or belongs to another machine; the gate's history has the decision.
        return
    storage.write(f"{prefix}/{run.run_id}/{REPORT}", render_report(run, decision).encode())


def remove_old_runs(
    storage: Storage,
    root: Path,
    prefix: str,
    keep: timedelta,
    *,
    used: Collection[str] = (),
    now: datetime | None = None,
) -> list[str]:
    """Remove the folders of old runs, and take them off the list; return their ids.

    Parameters
    ----------
    storage, root
        The folder that holds them.
    prefix
        As in :func:`write_run`.
    keep
        Runs that began longer ago are removed.
    used
        Ids of runs that are kept in any case.
    now
        The current time; default the real time.
    """
    until = f"{(now or datetime.now(UTC)) - keep:%Y%m%dT%H%M%SZ}"
    removed = []
    for folder in sorted((root / prefix).glob("*/")):
        named = _RUN_ID.fullmatch(folder.name)
        # By name, which begins with the time. Other folders are not ours.
        if named is not None and named[1] < until and folder.name not in used:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    if removed:
        gone = set(removed)
        _list(storage, prefix, lambda listed: [one for one in listed if one["run_id"] not in gone])
    return removed


def _list(storage: Storage, prefix: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Change the list of runs, newest first, and write it as a page."""
    key = f"{prefix}/{LIST}"
    for _ in range(_RACES):
        entry = storage.read(key)
        try:
            listed = parse(entry.data) if entry is not None else None
        except ValueError:
            listed = None
        if listed is None:
            listed = [_line(run) for run in latest_runs(storage, prefix)]
        lines = sorted(change(listed), key=lambda one: str(one["run_id"]), reverse=True)[:LISTED]
        data = json.dumps(lines).encode()
        try:
            if entry is None:
                storage.create(key, data)
            else:
                storage.replace(key, data, entry.etag)
        except Conflict:
            # Another run has just ended.
            continue
        break
    storage.write(f"{prefix}/{INDEX}", render_index(lines).encode())


def _line(run: QualityRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "started": run.started,
        "seconds": run.seconds,
        "success": run.success,
        "tables": [
            {"table": one.table, "version": one.version, "status": one.status, "success": one.success}
            for one in run.tables
        ],
    }


def read_run(storage: Storage, prefix: str, run_id: str) -> QualityRun:
    """Return the results of a run.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_INVALID`` if it is missing, or has another format.
    """
    key = f"{prefix}/{part(run_id)}/{RESULTS}"
    entry = storage.read(key)
    if entry is None:
        remedy = f"{prefix}/{INDEX} lists the latest runs; housekeeping removes old ones."
        raise StreamwardenError("DOCUMENT_INVALID", f"{key}: no such run", remedy=remedy)
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
