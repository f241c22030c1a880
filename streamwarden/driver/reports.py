"""What a driver reports of its batches outside the control documents: metrics, and rows of ``job_progress``."""

from __future__ import annotations

from streamwarden.driver.export import Export, open_export
from streamwarden.driver.heartbeat import Heart
from streamwarden.driver.metrics import DriverMetrics, DriverView
from streamwarden.driver.recorder import BatchRecorder
from streamwarden.errors import StreamwardenError
from streamwarden.model.progress import BatchProgress
from streamwarden.model.supervision import Supervision
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.decide import assess, decide
from streamwarden.supervision.health_rules import Health
from streamwarden.supervision.observe import observe

__all__ = ["Reports"]

_LAST_METRICS_S = 5.0
_LAST_ROWS_S = 20.0
"""Maximum seconds that the end waits for a collector, and for the table of batches. The lease is renewed meanwhile."""


class Reports:
    """The metrics and the rows of one driver. Until they are opened, and if the profile wants none, nothing happens.

    Parameters
    ----------
    workspace, job, incarnation
        The driver's.
    heart
        Its state, which the metrics show.
    """

    def __init__(self, workspace: Workspace, job: str, incarnation: str, heart: Heart) -> None:
        self._workspace, self._job, self._incarnation, self._heart = workspace, job, incarnation, heart
        self._documents = JobDocuments(workspace.storage, job)
        self._export: Export | None = None
        self._metrics: DriverMetrics | None = None
        self._recorder: BatchRecorder | None = None

    def open_metrics(self) -> None:
        """Begin to export metrics."""
        self._export = open_export(self._workspace.profile.metrics, self._job, self._incarnation)
        if self._export is not None:
            self._heart.metrics = self._export.address
            self._metrics = DriverMetrics(self._export.provider, self._job, self._view, self._health)

    def open_recorder(self) -> None:
        """Begin to record batches. The generation must be known."""
        spec = self._workspace.profile.progress_table
        if spec.enabled:
            self._recorder = BatchRecorder(self._workspace, self._job, self._incarnation, self._heart.generation, spec)
            self._recorder.start()

    def failed_try(self) -> None:
        """Count a failed try of a batch."""
        if self._metrics is not None:
            self._metrics.failed_try()

    def committed(self, done: BatchProgress) -> None:
        """Report a batch."""
        if self._metrics is not None:
            self._metrics.batch(done)
        if self._recorder is not None:
            self._recorder.add(done)

    def close(self) -> None:
        """Write the last rows and send the last metrics. Waits 25 seconds at most."""
        if self._recorder is not None:
            self._recorder.close(_LAST_ROWS_S)
        if self._export is not None:
            self._export.close(_LAST_METRICS_S)

    def _view(self) -> DriverView:
        return DriverView(self._heart.state, self._heart.generation, self._heart.failures, self._heart.idle)

    def _health(self) -> Health | None:
        try:
            seen = observe(self._workspace, self._job)
            memory = self._documents.supervision.read() or Supervision()
        except (OSError, StreamwardenError):
            # Called at the collection of metrics: the heartbeat already shows that a store is unavailable.
            return None
        return assess(seen, memory, decide(seen, memory))
