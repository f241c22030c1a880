"""Commands for driver hosts: run one, list them."""

from __future__ import annotations

import socket
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from streamwarden.cli.terminal import JsonOption, ProfileOption, RootOption, out, print_json, reported, until_stopped
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.runtime.host_agent import HostAgent
from streamwarden.runtime.launchers.hosts import LOST, driver_hosts
from streamwarden.store.workspace import open_workspace

__all__ = ["app"]

app = typer.Typer()


@app.command()
@reported
def host(
    name: Annotated[
        str | None,
        typer.Option("--name", help="Unique in the place, and the same after a restart; default: host name."),
    ] = None,
    drivers: Annotated[
        int | None, typer.Option("--drivers", min=1, help="At most so many drivers; default: any number.")
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
) -> None:
    """Run a driver host: it starts the drivers of a profile with `launcher: host` on this machine, until Ctrl-C.

    Its drivers go on without it, unless they end with its container. Started again, it finds them.
    """
    workspace = open_workspace(profile, root=root)
    if workspace.profile.launcher != "host":
        what = f"profile {workspace.profile.name}: launcher is {workspace.profile.launcher}, so no host is asked"
        raise StreamwardenError("CONFIG_INVALID", what, remedy="Write `launcher: host` into the profile.")
    HostAgent(workspace, name=name or socket.gethostname(), most=drivers).run(until_stopped())


@app.command()
@reported
def hosts(profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False) -> None:
    """List driver hosts and their drivers. Exits with status 1 if none lives."""
    found = driver_hosts(open_workspace(profile, root=root))
    now = utc_now()
    if as_json:
        print_json([{**one.model_dump(mode="json"), "lives": now - one.at < LOST} for one in found])
    else:
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("host", "state", "seen", "drivers"):
            shown.add_column(heading)
        for one in found:
            state = "lives" if now - one.at < LOST else "[red]gone[/red]"
            jobs = escape(", ".join(one.drivers)) or "-"
            shown.add_row(escape(one.name), state, f"{(now - one.at).total_seconds():.0f} s ago", jobs)
        out.print(shown if found else "no driver host was ever here")
    if not any(now - one.at < LOST for one in found):
        raise typer.Exit(1)
