"""A standby driver: it waits while another driver runs the job, and takes the job over without a JVM start."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Desired, Launch
from streamwarden.runtime import spares
from streamwarden.runtime.launchers.local import driver_process, end_orphan
from streamwarden.runtime.postmortem import last_words
from streamwarden.runtime.processes import kill, process_of
from streamwarden.runtime.spares import Assignment, Taken
from streamwarden.store.documents import JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.layout import CONSOLE_LOG
from streamwarden.store.workspace import Workspace

__all__ = ["Standby", "standby"]

_START_S = 300.0
"""How long the JVM's start and the rehearsal may take on a machine under heavy load."""

_END_S = 10.0


class Standby:
    """The process of a standby driver; see :mod:`streamwarden.driver.standby` for its commands.

    Parameters
    ----------
    workspace, spec
        The workspace, and the spec that the driver will run.
    incarnation
        The driver's incarnation, once it runs the job.
    process
        The process, with input and output as pipes.
    logs
        The folder of its log files.
    state
        Whether the process rehearses work on state before it is ready: for a job that will wait for that work.
    """

    def __init__(
        self,
        workspace: Workspace,
        spec: JobSpec,
        incarnation: str,
        process: subprocess.Popen[str] | Taken,
        logs: Path,
        *,
        state: bool,
    ) -> None:
        self._workspace = workspace
        self._spec = spec
        self._incarnation = incarnation
        self._process = process
        self._logs = logs
        self._answers: queue.Queue[str | None] = queue.Queue()
        assert process.stdout is not None
        threading.Thread(target=_read, args=(process.stdout, self._answers.put), daemon=True).start()
        self._ready = self._runs = False
        self._send({"do": "prepare", "spec": spec.model_dump(mode="json"), "state": state})

    def await_ready(self, say: Callable[[], None] = lambda: None) -> None:
        """Wait for the Spark session.

        Parameters
        ----------
        say
            Called each second; may raise.

        Raises
        ------
        StreamwardenError
            ``RESCALE_FAILED``, or ``RESCALE_REHEARSAL_FAILED`` if the rehearsal killed its JVM.
        """
        if not self._ready:
            self._next(_START_S, say)
            self._ready = True

    def missing_executor(self, within: float, say: Callable[[], None]) -> str | None:
        """Wait for a cluster's executor, for some seconds; return why there may be none, or None if there is one."""
        answer = self._ask({"do": "executor", "within": within}, within + _END_S, say)
        missing: str | None = answer["missing"]
        return missing

    def digests(
        self, checkpoint: str, batch: int, partitions: int, *, timeout: float, say: Callable[[], None]
    ) -> dict[str, str]:
        """Return the digest of each store of a checkpoint's state after a batch, for a number of partitions."""
        command = {"do": "digest", "checkpoint": checkpoint, "batch": batch, "partitions": partitions}
        answer = self._ask(command, timeout, say)
        digests: dict[str, str] = answer["digests"]
        return digests

    def repartition(self, checkpoint: str, partitions: int, *, timeout: float, say: Callable[[], None]) -> None:
        """Redistribute a checkpoint's state, in place."""
        self._ask({"do": "repartition", "checkpoint": checkpoint, "partitions": partitions}, timeout, say)

    def replay(self, checkpoint: str, *, timeout: float, say: Callable[[], None]) -> list[int]:
        """Finish the open batch of a checkpoint; return the rows of each operator's state after that batch."""
        answer = self._ask({"do": "replay", "checkpoint": checkpoint}, timeout, say)
        rows: list[int] = answer["rows"]
        return rows

    def start_ahead(self, checkpoint: str, *, timeout: float, say: Callable[[], None]) -> list[int] | None:
        """Start the job's query in advance. It holds its batches until the driver runs.

        Exception: the query finishes the open batch of the checkpoint, and writes its rows nowhere.

        Returns
        -------
        list of int or None
            The rows of each operator's state after the open batch; None without an open batch.
        """
        answer = self._ask({"do": "start ahead", "checkpoint": checkpoint}, timeout, say)
        rows: list[int] | None = answer["rows"]
        return rows

    def run(self, desired: Desired, *, by: str, reason: str) -> str | None:
        """Make the standby the job's driver; return its incarnation, or None if that is impossible.

        Returns None if the process has died, has another spec, or is older than another launched driver: the latest
        incarnation counts. Also if driver hosts or a cluster start the drivers. Then the process is ended, with the
        query that it may have started.

        Parameters
        ----------
        desired
            The desired state, whose spec the driver runs.
        by, reason
            Actor and reason of the start; written to the launch document.
        """
        documents = JobDocuments(self._workspace.storage, desired.job)
        later = any(one > self._incarnation for one in documents.incarnations())
        # This machine may be no driver host: it has worked on the state, and a host or a cluster starts the driver.
        elsewhere = self._workspace.profile.launcher != "local"
        if elsewhere or later or desired.spec != self._spec or self._process.poll() is not None:
            self.end()
            return None
        end_orphan(documents)
        # Written before the driver runs, as for any driver: if this process dies here, the standby dies too, and a
        # supervisor then finds a dead driver.
        documents.launch(self._incarnation).write(
            Launch(
                incarnation=self._incarnation,
                at=utc_now(),
                by=by,
                reason=reason,
                digest=desired.digest,
                spec=desired.spec,
                process=process_of(self._process.pid),
            )
        )
        self._ask({"do": "run"}, _END_S, lambda: None)
        self._runs = True
        return self._incarnation

    def end(self) -> None:
        """End the process and its JVM at any stage, unless it already runs the job."""
        if self._process.stdin is not None:
            # Closing flushes a command that a dead process did not read, which fails; the pipe is closed regardless.
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        if self._runs:
            return
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            kill(process_of(self._process.pid))

    def _ask(self, command: dict[str, Any], timeout: float, say: Callable[[], None]) -> dict[str, Any]:
        self.await_ready(say)
        self._send(command)
        return self._next(timeout, say)

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # The process is gone; `_next` raises with the last error in its logs.
            pass

    def _next(self, timeout: float, say: Callable[[], None]) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._answers.get(timeout=1.0)
            except queue.Empty:
                say()
                if time.monotonic() < deadline:
                    continue
                raise StreamwardenError("RESCALE_FAILED", f"no answer after {timeout:.0f} s") from None
            if line is None:
                try:
                    code = self._process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    raise StreamwardenError(
                        "RESCALE_FAILED", "its Spark process accepts no commands any more"
                    ) from None
                said = last_words(self._logs).evidence or f"no error in {self._logs}"
                raise StreamwardenError("RESCALE_FAILED", f"its Spark process ended with {code}: {said}")
            answer: dict[str, Any] = json.loads(line)
            if "code" in answer:
                raise StreamwardenError(answer["code"], answer["what"])
            return answer


@contextmanager
def standby(workspace: Workspace, spec: JobSpec, *, state: bool) -> Iterator[Standby]:
    """Take a spare or start a standby driver, and end it on exit of the context, unless it runs the job by then.

    Does not wait until the process is ready: see :meth:`Standby.await_ready`.

    Parameters
    ----------
    workspace, spec, state
        As for :class:`Standby`.
    """
    incarnation = new_id()
    logs = workspace.log_dir(spec.name, incarnation)
    process: subprocess.Popen[str] | Taken | None = spares.take(
        workspace, spec, Assignment(job=spec.name, incarnation=incarnation, standby=True)
    )
    if process is None:
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / CONSOLE_LOG).open("ab") as stream:
            process = driver_process(
                workspace,
                spec.name,
                incarnation,
                "--standby",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
            )
    spare = Standby(workspace, spec, incarnation, process, logs, state=state)
    try:
        yield spare
    finally:
        spare.end()


def _read(stream: IO[str], keep: Callable[[str | None], None]) -> None:
    for line in stream:
        keep(line.rstrip("\n"))
    keep(None)
