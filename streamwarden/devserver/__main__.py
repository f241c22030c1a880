"""``python -m streamwarden.devserver up|down``: Airflow on this machine until it is stopped. What ``make up`` calls."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from streamwarden.console import err, out
from streamwarden.devserver.standalone import Standalone
from streamwarden.errors import StreamwardenError
from streamwarden.runtime import spares
from streamwarden.store.config import job_names
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation, Phase, observe

_HOME = Path(__file__).resolve().parents[2] / "var" / "airflow"
_BY = "make down"


def main(arguments: list[str] | None = None) -> int:
    """Start or stop; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m streamwarden.devserver", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start Airflow in the background")
    up.add_argument("--port", type=int, default=8080, help="of the UI, on loopback")
    up.add_argument("--profile", default=os.environ.get("STREAMWARDEN_PROFILE", "local"))
    down = commands.add_parser("down", help="stop the jobs, then Airflow")
    down.add_argument("--keep-jobs", action="store_true", help="stop Airflow only; the drivers keep running")
    down.add_argument("--timeout", type=float, default=120.0, help="seconds for the jobs to stop")
    for command in (up, down):
        command.add_argument("--home", type=Path, default=_HOME, help="AIRFLOW_HOME")
    given = parser.parse_args(arguments)
    try:
        if given.command == "up":
            return _up(given.home, given.port, given.profile)
        return _down(given.home, keep_jobs=given.keep_jobs, timeout=given.timeout)
    except StreamwardenError as error:
        err.print(str(error), markup=False, style="red", soft_wrap=True)
        return 2


def _up(home: Path, port: int, profile: str) -> int:
    # Opened here, so that a wrong profile fails this command, and not every task.
    workspace = open_workspace(profile)
    env = {
        "STREAMWARDEN_PROFILE": workspace.profile.name,
        "STREAMWARDEN_CONFIG": str(workspace.config),
        "STREAMWARDEN_ROOT": str(workspace.root),
    }
    airflow = Standalone(home=home, port=port, env=env)
    running = airflow.running()
    if running and all(running.values()):
        airflow = Standalone(home=home, port=0)
        out.print("Airflow is running already")
    else:
        airflow.start(progress=lambda what: out.print(f"up: {what}", markup=False))
        airflow.wait_for_dags([f"job_{name}" for name in job_names(workspace.config)])
    out.print(f"Airflow: {airflow.url}   user {airflow.user}   password {airflow.password}", markup=False)
    out.print(f"Streams, operations, savepoints, quality: {airflow.url}/plugin/streams", markup=False)
    out.print(f"Tables, checkpoints and logs: {workspace.root}", markup=False)
    out.print("Deploy a job: trigger its DAG, job_NAME. Stop everything: make down")
    return 0


def _down(home: Path, *, keep_jobs: bool, timeout: float) -> int:
    airflow = Standalone(home=home, port=0)
    env = airflow.recorded_env()
    code = 0
    if not keep_jobs:
        config = env.get("STREAMWARDEN_CONFIG")
        workspace = open_workspace(
            env.get("STREAMWARDEN_PROFILE"),
            config=Path(config) if config else None,
            root=env.get("STREAMWARDEN_ROOT"),
        )
        code = _stop_jobs(workspace, timeout)
        spares.end_waiting(workspace)
    was_up = any(airflow.running().values())
    airflow.stop()
    # A demo that was kept has an Airflow of its own.
    out.print("Airflow is stopped" if was_up else f"no Airflow of {home} was up")
    return code


def _stop_jobs(workspace: Workspace, timeout: float) -> int:
    running = [name for name in driver_control.deployed_jobs(workspace) if _runs(observe(workspace, name))]
    try:
        for name, seen in driver_control.stop_all(workspace, running, by=_BY, timeout=timeout).items():
            out.print(f"{name}: {seen.phase} ({seen.reason})", markup=False)
    except StreamwardenError as error:
        # Airflow stops nevertheless.
        err.print(str(error), markup=False, style="red", soft_wrap=True)
        return 1
    return 0


def _runs(seen: Observation) -> bool:
    # A silent driver may wake up. During an operation, a driver that is down will start again.
    return seen.phase.alive or seen.phase is Phase.SILENT or seen.operation is not None


if __name__ == "__main__":
    sys.exit(main())
