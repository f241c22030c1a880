"""What the operators share: the place, Airflow's words for an error, and an end from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.errors import StreamwardenError
from streamwarden.operations.workflow import Interrupted
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
"""What to give an operator as job for every one."""

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
        """Open the place; what is not given comes from the worker's environment."""
        try:
            return open_workspace(self.profile, config=Path(self.config) if self.config else None, root=self.root)
        except StreamwardenError as error:
            raise self.fail(error) from error

    def fail(self, error: StreamwardenError) -> AirflowException:
        """Return the exception to raise: a final one if starting again can't help."""
        return AirflowException(str(error)) if error.retryable else AirflowFailException(str(error))


class JobOperator(PlaceOperator):
    """An operator that does something with one job.

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
    """An operator whose work tidies up after itself when its task is ended from outside.

    Airflow sends a task that is marked failed, or whose worker shuts down, SIGTERM and five seconds later SIGKILL. Its
    own answer to SIGTERM is to call :meth:`on_kill` and go on, so without this the work would be cut off in its midst.
    Here it ends by an exception, and whatever it holds is let go: half a savepoint, a JVM, an operation.

    Does not decide about retries: if it was a person, Airflow knows the task's state already and drops what it says; if
    it was a shutdown, the task is tried again.
    """

    _interruptible = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Do this work so that it can be ended from outside. Not for what talks to Airflow: half a message hangs it."""
        self._interruptible = True
        try:
            yield
        except Interrupted:
            what = "ended from outside: marked failed or successful, cleared, or its worker shuts down"
            raise AirflowException(what) from None
        finally:
            self._interruptible = False

    def on_kill(self) -> None:
        """End the work, from within the signal's handler: this runs in the midst of it."""
        if self._interruptible:
            # Once: a second signal must not cut off the tidying up.
            self._interruptible = False
            raise Interrupted


class ProgressLog:
    """Logs how far work is: each new step at once, then a line every five seconds. Made to be called very often.

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
        """Take a report; `total` is 0 for words without a measure."""
        now = time.monotonic()
        if step == self._said and (total == 0 or now - self._at < _PROGRESS_EVERY_S):
            return
        self._said, self._at = step, now
        if total:
            self._log.info("%s: %d of %d", step, done, total)
        else:
            self._log.info("%s", step)


def holder_of(context: Context) -> str:
    """Return what names a DAG run, the same in each try of its tasks."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}"


def person_of(context: Context) -> str:
    """Return who has triggered the run, in words; nothing where it was no person, or Airflow does not say."""
    name = getattr(context.get("dag_run"), "triggering_user_name", None)
    return f", for {name}" if name else ""


def is_true(value: object) -> bool:
    """Read a flag, which is a text once Airflow has filled in a template."""
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "1", "yes")
