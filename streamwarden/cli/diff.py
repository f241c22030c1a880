"""The command that shows what a deploy would do."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

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
from streamwarden.operations.spec_diff import Effect, RolloutPlan, plan
from streamwarden.store.workspace import open_workspace

__all__ = ["app", "described"]

app = typer.Typer()

_DOES = {
    Effect.NONE: "a deploy changes nothing",
    Effect.LIVE: "a deploy records it, and the driver keeps running",
    Effect.RESTART: "a deploy stops the driver between batches, starts another, and rolls back if it is unhealthy",
    Effect.SAVEPOINT: "a deploy stops the driver between batches, takes a savepoint, starts another driver, and rolls"
    " back if it is unhealthy",
    Effect.REFUSED: "a deploy is refused, and the job keeps running as it is",
}


@app.command()
@reported
def diff(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a job's YAML differs from the deployed one, and what a deploy does. Exits with status 1 if refused."""
    planned = plan(open_workspace(profile, root=root), job)
    if as_json:
        print_json(described(planned))
    else:
        if planned.changes:
            out.print(_table(planned))
        out.print(f"{job}: {planned.effect}: {_does(planned)}", markup=False, soft_wrap=True)
        remedies = dict.fromkeys(one.remedy for one in planned.changes if one.remedy)
        for remedy in remedies:
            out.print(f"  What to do: {remedy}", markup=False, soft_wrap=True)
    if planned.effect is Effect.REFUSED:
        raise typer.Exit(1)


def described(planned: RolloutPlan) -> dict[str, Any]:
    """Return a plan as plain JSON values."""
    return {
        "job": planned.job,
        "deployed": planned.deployed is not None,
        "running": planned.running,
        "effect": planned.effect,
        "does": _does(planned),
        "changes": [asdict(change) for change in planned.changes],
    }


def _does(planned: RolloutPlan) -> str:
    if planned.deployed is None:
        return "it was never deployed; a deploy starts it"
    if not planned.running and planned.effect is not Effect.REFUSED:
        return "it is down; a deploy starts it with its YAML, without a savepoint or a rollback"
    return _DOES[planned.effect]


def _table(planned: RolloutPlan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("field", "deployed", "YAML", "effect", "why"):
        table.add_column(name, overflow="fold")
    for one in planned.changes:
        cells = (one.field, _value(one.before), _value(one.after), one.effect, one.why)
        table.add_row(*map(escape, cells))
    return table


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
