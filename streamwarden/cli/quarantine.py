"""Commands for quarantined rows: list, show and replay."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from streamwarden.cli.terminal import JsonOption, ProfileOption, RootOption, out, print_json, reported, who
from streamwarden.errors import StreamwardenError
from streamwarden.model import exact_json
from streamwarden.model.row_rules import QUARANTINE_SUFFIX, quarantine_of
from streamwarden.store.workspace import Workspace, open_workspace

if TYPE_CHECKING:
    from streamwarden.operations.quarantine import Quarantined

__all__ = ["quarantine_app"]

quarantine_app = typer.Typer(help="Quarantined rows: list, show, replay.", no_args_is_help=True)

_TableArgument = Annotated[str, typer.Argument(help="A table, or its quarantine table.", show_default=False)]
_RuleOption = Annotated[
    str | None, typer.Option("--rule", help="Only rows that fail this rule, or have this reason.", show_default=False)
]


@quarantine_app.command("list")
@reported
def list_rows(
    table: Annotated[
        str | None, typer.Argument(help="A table, or its quarantine table; default: all.", show_default=False)
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count quarantined rows by rule or reason, and by state. Exits with status 1 if any has failed again."""
    from streamwarden.operations.quarantine import counted, quarantine_tables

    workspace = open_workspace(profile, root=root)
    names = [_quarantine(table)] if table is not None else sorted(quarantine_tables(workspace))
    found: list[dict[str, Any]] = []
    for name in names:
        for one in counted(_rows(workspace, name)):
            states = {"open": one.open, "replayed": one.replayed, "failed_again": one.failed_again}
            found.append({"table": name, "rule": one.name, **states})
    if as_json:
        print_json(found)
    else:
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("table", "rule or reason", "open", "replayed", "failed again"):
            shown.add_column(heading, justify="left" if heading in ("table", "rule or reason") else "right")
        for row in found:
            shown.add_row(*[escape(f"{value:,}" if isinstance(value, int) else value) for value in row.values()])
        out.print(shown if found else "nothing is quarantined")
    if any(row["failed_again"] for row in found):
        raise typer.Exit(1)


@quarantine_app.command()
@reported
def show(
    table: _TableArgument,
    rule: _RuleOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many rows.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="Also rows that were replayed.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
) -> None:
    """Print quarantined rows as JSON lines. Correct `row` in them, and give them to `quarantine replay`."""
    workspace = open_workspace(profile, root=root)
    wanted = _wanted(_rows(workspace, _quarantine(table)), rule, everything=everything)
    for one in wanted[:limit]:
        line = {
            "id": one.id,
            "state": one.state,
            "attempts": one.attempts,
            "reasons": one.reasons,
            "source_file": one.source_file,
            "source_row": one.source_row,
            "source_offset": one.source_offset,
            "batch": one.batch,
            "quarantined_at": one.at,
            "row": one.row,
        }
        told = {key: value for key, value in line.items() if value is not None or key == "row"}
        sys.stdout.write(exact_json.dumps(told) + "\n")


@quarantine_app.command()
@reported
def replay(
    table: _TableArgument,
    note: Annotated[str, typer.Option("--note", help="Why; kept in the table quarantine_edits.", show_default=False)],
    rows: Annotated[
        Path | None, typer.Option("--rows", help="Corrected lines of `quarantine show`; -: standard input.")
    ] = None,
    unchanged: Annotated[
        bool, typer.Option("--unchanged", help="Replay rows as they are: after a rule or the job has changed.")
    ] = False,
    rule: _RuleOption = None,
    by: Annotated[str | None, typer.Option("--by", help="Who corrected them; default: the user.")] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send quarantined rows through their job again, each once. A killed call is completed by the same call."""
    from dataclasses import asdict

    from streamwarden.operations.quarantine_replay import replay_rows

    if (rows is None) == (not unchanged) or (rule is not None and not unchanged):
        raise typer.BadParameter("give --rows FILE, or --unchanged, which may go with --rule")
    if not note.strip():
        raise typer.BadParameter("--note is empty")
    workspace, name = open_workspace(profile, root=root), _quarantine(table)
    corrected: dict[str, Any]
    if rows is not None:
        corrected = _corrected(rows)
    else:
        corrected = {one.id: None for one in _wanted(_rows(workspace, name), rule) if one.raw is not None}
    done = replay_rows(workspace, name, corrected, by=by or who(), note=note)
    if as_json:
        print_json([asdict(one) for one in done])
        return
    for one in done:
        again = f", of which {one.again} had failed before" if one.again else ""
        words = f"sent as {one.sent_as}" if one.sent else f"were sent already, as {one.sent_as}"
        out.print(f"{name}: {one.rows} rows{again} {words}; replay {one.replay}", markup=False, soft_wrap=True)


def _quarantine(table: str) -> str:
    return table if table.endswith(QUARANTINE_SUFFIX) else quarantine_of(table)


def _rows(workspace: Workspace, table: str) -> list[Quarantined]:
    from streamwarden.operations.quarantine import job_of_table, quarantined_rows
    from streamwarden.operations.source_rows import content_of

    spec = job_of_table(workspace, table)
    return quarantined_rows(workspace, table, content=content_of(workspace, spec))


def _wanted(rows: list[Quarantined], rule: str | None, *, everything: bool = False) -> list[Quarantined]:
    from streamwarden.operations.quarantine import RowState

    chosen = [one for one in rows if everything or one.state is not RowState.REPLAYED]
    return [one for one in chosen if rule is None or rule in one.causes]


def _corrected(path: Path) -> dict[str, Any]:
    lines = (sys.stdin.read() if str(path) == "-" else _text(path)).splitlines()
    found: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            given = exact_json.loads(line)
            name, row = given["id"], given["row"]
        except (ValueError, KeyError, TypeError) as error:
            what = f"{path}: line {number}: no JSON object with id and row: {error}"
            raise StreamwardenError("QUARANTINE_ROWS_INVALID", what) from None
        if name in found:
            raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{path}: line {number}: row {name} is there twice")
        if row is None:
            raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{path}: line {number}: row is null")
        found[str(name)] = row
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{path}: {error}") from None
