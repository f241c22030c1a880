"""Commands for data quality: check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamwarden.cli.terminal import (
    JsonOption,
    ProfileOption,
    RootOption,
    err,
    out,
    print_json,
    reported,
)
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import open_workspace

__all__ = ["app"]

app = typer.Typer()


@app.command()
@reported
def check(
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="Table to check; default: all that have a suite.")
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    expectations: Annotated[
        Path | None, typer.Option(help="Folder of suites; default: expectations/ beside config/.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check output tables against their expectations. Exits with status 1 if any fails."""
    from streamwarden.quality.documents import REPORT
    from streamwarden.quality.runner import check as run_check

    workspace = open_workspace(profile, root=root)
    with err.status("checking"):
        run = run_check(
            tables_dir=workspace.tables,
            expectations_dir=expectations or workspace.config.parent / "expectations",
            results_dir=workspace.root / QUALITY,
            tables=table or None,
            # A check reads tables on its own machine, wherever the jobs run.
            master="local[2]",
            settings=workspace.profile.spark if workspace.profile.master.startswith("local") else None,
            s3=workspace.s3,
        )
    report = workspace.root / QUALITY / run.run_id / REPORT
    found = {**run.brief(), "report": str(report)}
    if as_json:
        print_json(found)
    else:
        for one in found["tables"]:
            out.print(f"{one['table']}: {'ok' if one['success'] else 'FAILED'}", markup=False)
            for failure in one["failures"]:
                words = f"{failure['expectation']} ({failure['column'] or 'table'}): {failure['detail']}"
                out.print(f"  {failure['severity']}: {words}", markup=False)
        out.print(f"report: {report}", markup=False, soft_wrap=True)
    if not run.success:
        raise typer.Exit(1)
