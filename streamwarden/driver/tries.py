"""Failed tries of a batch: counted, explained, and waited for until another can't help."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from streamwarden.driver.causes import Cause, Failure, explain, headline
from streamwarden.driver.heartbeat import Heart
from streamwarden.driver.jvm import is_context_stopped, is_unanswered, jvm_end
from streamwarden.errors import CATALOGUE, OUTAGES, StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import DriverState
from streamwarden.runtime.failure_signatures import Places

__all__ = ["Tries"]

_log = logging.getLogger(__name__)

_NOT_HERE = ("OUT_OF_MEMORY", "JVM_DIED", "SPARK_CONTEXT_LOST")
"""Transient failures that this process can't survive: its JVM or its SparkContext is gone, or about to go."""

_READ_AGAIN = ("SOURCE_SCHEMA_CHANGED",)
"""Failures that reading the source's current schema once may fix; a second time can't help."""

_AWAY = OUTAGES | {"SCHEMA_REGISTRY_UNREACHABLE", "SERVING_UNREACHABLE"}
"""A server that the batch needs does not answer: no failure of the job."""

_AWAY_S = 600.0
"""How long such tries don't count, from the first one on: longer than a server's restart or failover takes. After that
the driver ends as usual, since another process or another machine may reach what this one can't."""

_AWAY_POLL_S = 15.0
"""The longest wait before such a try is repeated: the job is to go on soon after the server does."""


class Tries:
    """The failed tries of a driver's batches.

    Parameters
    ----------
    heart
        Shows their number, and hears a stop during a wait.
    logs
        The folder with the logs of the driver's JVM.
    failed
        Called for each failed try.

    Attributes
    ----------
    session
        The session whose JVM may have caused a failure; None before there is one.
    job_file
        The job's module, whose lines are named in errors.
    places
        The job's tables and folders, which Spark's errors name.
    trace
        The traceback of the failure that ended the driver.
    """

    def __init__(self, heart: Heart, logs: Path, failed: Callable[[], None]) -> None:
        self._heart = heart
        self._logs = logs
        self._failed = failed
        # The listener's thread resets the count of failures that the driver's thread increments.
        self._counting = threading.Lock()
        # The batch after which the source's columns were read again; none yet.
        self._read_again: tuple[int | None] | None = None
        # When a server was first away, and how many tries have failed by that since the last commit.
        self._away_since: float | None = None
        self._away_tries = 0
        self.session: SparkSession | None = None
        self.job_file: str | None = None
        self.places = Places()
        self.trace: str | None = None

    def survive(self, spec: JobSpec, failure: Failure) -> None:
        """Count a failed try and wait; raise after too many consecutive failures, or if another try can't help.

        A try that fails because a server is away counts only after ten minutes of that.
        """
        self._heart.check()
        with self._counting:
            self._heart.failures += 1
        self._failed()
        cause = self.explain(failure)
        _log.error("try %d of the batch after %s failed: %s", self._heart.failures, self._heart.batch, cause.trace)
        hopeless = cause.code is not None and not CATALOGUE[cause.code].retryable
        # Independent of earlier failures and of the job's limit: this is not a failure of the job.
        again = cause.code in _READ_AGAIN and self._read_again != (self._heart.batch,)
        if again:
            self._read_again = (self._heart.batch,)
            hopeless = False
        if hopeless or cause.code in _NOT_HERE:
            self.trace = cause.trace
            raise StreamwardenError(cause.code or "BATCH_FAILED", f"{spec.name}: {cause.line}", remedy=cause.remedy)
        away = cause.code in _AWAY
        waited_for = away and self._is_waited_for()
        counted = self._heart.failures - self._away_tries
        if counted > spec.failures.tolerable_consecutive and not (again or waited_for):
            self.trace = cause.trace
            what = f"{spec.name}: {self._heart.failures} failed tries in a row; the last: {cause.line}"
            raise StreamwardenError(cause.code or "BATCH_FAILED", what, remedy=cause.remedy)
        wait = spec.failures.wait_after(self._heart.failures).total_seconds()
        wait = min(wait, _AWAY_POLL_S) if away else wait
        self._heart.say(DriverState.RETRYING, f"try {self._heart.failures} failed, next in {wait:.0f} s: {cause.line}")
        self._heart.stop.wait(wait)

    def committed(self, tries: int) -> None:
        """Forget the failed tries of a batch that was committed at the last of so many.

        Its report may come after the next batch's tries have begun.
        """
        with self._counting:
            self._heart.failures = max(self._heart.failures - (tries - 1), 0)
            self._away_since, self._away_tries = None, min(self._away_tries, self._heart.failures)

    def explain(self, failure: Failure) -> Cause:
        """Return why a try failed."""
        cause = self._cause(failure)
        # After a JVM's death every call raises a different, useless error; its log may contain the cause.
        gone = not failure.text or is_unanswered(failure.error)
        ended = jvm_end(self.session, self._logs, gone=gone)
        if ended is not None:
            return Cause(*ended, cause.trace)
        if is_context_stopped(self.session):
            return Cause("SPARK_CONTEXT_LOST", f"the SparkContext is stopped: {cause.line}", cause.trace)
        return cause

    def not_to_be_opened(self, spec: JobSpec, error: AnalysisException) -> StreamwardenError:
        """Return the final error for a query that Spark can't analyze."""
        failure = Failure.of(error)
        cause = self._cause(failure)
        code = cause.code
        if code is None and "[DELTA_SCHEMA_NOT_SET]" in failure.text:
            # Delta's error for a table whose log is gone; this driver came so far only because the table existed.
            code = "SOURCE_DATA_GONE"
        self.trace = cause.trace
        if code == "JOB_CODE_FAILED":
            # Final, unlike in a batch, whose rows may be the cause: what can't be analyzed now can't be later.
            remedy = "Correct this line of the module, then deploy the job again."
            return StreamwardenError(code, f"{spec.name}: {cause.line}", remedy=remedy, retryable=False)
        return StreamwardenError(code or "SOURCE_INVALID", f"{spec.name}: {headline(error)}")

    def _is_waited_for(self) -> bool:
        """Return whether to wait for a server that is away, and count the try as one that it has failed."""
        with self._counting:
            now = time.monotonic()
            if self._away_since is None:
                self._away_since = now
            if now - self._away_since >= _AWAY_S:
                return False
            self._away_tries += 1
            return True

    def _cause(self, failure: Failure) -> Cause:
        return explain(failure, job_file=self.job_file, places=self.places)
