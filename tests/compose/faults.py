"""Faults into a running stack. Nothing is done by hand afterwards: each job must commit again by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tests.compose.stack import Stack

__all__ = ["FAULTS", "inject"]

_PAUSE_S = 60.0
_AWAY_S = 15.0
"""How long what was stopped or killed stays away: longer than Docker takes to restart what ends by itself."""

_AIRFLOW = ("airflow-scheduler", "airflow-triggerer", "airflow-api-server", "airflow-dag-processor")
_ALL = ("postgres", *_AIRFLOW, "driver-host", "spark-master", "spark-worker", "s3")

_COMMIT_S = 480.0
"""How long the jobs may take to commit after a fault. A driver whose machine died waits for the lease, and its
supervisor for Airflow's own detection of dead parts (five minutes)."""


def _killed(*services: str) -> Callable[[Stack], None]:
    def fault(stack: Stack) -> None:
        stack.compose("kill", "--signal", "SIGKILL", *services)
        time.sleep(_AWAY_S)
        # Docker restarts nothing that was killed by its own command; a machine that comes back does.
        stack.compose("start", *services)

    return fault


def _stopped(*services: str) -> Callable[[Stack], None]:
    def fault(stack: Stack) -> None:
        stack.compose("stop", *services)
        time.sleep(_AWAY_S)
        stack.compose("start", *services)

    return fault


def _paused(*services: str) -> Callable[[Stack], None]:
    def fault(stack: Stack) -> None:
        stack.compose("pause", *services)
        time.sleep(_PAUSE_S)
        # Not by Compose: on podman it does not see what is paused.
        stack.container("unpause", *services)

    return fault


FAULTS: Mapping[str, Callable[[Stack], None]] = {
    "worker-stopped": _stopped("spark-worker"),
    "worker-killed": _killed("spark-worker"),
    "worker-paused": _paused("spark-worker"),
    "master-killed": _killed("spark-master"),
    "driver-host-killed": _killed("driver-host"),
    "scheduler-killed": _killed("airflow-scheduler"),
    "triggerer-killed": _killed("airflow-triggerer"),
    "api-server-killed": _killed("airflow-api-server"),
    "dag-processor-killed": _killed("airflow-dag-processor"),
    "postgres-killed": _killed("postgres"),
    "s3-killed": _killed("s3"),
    "master-and-worker-killed": _killed("spark-master", "spark-worker"),
    "driver-host-stopped": _stopped("driver-host"),
    "driver-host-paused": _paused("driver-host"),
    "all-killed": _killed(*_ALL),
    "all-stopped": _stopped(*_ALL),
}


def inject(stack: Stack, name: str) -> float:
    """Inject a fault, and return how long after it each job had committed what landed after it."""
    before = _drivers(stack)
    FAULTS[name](stack)
    began = time.monotonic()
    # The commit in flight may be of input from before.
    stack.all_commit(stack.versions(), _COMMIT_S, by=2)
    took = time.monotonic() - began
    for job, restarts in _drivers(stack).items():
        if len(restarts) > len(before[job]):
            stack.say(f"{job}: driver restarted: {', '.join(restarts[len(before[job]) :])}")
    return took


def _drivers(stack: Stack) -> dict[str, list[str]]:
    """Return the reasons of each job's restarts so far."""
    return {name: job["restarts"] for name, job in stack.ask("state")["jobs"].items()}
