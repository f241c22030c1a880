"""The command that looks at a job's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from streamwarden.cli.terminal import JobArgument, JsonOption, ProfileOption, RootOption, err, out, print_json, reported
from streamwarden.operations.state_view import StateView
from streamwarden.store.workspace import open_workspace

__all__ = ["app"]

app = typer.Typer()


@app.command()
@reported
def state(
    job: JobArgument,
    key: Annotated[str | None, typer.Option(help="Only this key: NAME=VALUE, or the value of any column.")] = None,
    at: Annotated[
        str | None, typer.Option(help="A savepoint (id, label, latest) or a batch; default the newest batch.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Counts by partition, and the heaviest keys.")] = False,
    diff: Annotated[
        tuple[str, str] | None, typer.Option(help="What changed between two savepoints or batches.", show_default=False)
    ] = None,
    to: Annotated[str | None, typer.Option(help="Write all entries to this new Delta table.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many entries, keys or changes.")] = 20,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job's state: keys, values, times to live, timers. Reads it with Spark, which takes some seconds."""
    if sum((stats, diff is not None, to is not None)) > 1 or (key is not None and (stats or diff or to)):
        raise typer.BadParameter("give one of --key, --stats, --diff and --to")
    view = StateView(open_workspace(profile, root=root), job)
    with err.status("reading the state") if err.is_terminal and not as_json else nullcontext():
        if stats:
            found, show = view.stats(at=at, limit=limit), _show_stats
        elif diff is not None:
            found, show = view.diff(*diff, limit=limit), _show_diff
        elif to is not None:
            found, show = view.export(to, at=at), _show_export
        else:
            found, show = view.show(at=at, key=key, limit=limit), _show_entries
    if as_json:
        print_json(found)
    else:
        show(found)


def _show_entries(found: Mapping[str, Any]) -> None:
    columns = ("operator", "variable", "partition", "key", "value", "expires_at", "timer_at")
    out.print(_table(columns, found["entries"]))
    more = ", and there are more (--limit, --key)" if found["more"] else ""
    out.print(f"{len(found['entries'])} entries{more}; {found['at']}")


def _show_stats(found: Mapping[str, Any]) -> None:
    times = ("first_expiry", "last_expiry", "first_timer", "last_timer")
    out.print(_table(("operator", "variable", "entries", "keys", "json_bytes", *times), found["variables"]))
    sizes = found["file_bytes"]
    rows = [{**one, "file_bytes": sizes.get(f"{one['operator']}/{one['partition']}")} for one in found["partitions"]]
    columns = ("operator", "variable", "partition", "entries", "keys", "json_bytes", "file_bytes")
    out.print(_table(columns, rows))
    out.print("the heaviest keys:")
    out.print(_table(("operator", "key", "entries", "json_bytes"), found["heaviest"]))
    out.print(str(found["at"]))


def _show_diff(found: Mapping[str, Any]) -> None:
    out.print(_table(("change", "operator", "variable", "key", "before", "after"), found["examples"]))
    counts = ", ".join(f"{found[name]:,} {name}" for name in ("added", "removed", "changed"))
    out.print(f"{counts}; from {found['before']} to {found['after']}")


def _show_export(found: Mapping[str, Any]) -> None:
    out.print(f"table {found['table']}: {found['rows']:,} rows; {found['at']}")


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*[_cell(name, row.get(name)) for name in columns])
    return table


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    return decimal(value) if name.endswith("bytes") else escape(str(value))
