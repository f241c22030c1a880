"""Batches' progress and a desired state made by hand, and a place to keep them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import yaml

from streamwarden.model.progress import BatchProgress, OperatorProgress, SourceProgress
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Desired
from streamwarden.store.workspace import Workspace, open_workspace

START = datetime(2026, 3, 8, 12, tzinfo=UTC)


def made_batch(batch: int, **fields: Any) -> BatchProgress:
    """Make one whose figures all differ."""
    given: dict[str, Any] = {
        "batch": batch,
        "at": START + timedelta(seconds=batch),
        "duration_ms": 2_500,
        "rows_in": 100,
        "rows_out": 80,
        "rows_quarantined": 7,
        "rows_duplicate": 5,
        "rows_per_second": 40.0,
        "watermark": START - timedelta(minutes=30),
        "watermark_lag_s": 1800.5,
        "late_rows": 3,
        "state_rows": 30,
        "state_bytes": 3000,
        "operators": [
            OperatorProgress(
                id=0,
                name="stateStoreSave",
                rows=10,
                bytes=1000,
                metrics={
                    "rocksdbSstFileSize": 77,
                    "rocksdbReadBlockCacheHitCount": 9,
                    "rocksdbTotalCompactionLatencyMs": 1_500,
                },
            ),
            OperatorProgress(id=1, name="dedupe", rows=20, bytes=2000),
        ],
        "commit_ms": 700,
        "checkpoint_ms": 200,
        "tries": 1,
        "process_bytes": 900_000_000,
        "source": SourceProgress(unit="files", taken=2, pending=4),
    }
    return BatchProgress(**{**given, **fields})


def made_desired(spec: JobSpec, state: Literal["running", "suspended"] = "running") -> Desired:
    """Make what a deploy or a stop writes."""
    return Desired(
        job=spec.name,
        state=state,
        spec=spec,
        digest=spec.digest(),
        profile="test",
        updated_at=utc_now(),
        updated_by="test",
    )


def make_place(folder: Path, **profile: Any) -> Workspace:
    """Make a place to run without jobs."""
    config = folder / "config"
    for name in ("jobs", "profiles"):
        (config / name).mkdir(parents=True, exist_ok=True)
    content = {"name": "test", "root": str(folder / "root"), **profile}
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump(content))
    return open_workspace("test", config=config)
