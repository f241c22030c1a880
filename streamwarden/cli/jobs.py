"""Commands for jobs: deploy, stop, status, logs, supervise."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from streamwarden.cli.terminal import (
    JobArgument,
    JsonOption,
    ProfileOption,
    ReasonOption,
    RootOption,
    err,
    out,
    print_json,
    reported,
    who,
)
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.supervision import HealthRecord, Supervision
from streamwarden.operations.deploy import deploy_job, unknown
from streamwarden.operations.diagnosis import Diagnosis, describe, diagnose
from streamwarden.operations.give_up import put_down
from streamwarden.operations.status import job_status
from streamwarden.runtime import spares
from streamwarden.runtime.launchers.launch import launcher_of
from streamwarden.runtime.log_lines import readable
from streamwarden.store.documents import JobDocuments
from streamwarden.store.each import for_each
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import alert_queue, driver_control
from streamwarden.supervision.act import ask_to_stop, restart
from streamwarden.supervision.decide import Action, assess, decide
from streamwarden.supervision.described import jobs_to_show, undescribed
from streamwarden.supervision.driver_control import deployed_jobs
from streamwarden.supervision.observe import Phase, observe
from streamwarden.supervision.silence import Silence
from streamwarden.supervision.stuck import Standstill

__all__ = ["app"]

app = typer.Typer()


@app.command()
@reported
def deploy(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    reason: ReasonOption = "",
    wait: Annotated[float, typer.Option(help="Seconds to wait until the driver runs; 0 does not wait.")] = 120,
    stop_timeout: Annotated[float, typer.Option(help="Seconds to wait for the old driver to stop.")] = 300,
    health_timeout: Annotated[float, typer.Option(help="Seconds to wait for a changed job to become healthy.")] = 300,
    as_json: JsonOption = False,
) -> None:
    """Run a job with its current YAML; a running job is rolled back if it is not healthy. `diff` shows the changes."""
    workspace = open_workspace(profile, root=root)
    done = deploy_job(workspace, job, by=who(), note=reason, stop_timeout=stop_timeout, health_timeout=health_timeout)
    if wait:
        seen = driver_control.wait_for(
            workspace,
            job,
            lambda now: not now.phase.alive or now.phase in (Phase.RUNNING, Phase.WAITING),
            timeout=wait,
            what="the driver to run",
        )
        if not seen.phase.alive:
            raise (seen.error.to_exception() if seen.error else StreamwardenError("DRIVER_DID_NOT_START", seen.reason))
    if as_json:
        print_json({**asdict(done), "status": job_status(workspace, job)})
    else:
        how = "launched" if done.launched else "keeps running" if done.changes else "was running with this spec already"
        fields = ", ".join(change.field for change in done.changes)
        changed = f"; {done.effect}: {fields}" if done.changes else ""
        out.print(f"{job}: incarnation {done.incarnation} {how}{changed}", markup=False)
        if wait and seen.phase is Phase.WAITING:
            # Not an error, since another job may create it; but it may be a slip in its name.
            out.print(f"  it waits: {seen.reason}", markup=False)


@app.command()
@reported
def stop(
    job: Annotated[
        str, typer.Argument(help="A name in config/jobs, or `all`: every deployed job.", show_default=False)
    ],
    profile: ProfileOption = None,
    root: RootOption = None,
    reason: ReasonOption = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the driver to end.")] = 300,
    kill: Annotated[
        bool, typer.Option("--kill", help="After the timeout, kill the driver; the next start finishes its batch.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop a job: its driver finishes the batch in flight and ends."""
    workspace = open_workspace(profile, root=root)
    if job == "all":
        seen = driver_control.stop_all(workspace, by=who(), reason=reason, timeout=timeout, kill=kill)
    else:
        seen = {job: driver_control.stop(workspace, job, by=who(), reason=reason, timeout=timeout, kill=kill)}
    if as_json:
        found = [job_status(workspace, name) for name in seen]
        print_json(found if job == "all" else found[0])
    else:
        for name, now in seen.items():
            out.print(f"{name}: {now.phase} ({now.reason})", markup=False)
            if now.error is not None and now.error.code == "DRIVER_KILLED":
                out.print(f"  {now.error.remedy}", markup=False)


@app.command()
@reported
def status(
    job: Annotated[
        str | None, typer.Argument(help="A name; default: all in config/jobs, and all deployed ones that should run.")
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state and health of jobs. Exits with status 1 if any is failed, dead or silent."""
    workspace = open_workspace(profile, root=root)
    if job is not None and job not in deployed_jobs(workspace):
        workspace.job(job)
    found = for_each(workspace, [job] if job else jobs_to_show(workspace), lambda name: _status(workspace, name))
    if as_json:
        print_json(found[0] if job else found)
    else:
        out.print(_status_table(found))
        waiting = spares.living(workspace)
        if waiting:
            each = ", ".join(f"{spare.memory} {'ready' if ready else 'starting'}" for spare, ready in waiting.items())
            out.print(f"spares on this machine: {len(waiting)} ({each})", markup=False)
        for one in found:
            if one["phase"] in (Phase.STARTING, Phase.WAITING):
                out.print(f"{one['job']}: {one['phase']}: {one['reason']}", markup=False, soft_wrap=True)
            if one["operation"]:
                doing = one["operation"]
                step = doing["steps"][-1]["name"] if doing["steps"] else "starting"
                out.print(f"{one['job']}: {doing['kind']} {doing['id']} by {doing['by']}: {step}", markup=False)
            if not one["described"]:
                words = f"{undescribed(one['job'])}. Bring the file back, or `streamwarden stop {one['job']}`"
                out.print(f"{one['job']}: {words}", markup=False, soft_wrap=True)
            if one["metrics"]:
                out.print(f"{one['job']}: metrics on http://{one['metrics']}/metrics", markup=False)
            for note in one["notes"]:
                out.print(f"{one['job']}: {note}", markup=False, soft_wrap=True)
            for finding in one["findings"]:
                out.print(f"{one['job']}: {finding['level']} {finding['rule']}: {finding['what']}", markup=False)
            if one["error"]:
                out.print(f"{one['job']}: [{one['error']['code']}] {one['error']['what']}", markup=False)
                if one["diagnosis"]:
                    out.print(describe(Diagnosis(**one["diagnosis"])), markup=False, soft_wrap=True)
                else:
                    out.print(f"  What to do: {one['error']['remedy']}", markup=False)
            if one["changed"]:
                words = f"its YAML differs in {', '.join(one['changed'])}; see `streamwarden diff {one['job']}`"
                out.print(f"{one['job']}: {words}", markup=False)
            # Of one job only: they say what it does, and not how it is.
            for rule in one["row_rules"] if job else ():
                words = f"row rule {rule['id']}: failing rows go to {rule['quarantine']}. {rule['reason']}"
                out.print(f"{one['job']}: {words}", markup=False, soft_wrap=True)
    if any(one["phase"] in (Phase.FAILED, Phase.DEAD, Phase.SILENT, _UNKNOWN) for one in found):
        raise typer.Exit(1)


_UNKNOWN = "unknown"
"""The phase of a job whose documents can't be read."""


def _status(workspace: Workspace, job: str) -> dict[str, Any]:
    """Return what is known of a job; of one with a damaged document only that, so that the others are shown."""
    try:
        return job_status(workspace, job)
    except StreamwardenError as error:
        if error.code != "DOCUMENT_INVALID":
            raise
        return unknown(workspace, job, error)


_COLUMNS = (
    *("job", "desired", "phase", "health", "batch", "rows in"),
    *("rows/s", "late", "watermark", "state rows", "restarts"),
)
_WORDS = ("job", "desired", "phase", "health", "watermark")
_COLORS = {"ok": "green", "warn": "yellow", "critical": "red"}


def _status_table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _WORDS else "right")
    for one in found:
        last, totals = one["progress"] or {}, one["totals"] or {}
        table.add_row(
            one["job"],
            one["desired"] or "-",
            one["phase"],
            f"[{_COLORS[one['health']]}]{one['health']}[/]" if one["health"] else "-",
            "-" if one["batch"] is None else str(one["batch"]),
            str(totals.get("rows_in", "-")),
            f"{last['rows_per_second']:.0f}" if last else "-",
            str(totals.get("late_rows", "-")),
            (last.get("watermark") or "-")[:19].replace("T", " "),
            str(last.get("state_rows", "-")),
            str(len(one["restarts"])),
        )
    return table


class LogSource(StrEnum):
    """The log files of a driver."""

    DRIVER = "driver"
    SPARK = "spark"
    CONSOLE = "console"


@app.command()
@reported
def logs(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    incarnation: Annotated[str | None, typer.Option(help="Driver run; default: the newest.")] = None,
    source: Annotated[
        LogSource, typer.Option(help="driver (Streamwarden), spark (the JVM) or console (other output).")
    ] = LogSource.DRIVER,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Number of last lines to show.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines until Ctrl-C.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Show JSON records unchanged.")] = False,
) -> None:
    """Show a driver's log."""
    workspace = open_workspace(profile, root=root)
    chosen = incarnation or observe(workspace, job).incarnation
    if chosen is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    path = workspace.log_dir(job, chosen) / f"{source}.log"
    shown = str if raw or source is not LogSource.DRIVER else readable
    if not path.is_file():
        # The driver may run where its files cannot be read from here.
        kept = None if follow else launcher_of(workspace).logs(job, chosen, lines)
        if kept is None:
            raise StreamwardenError("LOG_NOT_FOUND", str(path))
        sys.stdout.writelines(shown(line) for line in kept.splitlines(keepends=True))
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream.readlines()[-lines:]:
            sys.stdout.write(shown(line))
        begun = ""
        while follow:
            line = begun + stream.readline()
            # A record is shown whole: one half written can't be read as JSON.
            begun = "" if line.endswith("\n") else line
            if line and not begun:
                sys.stdout.write(shown(line))
            else:
                sys.stdout.flush()
                time.sleep(0.3)


@app.command()
@reported
def supervise(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    poll: Annotated[float, typer.Option(help="Seconds between two checks.")] = 1.0,
) -> None:
    """Supervise a job as its DAG does: restart it when it dies, until it is stopped or its restart budget is spent.

    Prints changes of its health. Sends no notifications: only the DAG does.
    """
    workspace = open_workspace(profile, root=root)
    documents = JobDocuments(workspace.storage, job)
    said = ""
    told = HealthRecord()
    silence, standstill = Silence(), Standstill()

    def say(text: str) -> None:
        out.print(f"{datetime.now():%H:%M:%S} {job} {text}", markup=False)

    while True:
        try:
            seen = observe(workspace, job)
            memory = documents.supervision.read() or Supervision()
            verdict = decide(seen, memory)
            health = assess(seen, memory, verdict)
            changes = alert_queue.changes(told, health)
            told = alert_queue.told(told, changes)
            for change in changes:
                say(f"{change.rule}: {change.before} -> {change.after}: {change.what}")
            line = f"{seen.phase}: {verdict.why}"
            if line != said and (verdict.action is not Action.WAIT or not said.startswith(f"{seen.phase}:")):
                say(f"{line} -> {verdict.action}")
            said = line
            if verdict.action is Action.FINISH:
                return
            # Both, each time: what they have seen before counts.
            doubts = silence.is_doubtful(workspace, seen), standstill.is_doubtful(seen, verdict)
            if any(doubts) and verdict.action is not Action.WAIT:
                time.sleep(poll)
                continue
            if verdict.action in (Action.FAIL, Action.SUSPEND):
                ended = put_down(workspace, seen, verdict, by=f"{who()} supervise")
                break
            due = verdict.not_before is None or verdict.not_before <= utc_now()
            if verdict.action is Action.RESTART and due:
                restart(workspace, seen, by=f"{who()} supervise", why=verdict.why)
            elif verdict.action is Action.STOP:
                ask_to_stop(workspace, seen, by=f"{who()} supervise", why=verdict.why)
        except (OSError, StreamwardenError) as error:
            # Keep supervising through an outage of the store, a full disk, or a slow stop.
            if isinstance(error, StreamwardenError) and not error.retryable:
                raise
            code = error.code if isinstance(error, StreamwardenError) else type(error).__name__
            if code != said:
                say(str(error))
            said = code
        time.sleep(poll)
    if ended.traceback:
        err.print(ended.traceback, markup=False, soft_wrap=True)
    # Observed again: a stuck driver was alive before, and only now has an end to diagnose.
    if (diagnosis := diagnose(workspace, observe(workspace, job))) is not None:
        err.print(describe(diagnosis), markup=False, soft_wrap=True)
    raise ended.to_exception()
