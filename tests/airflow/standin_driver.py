"""A driver without Spark: speaks the control protocol, does no work. Called like ``streamwarden.driver``.

The job's ``options`` tell it how to misbehave: ``standin_fail`` (an error code to fail with, once ``standin_after``
batches were done) and ``standin_stop_s`` (how long a stop takes).
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from streamwarden.control.documents import (
    BatchProgress,
    DriverState,
    ErrorInfo,
    Exit,
    Heartbeat,
    JobDocuments,
    Progress,
    RequestResult,
    utc_now,
)
from streamwarden.control.lease import LeaseHolder
from streamwarden.control.processes import current_process
from streamwarden.control.workspace import open_workspace
from streamwarden.errors import StreamwardenError

BATCH_S = 0.2


def say_aloud(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("profile", "config", "root", "job", "incarnation"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    workspace = open_workspace(given.profile, config=Path(given.config), root=given.root)
    documents = JobDocuments(workspace.storage, given.job)
    incarnation, process, started = given.incarnation, current_process(), utc_now()
    lease = LeaseHolder(documents, incarnation, process, workspace.profile.lease)
    signalled: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signalled.append(number))
    batch: int | None = None

    def say(state: DriverState) -> None:
        documents.heartbeat(incarnation).write(
            Heartbeat(
                incarnation=incarnation,
                at=utc_now(),
                started_at=started,
                state=state,
                process=process,
                batch=batch,
            )
        )

    def leave(error: StreamwardenError | None) -> int:
        info = ErrorInfo.of(error, traceback="Traceback: of the stand-in") if error else None
        outcome = "failed" if error else "stopped"
        documents.exit(incarnation).write(
            Exit(incarnation=incarnation, at=utc_now(), outcome=outcome, error=info, batch=batch)
        )
        lease.release()
        return 1 if error else 0

    desired = documents.desired.read()
    assert desired is not None
    options = desired.spec.options
    say_aloud(f"stand-in of {given.job} starts")
    try:
        lease.acquire(wait=workspace.profile.lease)
    except StreamwardenError as error:
        return leave(error)
    last = documents.checkpoint.storage.read(f"standin/{given.job}")
    batch = int(last.data) if last else None
    while True:
        lease.renew()
        if "standin_fail" in options and (batch or 0) >= options.get("standin_after", 0):
            say_aloud("stand-in fails as it was told")
            return leave(StreamwardenError(options["standin_fail"], "as it was told"))
        batch = 0 if batch is None else batch + 1
        documents.checkpoint.storage.write(f"standin/{given.job}", str(batch).encode())
        done = BatchProgress(batch=batch, at=utc_now(), duration_ms=int(BATCH_S * 1000), rows_in=10, rows_out=10)
        documents.progress(incarnation).write(Progress(incarnation=incarnation, at=utc_now(), last=done))
        say(DriverState.RUNNING)
        requests = documents.open_requests(incarnation)
        if requests or signalled:
            say(DriverState.STOPPING)
            time.sleep(options.get("standin_stop_s", 0))
            for request in requests:
                documents.result(request.id).write(RequestResult(id=request.id, at=utc_now(), outcome="done"))
            say_aloud("stand-in stops")
            return leave(None)
        time.sleep(BATCH_S)


if __name__ == "__main__":
    sys.exit(main())
