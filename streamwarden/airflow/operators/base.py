"""The base of the operators: the place, Airflow exceptions, and termination from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.log import mask_secret

from streamwarden.errors import StreamwardenError
from streamwarden.operations.workflow import Interrupted
from streamwarden.redaction import secrets_of
from streamwarden.store.workspace import Workspace, open_workspace

__all__ = [
    "ALL_JOBS",
    "InterruptibleOperator",
    "JobOperator",
    "PlaceOperator",
    "ProgressLog",
    "holder_of",
    "is_true",
    "person_of",
]

ALL_JOBS = "all"
"""The value of an operator's `job` that selects all jobs."""

_PROGRESS_EVERY_S = 5.0


class PlaceOperator(BaseOperator):
    """An operator that works in a place.

    Parameters
    ----------
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    def __init__(
        self, *, profile: str | None = None, config: str | None = None, root: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.profile = profile
        self.config = config
        self.root = root

    def open(self) -> Workspace:
        """Open the place; parameters that are not given come from the worker's environment."""
        # Our texts have no secrets. But Airflow logs a failed task's whole chain of exceptions, with those of clients.
        mask_secret(list(secrets_of()))
        try:
            return open_workspace(self.profile, config=Path(self.config) if self.config else None, root=self.root)
        except StreamwardenError as error:
            raise self.fail(error) from error

    def fail(self, error: StreamwardenError) -> AirflowException:
        """Return the exception to raise: a final one if a retry can't help."""
        return AirflowException(str(error)) if error.retryable else AirflowFailException(str(error))


class JobOperator(PlaceOperator):
    """An operator that works on one job.

    Parameters
    ----------
    job
        The job. (templated)
    """

    template_fields: Sequence[str] = ("job",)

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job


class InterruptibleOperator(PlaceOperator):
    """An operator whose work cleans up when its task is terminated from outside.

    If a task is marked failed, or its worker shuts down, Airflow sends SIGTERM, and SIGKILL five seconds later. Its own
    SIGTERM handler calls :meth:`on_kill` and returns, so the work would be cut off halfway. Here the work ends by an
    exception and releases what it holds: a partial savepoint, a JVM, an operation.

    Does not decide about retries. If a person marked the task, Airflow has set its state and ignores this result; if
    the worker shut down, Airflow retries the task.
    """

    _interruptible = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Run the body so that SIGTERM can end it. Not for calls to Airflow: a partial message blocks it forever."""
        self._interruptible = True
        try:
            yield
        except Interrupted:
            what = "ended from outside: marked failed or successful, cleared, or its worker shuts down"
            raise AirflowException(what) from None
        finally:
            self._interruptible = False

    def on_kill(self) -> None:
        """End the work. The signal handler calls this while the work runs."""
        if self._interruptible:
            # Once only: a second signal must not interrupt the cleanup.
            self._interruptible = False
            raise Interrupted


class ProgressLog:
    """Logs progress: each new step at once, then a line every five seconds. May be called very often.

    Parameters
    ----------
    log
        The task's log.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._said = ""
        self._at = 0.0

    def __call__(self, step: str, done: int, total: int) -> None:
        """Log a report; `total` is 0 if the step has no measure."""
        now = time.monotonic()
        if step == self._said and (total == 0 or now - self._at < _PROGRESS_EVERY_S):
            return
        self._said, self._at = step, now
        if total:
            self._log.info("%s: %d of %d", step, done, total)
        else:
            self._log.info("%s", step)


def holder_of(context: Context) -> str:
    """Return the id of a DAG run; it is the same in each try of its tasks."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}"


def person_of(context: Context) -> str:
    """Return a description of the person who triggered the run; empty if there is none or Airflow does not name it."""
    name = getattr(context.get("dag_run"), "triggering_user_name", None)
    return f", for {name}" if name else ""


def is_true(value: object) -> bool:
    """Parse a flag; Airflow renders a template to text."""
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "1", "yes")
