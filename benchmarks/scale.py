"""What one job, and one savepoint, cost in places of ten, a hundred and a thousand: requests to S3, and time.

Run by ``make bench-scale``. The jobs are documents alone, as drivers write them, in a bucket of a real S3 server on
this machine. So requests are those of a bucket of Amazon's, and times are lower limits: docs/scale.md reckons with
20 ms for a request there. What Airflow and the pages cost, by the number of jobs, measure ``make bench-fleet`` and
``make bench-pages``; what state costs by its size, ``make bench-savepoint``.

Options: ``--sizes``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import goal_met, print_machine
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import FileEntry, Manifest, Origin, Record, Verification
from streamwarden.model.spec import RetentionSpec
from streamwarden.model.status import Lease
from streamwarden.model.supervision import Supervision
from streamwarden.operations.housekeeping import housekeep
from streamwarden.operations.status import job_status, metrics_targets
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints import catalog
from streamwarden.savepoints.documents import manifest_document, record_document
from streamwarden.store.each import for_each
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision.decide import decide
from streamwarden.supervision.observe import observe
from tests.s3.server import REGION, S3Server
from tests.unit.airflow.pages.made import opened, ran, spec

GROWTH = 1.25
"""Requests for a job in the largest place, relative to the smallest: flat."""

BUCKET = "scale"


class Requests:
    """Counts what a workspace sends to S3."""

    def __init__(self, workspace: Workspace) -> None:
        self.sent: Counter[str] = Counter()
        for access in (workspace.storage, workspace.files):
            client: Any = access._bucket.client  # type: ignore[union-attr]
            client.meta.events.register("before-send.s3", self._count)

    def _count(self, request: Any, **_: Any) -> None:
        listing = request.method == "GET" and "list-type=2" in request.url
        self.sent["LIST" if listing else request.method] += 1

    def of(self, act: Callable[[], object]) -> tuple[Counter[str], float]:
        """Return what an act sent, and its seconds."""
        self.sent.clear()
        began = time.perf_counter()
        act()
        return Counter(self.sent), time.perf_counter() - began


def main() -> int:
    """Measure; exit with status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Costs by the number of jobs and savepoints.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000])
    sizes = sorted(parser.parse_args().sizes)
    print_machine(1)
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        server = S3Server(Path(folder) / "s3")
        server.start()
        try:
            os.environ |= {
                "AWS_ACCESS_KEY_ID": server.access_key,
                "AWS_SECRET_ACCESS_KEY": server.secret_key,
                "AWS_ENDPOINT_URL_S3": server.endpoint,
                "AWS_REGION": REGION,
            }
            workspace = _place(Path(folder) / "place")
            requests = Requests(workspace)
            jobs = _by_jobs(workspace, requests, sizes)
            savepoints = _by_savepoints(workspace, requests, sizes)
            _by_state(workspace, requests)
        finally:
            server.stop()
    met = []
    for name, found in {**jobs, **savepoints}.items():
        met.append(goal_met(f"requests_growth[{name}]", found[-1] / found[0], GROWTH))
    return 0 if all(met) else 1


def _place(folder: Path) -> Workspace:
    local = opened(folder)
    profile = {"name": "test", "root": "root", "lease": "1h", "s3": {"bucket": BUCKET}}
    (local.config / "profiles" / "test.yaml").write_text(yaml.safe_dump(profile))
    workspace = open_workspace("test", config=local.config)
    workspace.storage._bucket.client.create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
    return workspace


def _by_jobs(workspace: Workspace, requests: Requests, sizes: list[int]) -> dict[str, list[float]]:
    """Return, by act, its requests for each job, at each number of jobs."""
    found: dict[str, list[float]] = {}
    names: list[str] = []

    def supervise() -> None:
        for job in names:
            decide(observe(workspace, job), Supervision())

    def status() -> None:
        for_each(workspace, names, lambda job: job_status(workspace, job))

    def keep_house() -> None:
        for job in names:
            housekeep(workspace, job, RetentionSpec())

    acts = {
        "a supervisor's look": supervise,
        "status": status,
        "targets of Prometheus": lambda: metrics_targets(workspace),
        "housekeeping": keep_house,
    }
    for size in sizes:
        for number in range(len(names), size):
            names.append(f"job{number:04d}")
            documents, now = ran(workspace, names[-1]), utc_now()
            (incarnation,) = documents.incarnations()
            until = now + timedelta(hours=1)
            process = current_process()
            documents.lease.write(
                Lease(
                    job=names[-1],
                    incarnation=incarnation,
                    process=process,
                    epoch=1,
                    acquired_at=now,
                    expires_at=until,
                )
            )
        for name, act in acts.items():
            _say(f"{size} jobs: {name}", size, *requests.of(act), found.setdefault(name, []))
    return found


def _by_savepoints(workspace: Workspace, requests: Requests, sizes: list[int]) -> dict[str, list[float]]:
    """Return, by act, its requests for each savepoint of a job; of the newest one, in all."""
    found: dict[str, list[float]] = {}
    job, now, made = "job0000", utc_now(), 0
    for size in sizes:
        for number in range(made, size):
            _savepoint(workspace, job, f"{now + timedelta(seconds=number):%Y%m%dT%H%M%S}000z{number:04d}")
        made = size
        _say(
            f"{size} savepoints: the newest",
            1,
            *requests.of(lambda: catalog.newest(workspace, job)),
            found.setdefault("newest savepoint", []),
        )
        _say(
            f"{size} savepoints: the list",
            size,
            *requests.of(lambda: catalog.savepoints(workspace, job)),
            found.setdefault("list of savepoints", []),
        )
    return found


def _by_state(workspace: Workspace, requests: Requests) -> None:
    """Copy and hash a gigabyte of state as a savepoint does, in files as large as RocksDB makes them."""
    size = 64 * 2**20
    names = [f"{number:02d}.sst" for number in range(2**30 // size)]
    for name in names:
        workspace.files.write(f"state/{name}", os.urandom(2**20) * 64)
    pairs = [(f"state/{name}", f"copy/{name}") for name in names]
    _say("a gigabyte of state: copied by the server", 1, *requests.of(lambda: workspace.files.copy_many(pairs)), [])
    keys = [target for _, target in pairs]
    _say("a gigabyte of state: hashed", 1, *requests.of(lambda: workspace.files.hash_many(keys)), [])


def _say(what: str, by: int, sent: Counter[str], seconds: float, found: list[float]) -> None:
    each = ", ".join(f"{name} {number / by:.2f}" for name, number in sorted(sent.items()))
    print(f"{what}: {seconds:.2f} s, {seconds / by * 1000:.1f} ms each; requests each: {each}", flush=True)
    found.append(sum(sent.values()) / by)


def _savepoint(workspace: Workspace, job: str, name: str) -> None:
    of, now = spec(job), utc_now()
    common: dict[str, Any] = {"id": name, "job": job, "origin": Origin.PERIODIC, "by": "bench"}
    manifest = Manifest(
        **common,
        taken_at=now,
        took_s=1,
        parent=None,
        generation=1,
        checkpoint=f"checkpoints/{job}/g000001",
        batch=3,
        watermark_ms=0,
        sources=[],
        settings={},
        operators=[],
        sinks=[],
        versions={},
        spec=of,
        digest=of.digest(),
        files=[FileEntry(path="metadata", size=1, sha256="")] * 200,
    )
    verified = Verification(verdict="verified", at=now, by="bench", took_s=0, files=1, bytes=1)
    record = Record.model_validate({**common, "state": "complete", "at": now, "verification": verified})
    workspace.storage.write(f"{savepoint_checkpoint_key(job, name)}/metadata", b"x")
    workspace.storage.write(manifest_document(workspace, job, name).key, manifest.model_dump_json().encode())
    workspace.storage.write(record_document(workspace, job, name).key, record.model_dump_json().encode())


if __name__ == "__main__":
    sys.exit(main())
