"""Commands that show what drivers report: batches, and metrics endpoints."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal
from rich.table import Table

from streamwarden.cli.terminal import (
    JobArgument,
    JsonOption,
    ProfileOption,
    RootOption,
    out,
    print_json,
    reported,
    until_stopped,
)
from streamwarden.model.durations import parse_duration
from streamwarden.operations.target_file import TargetFile, target_groups
from streamwarden.store.workspace import open_workspace

__all__ = ["app"]

app = typer.Typer()


@app.command()
@reported
def progress(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="Number of newest batches to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show a job's batches from the table job_progress, newest last. It may lag by some batches."""
    # Here, since it loads delta-rs, which no other command needs.
    from streamwarden.formats.progress_table import ProgressTable

    workspace = open_workspace(profile, root=root)
    found = ProgressTable(workspace).read(job, last)
    if not found:
        # A removed job's batches are still there; an unknown name is an error.
        workspace.job(job)
    if as_json:
        print_json([{name: _plain(value) for name, value in row.items()} for row in found])
    else:
        out.print(_table(found))


@app.command()
@reported
def targets(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the list to this file, in a single step.")
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", help="Write the file again after this time, such as 15s, until Ctrl-C.")
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
) -> None:
    """Print the drivers' Prometheus endpoints as JSON, in the format of Prometheus' file-based service discovery.

    A driver that should run but doesn't is included: its `up` is 0, so that an alert can fire.
    """
    interval = _interval(every)
    if output is None and interval is not None:
        raise typer.BadParameter("needs --output", param_hint="--every")
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"{output.parent} is no folder", param_hint="--output")
    workspace = open_workspace(profile, root=root)
    if output is None:
        print_json(target_groups(workspace))
    elif interval is None:
        try:
            TargetFile(workspace, output).write()
        except OSError as error:
            raise typer.BadParameter(str(error), param_hint="--output") from None
    else:
        TargetFile(workspace, output).keep(interval, until_stopped())


def _interval(text: str | None) -> timedelta | None:
    try:
        found = None if text is None else parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--every") from None
    if found is not None and found < timedelta(seconds=1):
        raise typer.BadParameter("is less than 1s", param_hint="--every")
    return found


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        *("gen", "batch", "at", "took", "rows in", "out", "late", "quarantined", "rows/s", "watermark", "lag"),
        *("state rows", "state", "commit", "tries", "pending"),
    ):
        table.add_column(name, justify="left" if name in ("at", "watermark") else "right", no_wrap=True)
    for row in found:
        table.add_row(
            str(row["generation"]),
            str(row["batch"]),
            f"{row['at']:%Y-%m-%d %H:%M:%S}",
            f"{row['duration_ms'] / 1000:.1f} s",
            str(row["rows_in"]),
            _shown(row["rows_out"]),
            str(row["late_rows"]),
            str(row["rows_quarantined"]),
            f"{row['rows_per_second']:.0f}",
            f"{row['watermark']:%Y-%m-%d %H:%M:%S}" if row["watermark"] else "-",
            "-" if row["watermark_lag_s"] is None else f"{row['watermark_lag_s']:.0f} s",
            str(row["state_rows"]),
            decimal(row["state_bytes"]),
            f"{row['commit_ms'] / 1000:.1f} s",
            str(row["tries"]),
            _shown(row["source_pending"]),
        )
    return table


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
