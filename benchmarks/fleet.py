"""Cost of supervision in Airflow: CPU of each component while it watches 20, 100 and 200 jobs.

Run by ``make bench-fleet``. It uses a real Airflow on a private Postgres, and the three real jobs over trips that keep
landing. The other jobs are stand-ins without Spark: processes that use the control protocol and commit a batch every
five seconds. No job fails: it is the load of quiet weeks. Worker slots are counted throughout. CPU is that of a
component's processes, in thousandths of a core.

Options: ``--jobs`` (several numbers, the three real jobs included), ``--seconds`` (of each measurement).
"""

from __future__ import annotations

import argparse
import platform
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

import psutil

from streamwarden.devserver.standalone import COMPONENTS
from tests.chaos.plan import JOBS
from tests.chaos.world import World

LOOP = 5
"""Runs that the scheduler checks in one loop (MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE). With fewer jobs, each job adds a
check. Growth is measured between fleets that fill the loop."""

GROWTH_GOAL = 1.25
"""Growth from such a fleet to the largest: flat, except noise."""

A_JOB_GOALS = {"scheduler": 1.5, "triggerer": 1.5, "Airflow": 3.0}
"""Thousandths of a core for each additional job, smallest fleet to largest: one core is enough for hundreds."""

_HELD = ("running", "queued")


def main() -> int:
    """Measure each size; exit with status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Supervision's load on Airflow, by the number of jobs.")
    parser.add_argument("--jobs", type=int, nargs="+", default=[20, 100, 200])
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    sizes = sorted(set(given.jobs))
    if sizes[0] < len(JOBS):
        parser.error(f"--jobs: at least {len(JOBS)}, the real ones")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    print(f"{psutil.cpu_count()} cores, {platform.machine()}")
    world = World(Path("var/fleet"), lambda what: print(f"  {what}", flush=True), standins=sizes[-1] - len(JOBS))
    try:
        world.start()
        return _measure(world, sizes, given.seconds)
    finally:
        world.stop()


def _measure(world: World, sizes: list[int], seconds: float) -> int:
    found: dict[int, dict[str, float]] = {}
    slots = 0
    deployed = list(JOBS)
    for size in sizes:
        more = world.standins[len(deployed) - len(JOBS) : size - len(JOBS)]
        for job in more:
            world.trigger(f"job_{job}")
        deployed += more
        _await_supervision(world, deployed)
        world.sleep(15)
        found[size], held = _load(world, deployed, seconds)
        slots = max(slots, held)
        words = ", ".join(f"{name} {value:.1f}" for name, value in found[size].items())
        print(f"{size} jobs: thousandths of a core: {words}; worker slots held: {held}", flush=True)
    small, large = found[sizes[0]], found[sizes[-1]]
    more_jobs = sizes[-1] - sizes[0]
    ok = _say("fleet_worker_slots", slots, 0)
    if more_jobs:
        for name, goal in A_JOB_GOALS.items():
            a_job = (large[name] - small[name]) / more_jobs
            ok = _say(f"fleet_{name.lower()}_thousandths_a_job", round(a_job, 2), goal) and ok
    full = next((size for size in sizes[:-1] if size >= LOOP), None)
    if full is not None:
        for name in ("scheduler", "Airflow"):
            growth = large[name] / found[full][name]
            ok = _say(f"fleet_{name.lower()}_cpu_growth_{full}_to_{sizes[-1]}", round(growth, 2), GROWTH_GOAL) and ok
    return 0 if ok else 1


def _await_supervision(world: World, jobs: list[str]) -> None:
    since = time.time()
    world.until(lambda: all(world.is_supervised(job, since) for job in jobs), 600, "supervision", poll=1.0)


def _load(world: World, jobs: list[str], seconds: float) -> tuple[dict[str, float], int]:
    """Return the CPU of components and drivers, and the maximum of worker slots held by supervision."""
    before, began = _cpu(world), time.monotonic()
    held = 0
    while time.monotonic() - began < seconds:
        states = [one.state for job in jobs for one in world.supervisions(job)]
        held = max(held, sum(state in _HELD for state in states))
        time.sleep(2)
    took = time.monotonic() - began
    after = _cpu(world)
    used: dict[str, float] = defaultdict(float)
    for (name, pid), spent in after.items():
        used[name] += (spent - before.get((name, pid), 0.0)) / took * 1000
    load = {name: used[name] for name in (*COMPONENTS, "drivers")}
    load["Airflow"] = sum(load[name] for name in COMPONENTS)
    return load, held


def _cpu(world: World) -> dict[tuple[str, int], float]:
    """Return the CPU seconds spent by each process so far."""
    members = [(name, process) for name in COMPONENTS for process in world.airflow.processes(name)]
    members += [("drivers", process) for process in world.processes_of_run()]
    spent = {}
    for name, process in members:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        spent[name, process.pid] = times.user + times.system
    return spent


def _say(name: str, value: float, goal: float) -> bool:
    print(f"{name} {value:g} {goal:g} {'ok' if value <= goal else 'short'}")
    return value <= goal


if __name__ == "__main__":
    sys.exit(main())
