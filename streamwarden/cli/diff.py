"""The command that shows what a deploy would do."""

from __future__ import annotations

import typer
from rich.markup import escape
from rich.table import Table

from streamwarden.cli.terminal import (
    JobArgument,
    JsonOption,
    ProfileOption,
    RootOption,
    out,
    print_json,
    reported,
)
from streamwarden.operations.diff_words import described, value_text, what_a_deploy_does
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.module_load import check_module
from streamwarden.operations.spec_diff import RolloutPlan, plan
from streamwarden.store.workspace import open_workspace

__all__ = ["app"]

app = typer.Typer()


@app.command()
@reported
def diff(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a job's YAML differs from the deployed one, and what a deploy does. Exits with status 1 if refused."""
    workspace = open_workspace(profile, root=root)
    planned = plan(workspace, job)
    if not planned.loaded:
        check_module(workspace, planned.wanted)
    if as_json:
        print_json(described(planned))
    else:
        if planned.changes:
            out.print(_table(planned))
        out.print(f"{job}: {planned.effect}: {what_a_deploy_does(planned)}", markup=False, soft_wrap=True)
        remedies = dict.fromkeys(one.remedy for one in planned.changes if one.remedy)
        for remedy in remedies:
            out.print(f"  What to do: {remedy}", markup=False, soft_wrap=True)
    if planned.effect is Effect.REFUSED:
        raise typer.Exit(1)


def _table(planned: RolloutPlan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("field", "deployed", "YAML", "effect", "why"):
        table.add_column(name, overflow="fold")
    for one in planned.changes:
        cells = (one.field, value_text(one.before), value_text(one.after), one.effect, one.why)
        table.add_row(*map(escape, cells))
    return table
