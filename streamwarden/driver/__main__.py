"""``python -m streamwarden.driver``: run one job. The launcher starts it; start it manually only for debugging."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from streamwarden.driver.logs import RecordContext
    from streamwarden.store.workspace import Workspace


def main() -> int:
    """Parse the arguments, configure logging, run."""
    parser = argparse.ArgumentParser(prog="python -m streamwarden.driver")
    for name in ("profile", "config", "root", "job", "incarnation"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--standby", action="store_true", help="wait for commands; see streamwarden.driver.standby")
    parser.add_argument("--spare", action="store_true", help="wait for a job; see streamwarden.driver.spare")
    given = parser.parse_args()
    if given.spare and not _detached():
        return 0

    from streamwarden.driver.logs import configure_logging, rotate_console
    from streamwarden.runtime import work_dirs
    from streamwarden.spark.cluster_mode import is_cluster_mode
    from streamwarden.spark.utc import in_utc
    from streamwarden.store.workspace import open_workspace

    # Duplicate it before standard output is redirected to the console log.
    answers = os.dup(1) if given.standby else None
    workspace = open_workspace(given.profile, config=Path(given.config), root=given.root)
    folder = workspace.log_dir(given.job, given.incarnation)
    logs = workspace.profile.logs
    # A cluster keeps the output of its containers. It is all that is left of one whose machine nobody can read.
    console = is_cluster_mode()
    context = None if given.spare else configure_logging(folder, given.job, given.incarnation, logs, console=console)
    if not console:
        rotate_console(folder, logs)
    own = work_dirs.claim(workspace, given.job, given.incarnation)
    # For Python, and for the workers that Spark starts; the JVM has its own option.
    os.environ["TMPDIR"] = str(own)
    try:
        with in_utc():
            if context is None:
                return _spare(workspace, given.incarnation)
            return _run(workspace, given.job, given.incarnation, context, answers)
    finally:
        work_dirs.remove(own)


def _run(workspace: Workspace, job: str, incarnation: str, context: RecordContext, answers: int | None) -> int:
    # Imported after logging is configured: errors during Spark's import must be in the log.
    from streamwarden.driver.runner import Driver

    prepared = None
    if answers is not None:
        from streamwarden.driver.standby import stand_by

        prepared = stand_by(workspace, incarnation, answers, commands_from=sys.stdin)
        if prepared is None:
            return 0
    return Driver(workspace, job, incarnation, context, prepared=prepared).run()


def _detached() -> bool:
    """Go on in a child that belongs to no process; return whether this is the child. The parent prints its id."""
    child = os.fork()
    if child:
        sys.stdout.write(f"{child}\n")
        return False
    # The parent's output is a pipe to the process that ordered the spare.
    os.dup2(2, 1)
    return True


def _spare(workspace: Workspace, spare: str) -> int:
    from streamwarden.driver.logs import configure_logging
    from streamwarden.driver.runner import Driver
    from streamwarden.driver.spare import wait_for_job
    from streamwarden.driver.standby import Prepared, stand_by
    from streamwarden.model.spec import JobSpec
    from streamwarden.runtime.spares import SPEC
    from streamwarden.store.layout import SPARES

    spec = JobSpec.model_validate_json((workspace.scratch_dir(SPARES, spare) / SPEC).read_text(encoding="utf-8"))
    taken = wait_for_job(workspace, spec, spare)
    if taken is None:
        return 0
    assignment, session, pipes, rehearsed = taken
    job, incarnation = assignment.job, assignment.incarnation
    context = configure_logging(workspace.log_dir(job, incarnation), job, incarnation, workspace.profile.logs)
    logging.getLogger(__name__).info("this process was the warm spare %s", spare)
    prepared: Prepared | None = Prepared(session)
    if pipes is not None:
        commands, answers = pipes
        prepared = stand_by(workspace, incarnation, answers, commands_from=commands, warm=session, rehearsed=rehearsed)
        if prepared is None:
            return 0
    return Driver(workspace, job, incarnation, context, prepared=prepared).run()


def run() -> NoReturn:
    """Run :func:`main`, and end this process with its exit code."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Leftover py4j threads of a broken gateway must not keep a finished driver alive.
    os._exit(code)


if __name__ == "__main__":
    run()
