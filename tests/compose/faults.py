"""Faults into a running stack. Nothing is done by hand afterwards: each job must commit again by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.compose.stack import Stack, StackError

__all__ = ["BY_NAME", "VOLUME_FULL", "effective", "inject"]

VOLUME_FULL = "volume-full"

_PAUSE_S = 60.0
_AWAY_S = 15.0
"""How long what was stopped or killed stays away: longer than Docker takes to restart what ends by itself."""

_RUNS_S = 0.5
"""How long a slow container runs at a time; then it stands still for three times as long."""

_SECOND = "spark-worker-2"
_FILLER = "/var/lib/streamwarden/filler"

_AIRFLOW = ("airflow-scheduler", "airflow-triggerer", "airflow-api-server", "airflow-dag-processor")
_ALL = ("postgres", *_AIRFLOW, "driver-host", "spark-master", "spark-worker", "s3")

_IDLE = {"cluster": {"s3"}, "compose_s3": {"master", "worker", "workers"}}
"""Words in the names of faults that a profile has no use for: the bucket, or Spark's daemons."""

_NO_RESTART = {*(f"{service.removeprefix('airflow-')}-killed" for service in _AIRFLOW), "postgres-killed"}
"""Faults that no driver may notice: Airflow can be upgraded under running jobs."""

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


def _two_workers_one_slow(stack: Stack) -> None:
    """Move every executor to a second worker, have it run a quarter of the time, and take it away."""
    stack.compose("up", "--detach", "--no-deps", "--no-build", _SECOND)
    stack.compose("kill", "--signal", "SIGKILL", "spark-worker")
    stack.say(
        f"on the second worker each job commits after {stack.all_commit(stack.versions(), _COMMIT_S, by=2):.0f} s"
    )
    stack.compose("start", "spark-worker")
    ended = threading.Event()
    brakes = ThreadPoolExecutor(1)
    brake = brakes.submit(_slow_down, stack, _SECOND, ended)
    try:
        took = stack.all_commit(stack.versions(), _COMMIT_S, by=2)
        stack.say(f"on the slow one each job commits after {took:.0f} s")
    finally:
        ended.set()
        brakes.shutdown()
        stack.compose("rm", "--stop", "--force", _SECOND)
    # If it failed, nothing was slow.
    brake.result()


def _slow_down(stack: Stack, service: str, ended: threading.Event) -> None:
    stood, refused = 0, []
    while not ended.wait(_RUNS_S):
        try:
            stack.container("pause", service)
        except StackError as error:
            # Podman refused one of about thirty.
            refused.append(error)
            continue
        time.sleep(3 * _RUNS_S)
        stack.container("unpause", service)
        stood += 1
    if len(refused) > stood:
        raise refused[-1]


def _volume_full(stack: Stack) -> None:
    """Fill the place's volume for a minute."""
    # Its exit code is grep's: if dd ended for another reason, the volume is not full.
    fill = f"dd if=/dev/zero of={_FILLER} bs=1M 2>&1 | grep -F 'No space left on device'"
    stack.compose("exec", "-T", "looker", "sh", "-c", fill)
    try:
        time.sleep(_PAUSE_S)
        for job, seen in stack.ask("state")["jobs"].items():
            stack.say(f"{job}, with a full volume: {seen['phase']}, {seen['reason']}, {seen['error']}")
    finally:
        stack.compose("exec", "-T", "looker", "rm", _FILLER)


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
    "two-workers-one-slow": _two_workers_one_slow,
}
BY_NAME: Mapping[str, Callable[[Stack], None]] = {**FAULTS, VOLUME_FULL: _volume_full}
"""With what has a stack of its own: its volume is small."""


def effective(profile: str) -> list[str]:
    """Return the names of the faults that hit something the profile uses, without the full volume."""
    return [name for name in FAULTS if not _IDLE[profile] & set(name.split("-"))]


def inject(stack: Stack, name: str) -> float:
    """Inject a fault, and return how long after it each job had committed what landed after it.

    Raises
    ------
    StackError
        If a job commits nothing, or if a driver was restarted by a fault of Airflow's.
    """
    before = _drivers(stack)
    BY_NAME[name](stack)
    began = time.monotonic()
    # The commit in flight may be of input from before.
    stack.all_commit(stack.versions(), _COMMIT_S, by=2)
    took = time.monotonic() - began
    for job, restarts in _drivers(stack).items():
        if len(restarts) > len(before[job]):
            stack.say(f"{job}: driver restarted: {', '.join(restarts[len(before[job]) :])}")
            if name in _NO_RESTART:
                raise StackError(f"{name} restarted the driver of {job}")
    return took


def _drivers(stack: Stack) -> dict[str, list[str]]:
    """Return the reasons of each job's restarts so far."""
    return {name: job["restarts"] for name, job in stack.ask("state")["jobs"].items()}
