"""Commands for savepoints: take, list, show, verify, label, delete, restore, housekeeping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamwarden.cli.operation_table import operation_table
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
from streamwarden.model.savepoint import Manifest, Origin, Verification
from streamwarden.operations.housekeeping import housekeep, look_after_tables
from streamwarden.operations.restore import Outputs
from streamwarden.operations.restore import restore as run_restore
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import Report, take
from streamwarden.savepoints.verify import verify as run_verify
from streamwarden.savepoints.with_stop import savepoint_and_stop
from streamwarden.store.config import job_names
from streamwarden.store.documents import dump
from streamwarden.store.layout import SAVEPOINTS
from streamwarden.store.workspace import Workspace, open_workspace

__all__ = ["app", "catalogue_app", "progress"]

app = typer.Typer()
catalogue_app = typer.Typer(help="List, show, verify, label and delete savepoints.", no_args_is_help=True)

ALL = "all"

SavepointArgument = Annotated[str, typer.Argument(help="An id, a label, or latest (verified).", show_default=False)]


@contextmanager
def progress(*, hidden: bool) -> Iterator[Report]:
    """Show progress bars while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=hidden) as bar:
        shown: dict[str, TaskID] = {}

        def report(step: str, done: int, total: int) -> None:
            if not total:
                # A message without a measure.
                bar.console.print(step, markup=False) if step not in shown else None
                shown.setdefault(step, TaskID(-1))
                return
            if step not in shown:
                shown[step] = bar.add_task(step, total=total)
            bar.update(shown[step], completed=done, total=total)

        yield report


@app.command("savepoint")
@reported
def take_savepoint(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the job with it: no row is processed afterwards.")] = False,
    note: Annotated[str, typer.Option(help="Kept with the savepoint.")] = "",
    verify: Annotated[bool, typer.Option(help="Verify it right away; this starts a JVM.")] = True,
    timeout: Annotated[float, typer.Option(help="With --stop: seconds to wait for the driver to stop.")] = 300,
    as_json: JsonOption = False,
) -> None:
    """Take a savepoint of a running or stopped job. Exits with status 1 if it is damaged."""
    workspace = open_workspace(profile, root=root)
    with progress(hidden=as_json) as report:
        if stop:
            made = savepoint_and_stop(workspace, job, by=who(), note=note, timeout=timeout, report=report)
        else:
            made = take(workspace, job, origin=Origin.MANUAL, by=who(), note=note, report=report)
        found = catalog.find(workspace, job, made.id)
        verdict = run_verify(workspace, [found], by=who(), report=report)[made.id] if verify else None
    if as_json:
        print_json(catalog.describe(workspace, catalog.find(workspace, job, made.id)))
    else:
        out.print(f"{job}: savepoint {made.id} {_line(made)}, {verdict.verdict if verdict else 'unverified'}")
        _say_problems(verdict)
    if verdict is not None and verdict.verdict == "damaged":
        raise typer.Exit(1)


@app.command()
@reported
def restore(
    job: JobArgument,
    savepoint: Annotated[str, typer.Option("--savepoint", "-s", help="An id, a label, or latest (verified).")] = (
        catalog.LATEST
    ),
    of: Annotated[str | None, typer.Option(help="Use a savepoint of this other job: JOB becomes its clone.")] = None,
    outputs: Annotated[
        str, typer.Option(help="Output tables: default (each sink's on_restore), rewind or leave.")
    ] = "default",
    suspended: Annotated[
        bool, typer.Option("--suspended", help="Don't start the job; its next deploy starts it from the savepoint.")
    ] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    reason: ReasonOption = "",
    stop_timeout: Annotated[float, typer.Option(help="Seconds to wait for the driver to stop.")] = 300,
    health_timeout: Annotated[float, typer.Option(help="Seconds to wait for health before rolling back.")] = 300,
    as_json: JsonOption = False,
) -> None:
    """Start a job from a savepoint, with its current YAML; roll back if it does not become healthy."""
    if outputs not in ("default", "rewind", "leave"):
        raise typer.BadParameter(f"{outputs!r} is not default, rewind or leave", param_hint="--outputs")
    chosen: Outputs = outputs  # type: ignore[assignment]
    workspace = open_workspace(profile, root=root)
    with progress(hidden=as_json) as report:
        done = run_restore(
            workspace,
            job,
            savepoint=savepoint,
            of=of,
            outputs=chosen,
            suspended=suspended,
            by=who(),
            reason=reason,
            stop_timeout=stop_timeout,
            health_timeout=health_timeout,
            report=report,
        )
    if as_json:
        print_json(dump(done))
    else:
        out.print(operation_table([done]))


@app.command()
@reported
def housekeeping(
    job: Annotated[str, typer.Argument(help="A name in config/jobs, or all.")] = ALL,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove expired savepoints and leftovers of interrupted work; for `all`, also old rows of our own tables."""
    workspace = open_workspace(profile, root=root)
    jobs = job_names(workspace.config) if job == ALL else [job]
    found = {name: housekeep(workspace, name, workspace.job(name).savepoints.keep) for name in jobs}
    tables = look_after_tables(workspace) if job == ALL else {}
    if as_json:
        print_json({**found, **tables})
        return
    for name, removed in found.items():
        words = "; ".join(f"{what.replace('_', ' ')}: {', '.join(ids)}" for what, ids in removed.items() if ids)
        out.print(f"{name}: {words or 'nothing to do'}", markup=False)
    for table, done in tables.items():
        words = "; ".join(f"{what.replace('_', ' ')}: {count}" for what, count in done.items())
        out.print(f"table {table}: {words}", markup=False)


@catalogue_app.command("list")
@reported
def list_savepoints(
    job: Annotated[str | None, typer.Argument(help="A name in config/jobs; default: all.")] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """List savepoints, newest first."""
    workspace = open_workspace(profile, root=root)
    jobs = [job] if job else sorted({*job_names(workspace.config), *workspace.files.folders(SAVEPOINTS)})
    found = [catalog.describe(workspace, one) for name in jobs for one in catalog.savepoints(workspace, name)]
    if as_json:
        print_json(found)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "job",
        "id",
        "taken",
        "origin",
        "batch",
        "rows",
        "bytes",
        "own",
        "partitions",
        "state",
        "label",
        "note",
    ):
        table.add_column(name, justify="right" if name in ("batch", "rows", "bytes", "own", "partitions") else "left")
    for one in found:
        table.add_row(
            one["job"],
            one["id"],
            f"{datetime.fromisoformat(one['taken_at']):%Y-%m-%d %H:%M:%S}",
            one["origin"],
            str(one["batch"]),
            "-" if one["partitions"] is None else "?" if one["rows"] is None else f"{one['rows']:,}",
            decimal(one["bytes"]),
            decimal(one["own_bytes"]),
            "-" if one["partitions"] is None else str(one["partitions"]),
            one["state"],
            one["label"] or "-",
            one["note"] or "-",
        )
    out.print(table)


@catalogue_app.command("show")
@reported
def show(
    job: JobArgument,
    savepoint: SavepointArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the details of a savepoint; with --json also its files."""
    workspace = open_workspace(profile, root=root)
    found = catalog.find(workspace, job, savepoint)
    described = catalog.describe(workspace, found)
    if as_json:
        print_json({**described, "manifest": dump(found.manifest)})
        return
    manifest = found.manifest
    rows: dict[str, Any] = {name: value for name, value in described.items() if name != "verification"}
    rows["watermark"] = (
        datetime.fromtimestamp(manifest.watermark_ms / 1000, UTC).isoformat() if manifest.watermark_ms else "-"
    )
    rows["versions"] = ", ".join(f"{name} {text}" for name, text in manifest.versions.items())
    for sink in manifest.sinks:
        rows[f"table {sink.table}"] = f"version {sink.version}, {sink.mode}, transaction {sink.transaction}"
    for operator in manifest.operators:
        known = "unknown" if operator.rows is None else f"{operator.rows:,}"
        rows[f"operator {operator.id}"] = (
            f"{operator.name}: {known} rows, {operator.partitions} partitions, {decimal(operator.bytes)}"
        )
    rows["files"] = len(manifest.files)
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in rows.items():
        table.add_row(name.replace("_", " "), "-" if value in (None, "", []) else str(value))
    out.print(table)
    _say_problems(found.record.verification)


@catalogue_app.command()
@reported
def verify(
    job: Annotated[str, typer.Argument(help="A name in config/jobs, or all.", show_default=False)],
    savepoint: Annotated[str, typer.Argument(help="An id, a label, latest, or all.")] = ALL,
    profile: ProfileOption = None,
    root: RootOption = None,
    state: Annotated[bool, typer.Option(help="Also read the state; this starts a JVM.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Verify every file's size and SHA-256, and the state's rows. Exits with status 1 if any savepoint is damaged."""
    workspace = open_workspace(profile, root=root)
    jobs = workspace.files.folders(SAVEPOINTS) if job == ALL else [job]
    chosen = _chosen(workspace, jobs, savepoint)
    with progress(hidden=as_json) as report:
        found = run_verify(workspace, chosen, by=who(), state=state, report=report)
    if as_json:
        print_json({name: dump(one) for name, one in found.items()})
    else:
        for one in chosen:
            verdict = found[one.manifest.id]
            out.print(f"{one.manifest.job} {one.manifest.id}: {verdict.verdict}", markup=False)
            _say_problems(verdict)
    if any(one.verdict == "damaged" for one in found.values()):
        raise typer.Exit(1)


@catalogue_app.command()
@reported
def label(
    job: JobArgument,
    savepoint: SavepointArgument,
    text: Annotated[str, typer.Argument(help="The label; an empty one removes it.", show_default=False)],
    profile: ProfileOption = None,
    root: RootOption = None,
) -> None:
    """Label a savepoint; retention never removes a labelled one."""
    record = catalog.label(open_workspace(profile, root=root), job, savepoint, text)
    out.print(f"{job} {record.id}: label {record.label!r}" if text else f"{job} {record.id}: no label", markup=False)


@catalogue_app.command()
@reported
def delete(
    job: JobArgument,
    savepoint: SavepointArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    force: Annotated[bool, typer.Option("--force", help="Also a labelled one, or the newest verified one.")] = False,
) -> None:
    """Delete a savepoint."""
    workspace = open_workspace(profile, root=root)
    found = catalog.find(workspace, job, savepoint)
    catalog.delete(workspace, job, found.manifest.id, force=force)
    out.print(f"{job} {found.manifest.id}: deleted", markup=False)


def _chosen(workspace: Workspace, jobs: list[str], savepoint: str) -> list[catalog.Savepoint]:
    if savepoint == ALL:
        return [one for job in jobs for one in catalog.savepoints(workspace, job)]
    return [catalog.find(workspace, job, savepoint) for job in jobs]


def _line(manifest: Manifest) -> str:
    rows = f", {manifest.state_rows:,} state rows" if manifest.operators and manifest.state_rows is not None else ""
    return f"at batch {manifest.batch}: {decimal(manifest.bytes)}{rows}, in {manifest.took_s:.2f} s"


def _say_problems(verification: Verification | None) -> None:
    for problem in verification.problems if verification else ():
        out.print(f"  {problem}", markup=False)
