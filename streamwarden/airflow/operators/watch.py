"""An operator that checks that each job is supervised, which a job's own DAG can't report."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError

from streamwarden.airflow.describe import dag_id_of
from streamwarden.airflow.notifications import tell
from streamwarden.airflow.operators.base import PlaceOperator
from streamwarden.errors import StreamwardenError
from streamwarden.model.supervision import HealthRecord, Supervision
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import CONTROL
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.alert_queue import UNWATCHED, unsent_due
from streamwarden.supervision.described import is_described, undescribed
from streamwarden.supervision.health_rules import Finding, Health, Level
from streamwarden.supervision.observe import observe

__all__ = ["WatchOperator", "is_supervised"]

_SUPERVISE = "supervise"
"""The task of a job's DAG that supervises the job."""

_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


def is_supervised(ti: Any, job: str) -> bool:
    """Return whether a run of a job's DAG supervises it, or will; false if only its teardown is left to run.

    Parameters
    ----------
    ti
        The running task, which queries Airflow.
    job
        The job.
    """
    dag_id = dag_id_of(job)
    if not ti.get_dr_count(dag_id=dag_id, states=["running", "queued"]):
        return False
    runs = ti.get_task_states(dag_id=dag_id, task_ids=[_SUPERVISE])
    states = [run.get(_SUPERVISE) for run in runs.values()]
    return any(str(getattr(state, "value", state)) not in _ENDED for state in states)


class WatchOperator(PlaceOperator):
    """Raises an alert for each wanted job that no run of its DAG supervises, and for each whose DAG is paused.

    This includes a job whose YAML was removed: it no longer has a DAG.

    Nothing else reports such a job: a driver that dies stays down, and changes of health reach nobody. A run may just
    be relieved by another, so it alerts only on what its last try still finds, and then fails; its retries cover that
    time. If a supervisor has given up a job, that supervisor alerts. If a notifier failed then, and as long as the
    run's `release` retried it, this task retries it. Starts and stops nothing: a job may be run manually for good
    reasons. Does not detect a dead triggerer, or that Airflow itself has stopped.

    Returns the checked jobs.

    Parameters
    ----------
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#eeeeee"

    def __init__(self, **kwargs: Any) -> None:
        # Longer than it takes until another run follows, including one that a person triggers.
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(minutes=1))
        super().__init__(**kwargs)

    def execute(self, context: Context) -> list[str]:
        """Check every deployed job; an error in a job does not affect the others."""
        ti, workspace = context["ti"], self.open()
        looked: dict[str, tuple[str, bool]] = {}
        asking: set[str] = set()
        unread: list[Exception] = []
        for job in sorted(workspace.files.folders(CONTROL)):
            try:
                health = JobDocuments(workspace.storage, job).health.read() or HealthRecord()
                looked[job] = (_unwatched(workspace, job, ti), UNWATCHED in health.rules)
                if _is_to_ask(workspace, health, job, ti):
                    asking.add(job)
            except (OSError, StreamwardenError, AirflowRuntimeError) as error:
                self.log.error("%s: %s", job, error)
                unread.append(error)
        lines = [f"{job}: {why}" for job, (why, _) in looked.items() if why]
        for line in lines:
            self.log.warning(line)
        found = "; ".join(lines)
        if any(why and not told for why, told in looked.values()) and ti.try_number <= ti.max_tries:
            raise AirflowException(f"checked once more before an alert is sent: {found}")
        # Alerts first: if a notifier hangs, each job with only a pending retry may take a minute.
        for job, (why, told) in sorted(looked.items(), key=lambda one: not any(one[1])):
            if why or told or job in asking:
                findings = (Finding(UNWATCHED, Level.CRITICAL, why, 0.0, 1.0),) if why else ()
                tell(
                    workspace,
                    job,
                    Health(findings),
                    context=context,
                    log=self.log,  # type: ignore[arg-type]
                    rules={UNWATCHED},
                )
        if found:
            raise AirflowFailException(str(StreamwardenError("JOB_UNWATCHED", found)))
        if unread:
            first = unread[0]
            raise self.fail(first) if isinstance(first, StreamwardenError) else AirflowException(str(first))
        self.log.info("%d jobs checked", len(looked))
        return list(looked)


def _is_to_ask(workspace: Workspace, health: HealthRecord, job: str, ti: Any) -> bool:
    """Return whether a notifier is due for a retry that no other task makes."""
    if not unsent_due(health):
        return False
    ours = any(change.rule == UNWATCHED for queue in health.unsent.values() for change in queue)
    if ours or not is_described(workspace, job):
        return True
    return not is_supervised(ti, job) or bool(ti.get_dag(dag_id_of(job)).is_paused)


def _unwatched(workspace: Workspace, job: str, ti: Any) -> str:
    """Return why a wanted job is not supervised; empty if it is, or if a supervisor has given it up."""
    seen = observe(workspace, job)
    if seen.desired is None or seen.desired.state != "running":
        return ""
    memory = JobDocuments(workspace.storage, job).supervision.read() or Supervision()
    if memory.ending is not None and memory.ending.incarnation == seen.incarnation and not seen.phase.alive:
        return ""
    if not is_described(workspace, job):
        # A run of its DAG may still exist, and its trigger may observe the job; but no task of it can start any more.
        return f"it is {seen.phase}, and {undescribed(job)}"
    if not is_supervised(ti, job):
        return f"it is {seen.phase}, and no run of {dag_id_of(job)} supervises it"
    if ti.get_dag(dag_id_of(job)).is_paused:
        return f"it is {seen.phase}, and {dag_id_of(job)} is paused"
    return ""
