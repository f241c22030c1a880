"""The command that repairs a job's damaged control documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from streamwarden.cli.terminal import JobArgument, JsonOption, ProfileOption, RootOption, out, print_json, reported, who
from streamwarden.operations.repair import repair as mend
from streamwarden.store.workspace import open_workspace

__all__ = ["app"]

app = typer.Typer()


@app.command()
@reported
def repair(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this option only show what would be done.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rebuild a job's damaged control documents. Exits with status 1 if any is damaged and --yes was not given."""
    found = mend(open_workspace(profile, root=root), job, by=who(), dry_run=not yes)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            out.print(f"{one.document}: {one.how}", markup=False, soft_wrap=True)
        if not found:
            out.print(f"{job}: no document is damaged", markup=False)
        elif not yes:
            out.print(f"Nothing was changed: `streamwarden repair {job} --yes` does it", markup=False)
    if found and not yes:
        raise typer.Exit(1)
