"""The command that recommends a job's parallelism."""

from __future__ import annotations

import typer
from rich.table import Table

from streamwarden.autoscaler.advise import Advice
from streamwarden.autoscaler.advise import advise as ask
from streamwarden.cli.terminal import JobArgument, JsonOption, ProfileOption, RootOption, out, print_json, reported
from streamwarden.store.workspace import open_workspace

__all__ = ["app"]

app = typer.Typer()


@app.command()
@reported
def advise(
    job: JobArgument, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """Recommend state partitions and cores for a job, from its load, with the reason. Changes nothing."""
    advice = ask(open_workspace(profile, root=root), job)
    print_json(advice.as_json()) if as_json else out.print(_table(advice))


def _table(advice: Advice) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, text in advice.lines():
        table.add_row(name, text)
    return table
