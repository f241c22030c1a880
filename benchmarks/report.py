"""Common beginning and end of the benchmarks of savepoints and rescales."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).parents[1]


def let_drivers_import() -> None:
    """Let drivers, which are separate processes, import the benchmarks' jobs."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def print_machine(runs: int) -> None:
    """Print the machine and the number of runs."""
    memory = psutil.virtual_memory().total / 2**30
    print(f"machine: {platform.machine()}, {psutil.cpu_count()} cores, {memory:.0f} GiB; {runs} runs of each")


def goal_met(name: str, value: float, goal: float, *, at_least: bool = False) -> bool:
    """Print a goal's line; return whether the value is at most the goal, or else at least."""
    met = value >= goal if at_least else value <= goal
    print(f"{name} {value:.3f} {goal} {'ok' if met else 'short'}")
    return met
