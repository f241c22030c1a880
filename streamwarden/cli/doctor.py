"""The command that examines a place after a loss, or at any time."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from streamwarden.cli.terminal import JsonOption, ProfileOption, RootOption, err, out, print_json, reported
from streamwarden.store.workspace import open_workspace
from streamwarden.supervision.driver_control import deployed_jobs

if TYPE_CHECKING:
    from streamwarden.operations.doctor import Finding

__all__ = ["app"]

app = typer.Typer()

_MARKS = {"whole": "whole ", "note": "note  ", "broken": "BROKEN"}


@app.command()
@reported
def doctor(
    jobs: Annotated[
        list[str] | None, typer.Argument(help="Names of jobs; default: all jobs, driver hosts and published tables.")
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read all bytes of savepoints, and look for each file of the tables.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is whole, what is not, and the commands that mend it. Writes nothing. Exits with status 1 if broken."""
    # Here, since it loads delta-rs.
    from streamwarden.operations.doctor import Verdict, examine, in_order

    workspace = open_workspace(profile, root=root)
    for job in set(jobs).difference(deployed_jobs(workspace)) if jobs else ():
        # An unknown name is an error; a job whose documents were lost is described.
        workspace.job(job)
    with err.status("examining"):
        found = examine(workspace, jobs or (), deep=deep)
    commands = in_order(found)
    if as_json:
        print_json({"findings": [asdict(one) for one in found], "commands": commands})
    else:
        for one in found:
            _say(one)
        if commands:
            out.print("To mend it, in this order:", markup=False)
        for command in commands:
            out.print(f"  {command}", markup=False, soft_wrap=True)
    if any(one.verdict is Verdict.BROKEN for one in found):
        raise typer.Exit(1)


def _say(one: Finding) -> None:
    name = f"{one.job}: {one.about}" if one.job else one.about
    code = f" [{one.code}]" if one.code else ""
    out.print(f"{_MARKS[one.verdict]} {name}: {one.what}{code}", markup=False, soft_wrap=True)
    if one.remedy:
        out.print(f"       {one.remedy}", markup=False, soft_wrap=True)
    for command in one.commands if one.verdict == "note" else ():
        out.print(f"       If you like: {command}", markup=False, soft_wrap=True)
