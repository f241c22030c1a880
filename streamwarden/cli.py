"""The command line: all that the DAGs do, and what a person needs beside them.

Exit codes: 0 done; 1 what was asked about is not well (a failed job, failed expectations); 2 the command failed.
"""

from __future__ import annotations

import getpass
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamwarden import __version__
from streamwarden.control import operations
from streamwarden.control.config import job_names
from streamwarden.control.documents import JobDocuments, Supervision, utc_now
from streamwarden.control.durations import parse_duration
from streamwarden.control.supervision import Action, Phase, decide, observe, restart
from streamwarden.control.workspace import open_workspace
from streamwarden.errors import StreamwardenError

__all__ = ["app", "main"]

P = ParamSpec("P")

app = typer.Typer(
    name="streamwarden",
    help="Operations for stateful Spark Structured Streaming: deploy, supervise, check.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)

ProfileOption = Annotated[
    str | None, typer.Option("--profile", "-p", help="File in config/profiles. [env STREAMWARDEN_PROFILE, else local]")
]
RootOption = Annotated[Path | None, typer.Option("--root", help="Replaces the profile's root. [env STREAMWARDEN_ROOT]")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
JobArgument = Annotated[str, typer.Argument(help="A name in config/jobs.", show_default=False)]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the record.")]


def _who() -> str:
    return f"cli:{getpass.getuser()}"


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def _reported(command: Callable[P, None]) -> Callable[P, None]:
    """Print a StreamwardenError as its catalogue words it and leave with 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except StreamwardenError as error:
            _err.print(str(error), markup=False, style="red", soft_wrap=True)
            raise typer.Exit(2) from None

    return run


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"streamwarden {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Read the options that go before a command."""


@app.command()
@_reported
def deploy(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    reason: ReasonOption = "",
    wait: Annotated[float, typer.Option(help="Seconds to wait until the driver runs; 0 does not wait.")] = 120,
    as_json: JsonOption = False,
) -> None:
    """Make a job run as its YAML says now."""
    workspace = open_workspace(profile, root=root)
    done = operations.deploy(workspace, job, by=_who(), note=reason)
    if wait:
        seen = operations.wait_for(
            workspace,
            job,
            lambda now: not now.phase.alive or now.phase in (Phase.RUNNING, Phase.WAITING),
            timeout=wait,
            what="the driver to run",
        )
        if not seen.phase.alive:
            raise (seen.error.to_exception() if seen.error else StreamwardenError("DRIVER_DID_NOT_START", seen.reason))
    if as_json:
        _print_json({**vars(done), "status": operations.status(workspace, job)})
    else:
        how = "launched" if done.launched else "was running with this spec already"
        _out.print(f"{job}: incarnation {done.incarnation} {how}")


@app.command()
@_reported
def stop(
    job: Annotated[str, typer.Argument(help="A name in config/jobs, or all.", show_default=False)],
    profile: ProfileOption = None,
    root: RootOption = None,
    reason: ReasonOption = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the end.")] = 300,
    as_json: JsonOption = False,
) -> None:
    """Suspend a job: its driver finishes the batch in flight and ends."""
    workspace = open_workspace(profile, root=root)
    if job == "all":
        seen = operations.stop_all(workspace, job_names(workspace.config), by=_who(), reason=reason, timeout=timeout)
    else:
        seen = {job: operations.stop(workspace, job, by=_who(), reason=reason, timeout=timeout)}
    if as_json:
        found = [operations.status(workspace, name) for name in seen]
        _print_json(found if job == "all" else found[0])
    else:
        for name, now in seen.items():
            _out.print(f"{name}: {now.phase} ({now.reason})", markup=False)


@app.command()
@_reported
def status(
    job: Annotated[str | None, typer.Argument(help="A name in config/jobs; all of them by default.")] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what jobs do. Leaves with 1 if one is failed, dead or silent."""
    workspace = open_workspace(profile, root=root)
    if job is not None:
        workspace.job(job)
    found = [operations.status(workspace, name) for name in ([job] if job else job_names(workspace.config))]
    if as_json:
        _print_json(found[0] if job else found)
    else:
        _out.print(_status_table(found))
        for one in found:
            if one["error"]:
                _out.print(f"{one['job']}: [{one['error']['code']}] {one['error']['what']}", markup=False)
                _out.print(f"  What to do: {one['error']['remedy']}", markup=False)
    if any(one["phase"] in (Phase.FAILED, Phase.DEAD, Phase.SILENT) for one in found):
        raise typer.Exit(1)


def _status_table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("job", "desired", "phase", "batch", "rows in", "rows/s", "late", "watermark", "state rows", "restarts")
    for name in columns:
        table.add_column(name, justify="left" if name in ("job", "desired", "phase", "watermark") else "right")
    for one in found:
        last, totals = one["progress"] or {}, one["totals"] or {}
        table.add_row(
            one["job"],
            one["desired"] or "-",
            one["phase"],
            "-" if one["batch"] is None else str(one["batch"]),
            str(totals.get("rows_in", "-")),
            f"{last['rows_per_second']:.0f}" if last else "-",
            str(totals.get("late_rows", "-")),
            (last.get("watermark") or "-")[:19].replace("T", " "),
            str(last.get("state_rows", "-")),
            str(len(one["restarts"])),
        )
    return table


@app.command()
@_reported
def logs(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    incarnation: Annotated[str | None, typer.Option(help="Default: the current or last one.")] = None,
    source: Annotated[str, typer.Option(help="driver (ours), spark (the JVM's) or console (stray output).")] = "driver",
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written, until Ctrl-C.")] = False,
) -> None:
    """Show a driver's log."""
    workspace = open_workspace(profile, root=root)
    chosen = incarnation or observe(workspace, job).incarnation
    if chosen is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    path = workspace.log_dir(job, chosen) / f"{source}.log"
    if not path.is_file():
        raise StreamwardenError("LOG_NOT_FOUND", str(path))
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream.readlines()[-lines:]:
            sys.stdout.write(line)
        while follow:
            line = stream.readline()
            if line:
                sys.stdout.write(line)
            else:
                sys.stdout.flush()
                time.sleep(0.3)


@app.command()
@_reported
def supervise(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    poll: Annotated[float, typer.Option(help="Seconds between looks.")] = 1.0,
) -> None:
    """Watch a job and start it again when it dies, as its DAG does, until it is suspended or its budget is spent."""
    workspace = open_workspace(profile, root=root)
    documents = JobDocuments(workspace.storage, job)
    said = ""
    while True:
        try:
            seen = observe(workspace, job)
            verdict = decide(seen, documents.supervision.read() or Supervision())
        except StreamwardenError as error:
            # A store that is away for a while is no reason to watch no longer.
            if not error.retryable:
                raise
            if error.code != said:
                _out.print(f"{datetime.now():%H:%M:%S} {job} {error}", markup=False)
            said = error.code
            time.sleep(poll)
            continue
        line = f"{seen.phase}: {verdict.why}"
        if line != said and (verdict.action is not Action.WAIT or not said.startswith(f"{seen.phase}:")):
            _out.print(f"{datetime.now():%H:%M:%S} {job} {line} -> {verdict.action}", markup=False)
        said = line
        if verdict.action is Action.FINISH:
            return
        if verdict.action is Action.FAIL:
            assert verdict.error is not None
            raise verdict.error.to_exception()
        due = verdict.not_before is not None and verdict.not_before <= utc_now()
        if verdict.action is Action.RESTART and due:
            restart(workspace, seen, by=f"{_who()} supervise")
        time.sleep(poll)


@app.command()
@_reported
def replay(
    source: Annotated[
        list[str], typer.Argument(help="TLC green-taxi Parquet files, or the word `generator`.", show_default=False)
    ],
    profile: ProfileOption = None,
    root: RootOption = None,
    landing: Annotated[Path | None, typer.Option(help="Folder to land files in; default ROOT/landing.")] = None,
    speed: Annotated[str, typer.Option(help="Seconds of event time a second, or max.")] = "600",
    late_share: Annotated[float, typer.Option(help="Share of trips that arrive late, 0 to 1.")] = 0.05,
    late_min: Annotated[str, typer.Option(help="Least delay of a late trip.")] = "5m",
    late_max: Annotated[str, typer.Option(help="Largest delay of a late trip.")] = "2h",
    file_every: Annotated[str, typer.Option(help="Event time that one file holds.")] = "15m",
    start: Annotated[datetime | None, typer.Option(help="Leave out pickups before.")] = None,
    end: Annotated[datetime | None, typer.Option(help="Leave out pickups from here on.")] = None,
    seed: Annotated[int, typer.Option(help="Which trips are late; of the generator, which trips there are.")] = 0,
    again: Annotated[bool, typer.Option("--restart", help="From the start, even where a replay could resume.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Land trips in a folder as a collector would, with a progress bar. Ctrl-C stops; the same command resumes."""
    from streamwarden.trips.generator import GeneratorOptions, generate
    from streamwarden.trips.replay import Replay, ReplayOptions, stop_on_signals
    from streamwarden.trips.tlc import read_tlc

    options = ReplayOptions(
        speed="max" if speed == "max" else _number("--speed", speed),
        late_share=late_share,
        late_min=_duration("--late-min", late_min),
        late_max=_duration("--late-max", late_max),
        file_every=_duration("--file-every", file_every),
        start=start,
        end=end,
        seed=seed,
    )
    workspace = open_workspace(profile, root=root)
    if source == ["generator"]:
        period = {name: value for name, value in (("start", start), ("end", end)) if value is not None}
        trips = generate(GeneratorOptions(seed=seed, **period))  # type: ignore[arg-type]
    else:
        trips = read_tlc([Path(name) for name in source])
    job = Replay(trips, landing or workspace.root / "landing", options, restart=again)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} trips"),
        TimeElapsedColumn(),
        console=_err,
        transient=as_json,
    )
    with stop_on_signals() as stop_event, bar:
        shown = bar.add_task("replay", total=job.plan.trips.num_rows)
        done = job.run(
            lambda now: bar.update(shown, completed=now.trips, description=f"{now.clock:%Y-%m-%d %H:%M}"), stop_event
        )
    if as_json:
        _print_json(vars(done))
    elif done.done:
        _out.print(f"replay: all {done.total_trips:,} trips have landed in {done.total_files} files")
    else:
        _out.print(f"replay: stopped at {done.trips:,} of {done.total_trips:,} trips; the same command resumes")


@app.command("generate")
@_reported
def generate_trips(
    out: Annotated[Path, typer.Argument(help="Parquet file to write.", show_default=False)],
    start: Annotated[datetime, typer.Option(help="First pickup.")] = datetime(2023, 3, 6),
    end: Annotated[datetime, typer.Option(help="Pickups are before this.")] = datetime(2023, 3, 13),
    trips: Annotated[int | None, typer.Option(help="How many; default as many as green taxis have.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trips.")] = 0,
    schema: Annotated[str, typer.Option(help="2023, or 2025 with cbd_congestion_fee.")] = "2023",
    dirt: Annotated[bool, typer.Option(help="With the dirt that real files have.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Write seeded trips, shaped after the real ones, as a TLC file."""
    import pyarrow.parquet as pq

    from streamwarden.trips.generator import GeneratorOptions, generate

    options = GeneratorOptions(
        start=start,
        end=end,
        trips=trips,
        seed=seed,
        schema=schema,  # type: ignore[arg-type]
        dirt=dirt,
    )
    table = generate(options)
    out.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, out)
    if as_json:
        _print_json({"file": str(out), "trips": table.num_rows})
    else:
        _out.print(f"{out}: {table.num_rows:,} trips")


@app.command()
@_reported
def check(
    table: Annotated[list[str] | None, typer.Option("--table", "-t", help="Table; default all with a suite.")] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    expectations: Annotated[
        Path | None, typer.Option(help="Folder of suites; default expectations/ beside config/.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check output tables against their expectations. Leaves with 1 if one is not met."""
    from streamwarden.quality.runner import check as run_check

    workspace = open_workspace(profile, root=root)
    with _err.status("checking; the JVM takes some seconds"):
        run = run_check(
            tables_dir=workspace.tables,
            expectations_dir=expectations or workspace.config.parent / "expectations",
            results_dir=workspace.root / "quality",
            tables=table or None,
            # A check reads tables on its own machine, wherever the jobs run.
            master="local[2]",
            settings=workspace.profile.spark if workspace.profile.master.startswith("local") else None,
            s3=workspace.s3,
        )
    report = workspace.root / "quality" / run.run_id / "report.html"
    found = {**run.brief(), "report": str(report)}
    if as_json:
        _print_json(found)
    else:
        for one in found["tables"]:
            _out.print(f"{one['table']}: {'ok' if one['success'] else 'FAILED'}", markup=False)
            for failure in one["failures"]:
                words = f"{failure['expectation']} ({failure['column'] or 'table'}): {failure['detail']}"
                _out.print(f"  {failure['severity']}: {words}", markup=False)
        _out.print(f"report: {report}", markup=False, soft_wrap=True)
    if not run.success:
        raise typer.Exit(1)


def _duration(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor max", param_hint=option) from None


def main() -> None:
    """Run the command line; the entry point of the ``streamwarden`` script."""
    app()


if __name__ == "__main__":
    main()
