"""``make demo``: the main job, or with ``JOBS=…`` others, from end to end, headless, through a real Airflow."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from nyc_taxi.demo.comparisons import COMPARISONS
from nyc_taxi.demo.main import Demo, kill_drivers
from nyc_taxi.demo.others import OtherJobs
from streamwarden.console import out
from streamwarden.devserver.standalone import Standalone
from streamwarden.errors import StreamwardenError
from streamwarden.store.config import config_dir
from streamwarden.store.workspace import Workspace, open_workspace


def _interrupted(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> int:
    """Run the demo, and leave no process running."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--trips", type=Path, help="a TLC green-taxi Parquet file; default: generated trips")
    parser.add_argument("--keep", action="store_true", help="leave Airflow up and print its URL and login")
    parser.add_argument("--port", type=int, default=0, help="of Airflow's UI; default: a free one")
    parser.add_argument("--jobs", default="", help=f"others instead, with commas: {', '.join(COMPARISONS)}")
    given = parser.parse_args()
    jobs = [job for job in given.jobs.split(",") if job]
    unknown = sorted(set(jobs) - COMPARISONS.keys())
    if unknown:
        parser.error(f"no comparison of {', '.join(unknown)}; there are: {', '.join(COMPARISONS)}")
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGHUP, _interrupted)
    workspace = open_workspace("demo")
    workspace.root.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(workspace.root.parent / "demo.lock", timeout=0):
            return _run(workspace, given.trips, given.keep, given.port, jobs)
    except Timeout:
        out.print("[red]another demo is running here[/red]")
        return 2


def _run(workspace: Workspace, trips: Path | None, keep: bool, port: int, jobs: list[str]) -> int:
    root = workspace.root
    env = {
        "STREAMWARDEN_PROFILE": "demo",
        "STREAMWARDEN_CONFIG": str(config_dir()),
        "STREAMWARDEN_ROOT": str(root),
    }
    airflow = Standalone(home=root / "airflow", port=port, env=env)
    # Stop an earlier demo's Airflow, if it was killed or kept.
    airflow.stop()
    kill_drivers(workspace)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    code, kept = 1, False
    try:
        kind = OtherJobs if jobs else Demo
        demo = kind(workspace, trips.resolve() if trips else None, airflow)
        if isinstance(demo, OtherJobs):
            demo.others = jobs
        code = 0 if demo.run() else 1
        if keep:
            kept = True
            out.print(f"Airflow: {airflow.url}   user {airflow.user}   password {airflow.password}", markup=False)
            out.print(f"Streams, operations, savepoints, quality: {airflow.url}/plugin/streams", markup=False)
            stop = f".venv/bin/python -m streamwarden.devserver down --home {root / 'airflow'}"
            out.print(f"It stays up until the next `make demo`, or: {stop}", markup=False, soft_wrap=True)
    except StreamwardenError as error:
        out.print(str(error), markup=False, style="red")
        out.print(f"logs: {root / 'logs'}, {root / 'airflow' / 'logs'}", markup=False)
    except KeyboardInterrupt as stop:
        out.print(f"interrupted {stop}: stopping what was started", markup=False)
        code = 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not kept:
            airflow.stop()
        kill_drivers(workspace)
    return code


if __name__ == "__main__":
    sys.exit(main())
