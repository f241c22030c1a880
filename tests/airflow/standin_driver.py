"""A driver without Spark: speaks the control protocol, and writes the checkpoint of a stateless job without outputs.

Called like ``streamwarden.driver``. The job's ``options`` select its faults:

``standin_fail``: the code of the error to raise after ``standin_after`` batches.

``standin_leaks``: whether the text of that error, and what it prints then, have the secrets of its environment.

``standin_mute``: the number of batches after which it does nothing, but stays alive. ``standin_idle``: the same, but
it reports that there is no input.

``standin_keys``: the number of keys that each batch adds to a reported state.

``standin_batch_s``, ``standin_stop_s``: the duration of a batch, and of a stop.

Three more options name files that it waits for. ``standin_gate``: after its report that it runs, before any work.
``standin_stop_gate``: in a stop. ``standin_end_gate``: after the end of its query.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.progress import BatchProgress, Progress
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.status import CheckpointRef, DriverState, Exit, Heartbeat
from streamwarden.runtime.lease import LeaseHolder
from streamwarden.runtime.processes import current_process
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.canaries import leak

BATCH_S = 0.2


def say_aloud(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def stood_by() -> bool:
    """Answer as a standby driver without state; return whether it must run."""
    for line in sys.stdin:
        runs = json.loads(line)["do"] == "run"
        say_aloud('{"running": true}' if runs else '{"ready": true}')
        if runs:
            # The reader of the answers ends long before this.
            os.dup2(2, 1)
            return True
    return False


def checkpoint_of(workspace: Workspace, documents: JobDocuments) -> CheckpointRef:
    found = documents.checkpoint.read()
    if found is None:
        path = f"checkpoints/{documents.job}/g000001"
        found = CheckpointRef(job=documents.job, generation=1, path=path, since=utc_now(), reason="first start")
        documents.checkpoint.create(found)
        workspace.files.write(f"{path}/metadata", b'{"id":"stand-in"}')
    return found


def commit(workspace: Workspace, path: str, batch: int) -> None:
    """Write what Spark writes of a batch without state, read from a folder of files."""
    offset = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{{"logOffset":{batch}}}'
    workspace.files.write(f"{path}/offsets/{batch}", offset.encode())
    workspace.files.write(f"{path}/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("profile", "config", "root", "job", "incarnation"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--standby", action="store_true")
    given = parser.parse_args()
    if given.standby and not stood_by():
        return 0
    workspace = open_workspace(given.profile, config=Path(given.config), root=given.root)
    documents = JobDocuments(workspace.storage, given.job)
    incarnation, process, started = given.incarnation, current_process(), utc_now()
    lease = LeaseHolder(documents, incarnation, process, workspace.profile.lease)
    signalled: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signalled.append(number))
    batch: int | None = None
    generation, idle_at = 0, None

    def say(state: DriverState, *, query_ended: bool = False) -> None:
        documents.heartbeat(incarnation).write(
            Heartbeat(
                incarnation=incarnation,
                at=utc_now(),
                started_at=started,
                state=state,
                process=process,
                generation=generation,
                batch=batch,
                idle=idle_at is not None,
                idle_at=idle_at,
                query_ended=query_ended,
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

    def shut(gate: str) -> bool:
        return gate in options and not Path(options[gate]).exists()

    say_aloud(f"stand-in of {given.job} starts")
    try:
        lease.acquire(wait=workspace.profile.lease)
    except StreamwardenError as error:
        return leave(error)
    reference = checkpoint_of(workspace, documents)
    generation = reference.generation
    batch = CheckpointReader(workspace.storage, reference.path).last_commit()
    done, ended_at = 0, time.monotonic() - BATCH_S
    recent: list[BatchProgress] = []
    while True:
        lease.renew()
        held = shut("standin_gate")
        if not held and "standin_fail" in options and (batch or 0) >= options.get("standin_after", 0):
            words = leak() if options.get("standin_leaks") else "as it was told"
            say_aloud(f"stand-in fails {words}")
            return leave(StreamwardenError(options["standin_fail"], words))
        idle_at = utc_now() if done >= options.get("standin_idle", 1_000_000) else None
        if not held and idle_at is None and done < options.get("standin_mute", 1_000_000):
            batch = 0 if batch is None else batch + 1
            commit(workspace, reference.path, batch)
            keys = options.get("standin_keys", 0) * (done + 1)
            # All of its time, so that a slow machine's batches are longer ones and not fewer short ones.
            took, ended_at = time.monotonic() - ended_at, time.monotonic()
            last = BatchProgress(
                batch=batch, at=utc_now(), duration_ms=int(took * 1000), rows_in=10, rows_out=10, state_rows=keys
            )
            recent = [*recent, last][-50:]
            documents.progress(incarnation).write(
                Progress(incarnation=incarnation, at=utc_now(), last=last, recent=recent)
            )
            done += 1
        say(DriverState.RUNNING)
        if documents.stop(incarnation).read() is not None or signalled:
            say(DriverState.STOPPING)
            time.sleep(options.get("standin_stop_s", 0))
            while (stopping := shut("standin_stop_gate")) or shut("standin_end_gate"):
                lease.renew()
                say(DriverState.STOPPING, query_ended=not stopping)
                time.sleep(0.1)
            say_aloud("stand-in stops")
            return leave(None)
        time.sleep(options.get("standin_batch_s", BATCH_S))


if __name__ == "__main__":
    sys.exit(main())
