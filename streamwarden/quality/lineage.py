"""Runs of OpenLineage: one for `gate watch`, and a child run for each decision about a table.

See docs/lineage.md for what is sent. Nothing is imported or sent unless a transport is configured.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from streamwarden.model.gate import Decision
from streamwarden.quality.lineage_sender import Sender, configured_client
from streamwarden.storage import Conflict
from streamwarden.store.workspace import Workspace

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import RunFacet

__all__ = ["RUNNING_S", "DecisionRun", "Lineage", "RunOf", "open_lineage"]

RUNNING_S = 300.0
"""Seconds between two RUNNING events of `gate watch`. 300: they only tell a gate that goes on from one that was killed;
what it decides is in the runs of the tables."""

_log = logging.getLogger(__name__)


class RunOf(NamedTuple):
    """A run of a job, as a `parent` facet names it."""

    namespace: str
    job: str
    run: str


class Lineage:
    """The runs of one process of the gate.

    Parameters
    ----------
    workspace
        Where the tables are.
    sender
        Sends the events; None: nothing is sent.
    """

    def __init__(self, workspace: Workspace, sender: Sender | None = None) -> None:
        self.workspace = workspace
        self._sender = sender
        self._namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "streamwarden"
        self._parent = _given("OPENLINEAGE_PARENT_ID")
        self._root = _given("OPENLINEAGE_ROOT_PARENT_ID")
        self._watch: RunOf | None = None
        self._said = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Enter a run of the job `gate`: START, and at the end COMPLETE, or FAIL after an exception."""
        run = self._watch = self.new_run("gate")
        self._said = time.monotonic()
        self.emit("START", run, self._parent)
        try:
            yield
        except BaseException as error:
            self.emit_error(error, run, self._parent)
            raise
        self.emit("COMPLETE", run, self._parent)

    def still_watching(self) -> None:
        """Send RUNNING if that is due. Called from the loop that decides: a gate that hangs sends none."""
        if time.monotonic() >= self._said + RUNNING_S:
            self._said = time.monotonic()
            self.emit("RUNNING", self._watch, self._parent)

    @contextmanager
    def deciding(self, table: str, *, has_suite: bool) -> Iterator[DecisionRun]:
        """Enter a run of the job `gate.TABLE`: FAIL after an exception, ABORT if another gate was faster.

        START is sent by :meth:`DecisionRun.start`, when there is something to decide.

        Parameters
        ----------
        has_suite
            Whether an exception before the start is a failed run. False for a table that may not exist: a mistyped
            name must not become a job.
        """
        run = DecisionRun(self, table, self._watch or self._parent)
        try:
            yield run
        except BaseException as error:
            if has_suite:
                run.start()
            run.failed(error)
            raise

    def new_run(self, job: str) -> RunOf | None:
        """Return a new run of a job; None if nothing is sent."""
        if self._sender is None:
            return None
        from streamwarden.quality.lineage_events import new_run_id

        return RunOf(self._namespace, job, new_run_id())

    def emit(
        self,
        kind: str,
        run: RunOf | None,
        parent: RunOf | None,
        *,
        facets: dict[str, RunFacet] | None = None,
        inputs: list[InputDataset] | None = None,
        outputs: list[OutputDataset] | None = None,
    ) -> None:
        """Send an event of a run, if there is one."""
        if self._sender is None or run is None:
            return
        from streamwarden.quality.lineage_events import run_event

        root = self._root or self._parent
        self._sender.send(run_event(kind, run, parent, root, facets or {}, inputs or [], outputs or []))

    def emit_error(self, error: BaseException, run: RunOf | None, parent: RunOf | None) -> None:
        """Send what an exception means to a run: ABORT if it was cut off, or another gate was faster; else FAIL."""
        if run is not None:
            from streamwarden.quality.lineage_events import error_facets

            is_cut_off = isinstance(error, Conflict) or not isinstance(error, Exception)
            self.emit("ABORT" if is_cut_off else "FAIL", run, parent, facets=error_facets(error))

    def close(self) -> None:
        """Send what waits to be sent, for a bounded time."""
        if self._sender is not None:
            self._sender.close()


class DecisionRun:
    """The run of one decision.

    Parameters
    ----------
    lineage
        Sends its events.
    table
        The table.
    parent
        The run that it is part of.
    """

    def __init__(self, lineage: Lineage, table: str, parent: RunOf | None) -> None:
        self._lineage = lineage
        self._table = table
        self._parent = parent
        self._run: RunOf | None = None

    def start(self) -> None:
        """Send START, once."""
        if self._run is None:
            self._run = self._lineage.new_run(f"gate.{self._table}")
            self._lineage.emit("START", self._run, self._parent)

    def ended(self, decision: Decision | None) -> None:
        """Send COMPLETE with what was found, also if that is a hold; ABORT if another gate has decided instead."""
        if self._run is None:
            return
        if decision is None:
            self._lineage.emit("ABORT", self._run, self._parent)
            return
        from streamwarden.quality import lineage_events

        workspace = self._lineage.workspace
        inputs, outputs = [], []
        try:
            inputs = [lineage_events.checked_table(workspace, self._table, decision)]
            outputs = lineage_events.published_table(workspace, self._table, decision)
        except Exception as error:
            # The decision is made, whatever can't be read of it again.
            _log.warning("%s: a lineage event lacks what was decided: %s", self._table, error)
        facets = lineage_events.tag_facets(decision)
        self._lineage.emit("COMPLETE", self._run, self._parent, facets=facets, inputs=inputs, outputs=outputs)

    def failed(self, error: BaseException) -> None:
        """Send ABORT if the run was cut off, else FAIL; nothing if it has not started."""
        self._lineage.emit_error(error, self._run, self._parent)


@contextmanager
def open_lineage(workspace: Workspace) -> Iterator[Lineage]:
    """Yield the lineage of this process, which sends events if a transport is configured.

    The end waits at most :data:`~streamwarden.quality.lineage_sender.CLOSE_S` for events that are not sent.
    """
    client = configured_client()
    lineage = Lineage(workspace, Sender(client) if client is not None else None)
    try:
        yield lineage
    finally:
        lineage.close()


def _given(variable: str) -> RunOf | None:
    """Return the run that started this process, as OpenLineage's integrations pass it on: NAMESPACE/JOB/RUN."""
    given = os.environ.get(variable)
    if not given:
        return None
    # A namespace may be an address, with slashes of its own.
    parts = given.rsplit("/", 2)
    try:
        namespace, job, run = parts
        return RunOf(namespace, job, str(UUID(run)))
    except ValueError:
        _log.warning("%s is no NAMESPACE/JOB/RUN with a UUID: %s", variable, given)
        return None
