"""Commands that read serving stores."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from streamwarden.cli.terminal import JsonOption, ProfileOption, RootOption, out, print_json, reported
from streamwarden.serving.client import FeatureReader, open_store, served_sink
from streamwarden.store.workspace import open_workspace

__all__ = ["features_app"]

features_app = typer.Typer(help="Read the newest row of a key from a serving store.", no_args_is_help=True)

TableArgument = Annotated[str, typer.Argument(help="A table whose sink has `serve`.", show_default=False)]


@features_app.command("get")
@reported
def get(
    table: TableArgument,
    key: Annotated[list[str], typer.Argument(help="NAME=VALUE for each column of the key.", show_default=False)],
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the row of a key, and as of which batch and watermark. Exits with status 1 if there is none."""
    reader = FeatureReader(open_workspace(profile, root=root), table)
    typed, texts = {}, {}
    for one in key:
        name, is_pair, text = one.partition("=")
        if not is_pair:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE")
        typed[name], texts[name] = _typed(text), text
    try:
        # Text that looks like a number is a number, unless the column holds text.
        found = reader.get(**typed) or reader.get(**texts)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    finally:
        reader.close()
    if found is None:
        out.print(f"{table}: no value for {', '.join(key)}") if not as_json else print_json(None)
        raise typer.Exit(1)
    if as_json:
        print_json({**vars(found), "watermark": found.watermark.isoformat() if found.watermark else None})
        return
    shown = Table(box=None, pad_edge=False, show_header=False)
    for name, value in found.value.items():
        shown.add_row(name, str(value))
    out.print(shown)
    watermark = f", watermark {found.watermark:%Y-%m-%d %H:%M:%S}" if found.watermark else ""
    out.print(f"as of batch {found.batch} of generation {found.generation}{watermark}")


@features_app.command("clear")
@reported
def clear(
    table: TableArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Without this, nothing is done.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
) -> None:
    """Remove all values of a table; the job's next start fills the store from the table."""
    workspace = open_workspace(profile, root=root)
    _, _, serve = served_sink(workspace, table)
    if not yes:
        raise typer.BadParameter("--yes is needed: readers find nothing until the job's next start")
    store = open_store(workspace, table, serve, writes=False) if serve.kind == "redis" else None
    store = store or open_store(workspace, table, serve, writes=True)
    store.clear()
    store.close()
    out.print(f"{table}: its serving store is empty")


def _typed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
