"""Drivers as pods of a Kubernetes cluster: Spark's cluster deploy mode."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from typing_extensions import override

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.status import Launch
from streamwarden.runtime.failure_signatures import OUT_OF_HEAP_EXITS
from streamwarden.runtime.launchers.interface import KILL_S, FoundDriver, Launcher, StartState
from streamwarden.runtime.launchers.kubernetes_api import PodApi, open_api
from streamwarden.runtime.launchers.submission import SUBMISSION, start_submission
from streamwarden.runtime.polling import Deadline
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["INCARNATION", "JOB", "KubernetesLauncher", "pod_name"]

JOB, INCARNATION = "streamwarden/job", "streamwarden/incarnation"
"""Labels of the pods of drivers and executors."""

_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError)
"""What it raises to read an answer that is JSON, and has another structure than Kubernetes' own."""

_KEPT = 3
"""So many ended pods of a job are kept, for their logs."""


class KubernetesLauncher(Launcher):
    """Submits drivers to a Kubernetes cluster, where they run as pods.

    A driver is found again by its pod's name, which is made of job and incarnation. Nothing else is kept.
    """

    def __init__(self, workspace: Workspace) -> None:
        spec = workspace.profile.kubernetes
        assert spec is not None, "the profile's model requires it"
        self._workspace = workspace
        self._spec = spec

    @override
    def start(self, job: str, launch: Launch) -> None:
        """Start the submission, detached. A refusal is written as the driver's exit; see :func:`start_submission`."""
        api = self._api()
        # Asked first: a server that is gone costs no JVM, and a pod that is there is not submitted again.
        if api.pod(pod_name(job, launch.incarnation)) is not None:
            return
        start_submission(self._workspace, job, launch.incarnation)
        self.remove_ended(api, job)

    @override
    def find(self, job: str, incarnation: str) -> FoundDriver:
        """Look for the pod. Unknown if the API server does not answer."""
        try:
            pod = self._api().pod(pod_name(job, incarnation))
        except StreamwardenError as error:
            return FoundDriver(StartState.UNKNOWN, reason=error.what)
        documents = JobDocuments(self._workspace.storage, job)
        ran = documents.heartbeat(incarnation).read() is not None
        if pod is not None:
            try:
                return _found(pod, ran=ran)
            except _UNREADABLE as error:
                why = f"{type(error).__name__}: {error}"[:200]
                return FoundDriver(StartState.UNKNOWN, reason=f"the API server's answer is no pod: {why}")
        launch = documents.launch(incarnation).read()
        # After that, it never was submitted.
        if not ran and launch is not None and utc_now() - launch.at < SUBMISSION:
            return FoundDriver(StartState.WAITING, launch.at, "it is being submitted, and has no pod yet")
        return _ended("its pod is gone: deleted, or never submitted", ran=ran)

    @override
    def kill(self, job: str, incarnation: str) -> bool:
        """Delete the pod without time for an end; return whether its node confirmed the end within 10 s.

        A node that is gone confirms nothing: the lease keeps that driver from writing.
        """
        name = pod_name(job, incarnation)
        try:
            api = self._api()
            # 1 and not 0: with 0 the API server forgets the pod at once, whether or not its processes have ended.
            if not api.delete(name, grace_s=1):
                return False
            deadline = Deadline(KILL_S)
            while deadline.pause(0.25):
                if api.pod(name) is None:
                    return True
        except StreamwardenError:
            pass
        return False

    @override
    def logs(self, job: str, incarnation: str, lines: int) -> str | None:
        """Return the end of what the pod printed; None if it is gone, or can't be read."""
        try:
            return self._api().log(pod_name(job, incarnation), lines)
        except StreamwardenError:
            return None

    def _api(self) -> PodApi:
        server = self._workspace.profile.master.removeprefix("k8s://")
        return open_api(server, self._spec.namespace, self._spec.context)

    def remove_ended(self, api: PodApi, job: str) -> None:
        """Delete the oldest ended driver pods of a job: Kubernetes keeps thousands. Raises no error."""
        try:
            pods = api.pods(f"{JOB}={job},spark-role=driver")
            ended = [pod["metadata"] for pod in pods if pod["status"].get("phase") in ("Succeeded", "Failed")]
            for pod in sorted(ended, key=lambda one: str(one["labels"].get(INCARNATION)))[:-_KEPT]:
                api.delete(pod["name"])
        except (StreamwardenError, *_UNREADABLE):
            # The driver is being submitted; the next start tidies up.
            return


def pod_name(job: str, incarnation: str) -> str:
    """Return the name of a driver's pod. Its executors are named after it."""
    # Spark takes at most 47 characters for executors, and an incarnation has 23.
    label = re.sub(r"[^a-z0-9]+", "-", job.lower())[:16].strip("-")
    return f"{label}-{incarnation.lower()}"


def _found(pod: dict[str, Any], *, ran: bool) -> FoundDriver:
    metadata, status = pod["metadata"], pod["status"]
    name, phase = metadata["name"], status.get("phase")
    match phase:
        case "Pending" if "deletionTimestamp" in metadata:
            # It won't run; it may stay for as long as a node that is gone does not confirm the end.
            return FoundDriver(StartState.UNKNOWN, reason=f"pod {name} is being deleted, and never ran")
        case "Pending":
            since = _time(metadata.get("creationTimestamp"))
            return FoundDriver(StartState.WAITING, since, f"pod {name}: {_waits_for(pod)}")
        case "Running":
            going = " is being deleted" if "deletionTimestamp" in metadata else ""
            starts = [_time(one["running"].get("startedAt")) for one in _containers(status) if "running" in one]
            return FoundDriver(StartState.STARTED, starts[0] if starts else None, f"pod {name}{going}")
        case "Succeeded" | "Failed":
            return _why_ended(name, status, ran=ran)
    # Its node does not answer: it may still run.
    return FoundDriver(StartState.UNKNOWN, reason=f"pod {name} is {phase}: {status.get('reason', 'no reason')}")


def _containers(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the state of each container: waiting, running or terminated, with details."""
    return [one.get("state") or {} for one in status.get("containerStatuses") or []]


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _words(said: dict[str, Any]) -> str:
    """Return the reason and the message of a condition or a state."""
    return ": ".join(str(said[name]) for name in ("reason", "message") if said.get(name))


def _waits_for(pod: dict[str, Any]) -> str:
    """Return why a pod does not run yet: what a container waits for, or what the scheduler says.

    An image that can't be pulled and a missing Secret count as well: Kubernetes tries again, and another pod would not
    do better.
    """
    for state in _containers(pod["status"]):
        waiting = state.get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return _words(waiting)
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _words(condition)
    return "its node prepares it" if pod["spec"].get("nodeName") else "it waits for the scheduler"


def _why_ended(name: str, status: dict[str, Any], *, ran: bool) -> FoundDriver:
    terminated = [one["terminated"] for one in _containers(status) if "terminated" in one]
    codes = [one.get("exitCode") for one in terminated]
    if any(one.get("reason") == "OOMKilled" for one in terminated):
        error = StreamwardenError(
            "OUT_OF_MEMORY",
            f"pod {name}: its node killed it at its memory limit",
            remedy="Raise resources.memory of the job, or spark.driver.memoryOverhead of the profile.",
        )
        return FoundDriver(StartState.ENDED, reason=error.what, error=error)
    if any(code in OUT_OF_HEAP_EXITS for code in codes):
        error = StreamwardenError("OUT_OF_MEMORY", f"pod {name}: its JVM ended with exit code {codes[0]}")
        return FoundDriver(StartState.ENDED, reason=error.what, error=error)
    conditions = status.get("conditions") or []
    disruption: dict[str, Any] = next((one for one in conditions if one["type"] == "DisruptionTarget"), {})
    how = ", ".join(f"exit code {code}" for code in codes) or status["phase"]
    return _ended(f"pod {name}: {_words(status) or _words(disruption) or how}", ran=ran)


def _ended(reason: str, *, ran: bool) -> FoundDriver:
    code: ErrorCode = "DRIVER_DIED" if ran else "DRIVER_DID_NOT_START"
    return FoundDriver(StartState.ENDED, reason=reason, error=StreamwardenError(code, reason))
