"""Commands of the gate: what is published, what is held, and a person's decisions."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from streamwarden.cli.terminal import JsonOption, ProfileOption, RootOption, err, out, print_json, reported, who
from streamwarden.errors import StreamwardenError
from streamwarden.formats.published_log import PublishedLog
from streamwarden.model.gate import Decision, Verdict
from streamwarden.model.record import utc_now
from streamwarden.names import part
from streamwarden.quality.gate_state import GateState, gate_state, remove_damaged
from streamwarden.quality.gate_words import (
    decision_note,
    decision_sentence,
    hold_lines,
    moment,
    state_words,
    version_range,
)
from streamwarden.quality.suites import suite_names
from streamwarden.store.layout import gate_key, published_key
from streamwarden.store.workspace import Workspace, open_workspace

__all__ = ["app", "gate_app"]

app = typer.Typer()
gate_app = typer.Typer(
    help="Check new versions of tables and publish what passes; show what is held; decide.", no_args_is_help=True
)

TableArgument = Annotated[str, typer.Argument(help="A table that has a suite.", show_default=False)]
ExpectationsOption = Annotated[
    Path | None, typer.Option("--expectations", help="Folder of suites; default: expectations/ beside config/.")
]


def _suites(workspace: Workspace, expectations: Path | None) -> Path:
    return expectations or workspace.config.parent / "expectations"


@gate_app.command()
@reported
def status(
    table: Annotated[str | None, typer.Argument(help="Default: all tables that have a suite.")] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    expectations: ExpectationsOption = None,
    files: Annotated[
        bool, typer.Option("--files", help="Also look for files that readers lost: lists each table's folder.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is published and what is held, and why. Of a single table, also the files that its readers lost."""
    workspace = open_workspace(profile, root=root)
    names = [table] if table else suite_names(_suites(workspace, expectations))
    found = [gate_state(workspace, name) for name in names]
    # Takes a listing of the table's folder, which grows for years.
    looked = files or table is not None
    lost = {one.table: _lost_files(workspace, one) if looked else None for one in found}
    if as_json:
        print_json([{**_as_json(one), "lost_files": lost[one.table]} for one in found])
        return
    shown = Table(box=None, pad_edge=False)
    for heading in ("TABLE", "NEWEST", "PUBLISHED", "WAITING", "STATE"):
        shown.add_column(heading)
    for one in found:
        shown.add_row(
            one.table, _number(one.latest), _number(one.published.content), str(one.waiting), state_words(one)
        )
    out.print(shown)
    for one in found:
        _explain(one)
        if gone_files := lost[one.table]:
            number, first = len(gone_files), gone_files[0]
            gone = f"{one.table}: version {one.published.number} has lost {number} files, such as {first}"
            err.print(str(StreamwardenError("PUBLISHED_FILES_GONE", gone)), markup=False, style="red", soft_wrap=True)


@gate_app.command()
@reported
def check(
    table: TableArgument,
    anew: Annotated[
        bool, typer.Option("--anew", help="Check all rows, and publish the newest version in place of the old ones.")
    ] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    expectations: ExpectationsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide now about the versions that are not published, also if they are held. Exits with status 1 if held."""
    from streamwarden.quality.gate import Gate
    from streamwarden.quality.lineage import open_lineage

    workspace = open_workspace(profile, root=root)
    with err.status("checking"), open_lineage(workspace) as lineage:
        gate = Gate(workspace, expectations, lineage)
        decision = gate.decide(table, again=True, anew=anew)
        gate.keep_results()
    state = gate_state(workspace, table)
    if as_json:
        print_json({"decision": decision.model_dump(mode="json") if decision else None, **_as_json(state)})
    else:
        out.print(decision_sentence(table, decision) if decision else f"{table}: nothing to decide", markup=False)
        _explain(state)
    if decision is not None and decision.verdict is Verdict.HELD:
        raise typer.Exit(1)


@gate_app.command()
@reported
def accept(
    table: TableArgument,
    note: Annotated[str, typer.Option(help="Why; kept in the history.", show_default=False)],
    profile: ProfileOption = None,
    root: RootOption = None,
    expectations: ExpectationsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish the held versions of a table as they are."""
    from streamwarden.quality.gate import Gate
    from streamwarden.quality.lineage import open_lineage

    workspace = open_workspace(profile, root=root)
    with open_lineage(workspace) as lineage:
        decision = Gate(workspace, expectations, lineage).accept(table, by=who(), note=note)
    if as_json:
        print_json(decision.model_dump(mode="json"))
    else:
        out.print(decision_sentence(table, decision), markup=False)


@gate_app.command()
@reported
def history(
    table: TableArgument, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """Show the newest decisions about a table, newest last."""
    found = gate_state(open_workspace(profile, root=root), table).record.decisions
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    shown = Table(box=None, pad_edge=False)
    for heading in ("AT", "VERSIONS", "ROWS", "DECISION", "BY", "NOTE", "SUITE", "CHECK"):
        shown.add_column(heading)
    for one in found:
        shown.add_row(
            moment(one.at), version_range(one.after, one.version), _number(one.rows), one.verdict, one.by,
            decision_note(one), one.suite, one.run or "",
        )  # fmt: skip
    out.print(shown)


@gate_app.command()
@reported
def trend(
    table: TableArgument,
    days: Annotated[int, typer.Option(min=1, help="Days back from now.")] = 30,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show for each day and expectation how many checks of new rows failed, and the share of failing rows."""
    from streamwarden.formats.quality_table import QualityTable

    workspace = open_workspace(profile, root=root)
    rows = QualityTable(workspace).read(part(table), since=utc_now() - timedelta(days=days))
    summed: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        # A check of the whole table has counted the same rows again.
        if row["after"] is None:
            continue
        sums = summed.setdefault((f"{row['at']:%Y-%m-%d}", row["expectation"]), [0, 0, 0, 0])
        for index, value in enumerate((1, not row["success"], row["checked"] or 0, row["unexpected"] or 0)):
            sums[index] += value
    names = ("checks", "failed", "checked", "unexpected")
    if as_json:
        print_json([{"day": day, "expectation": one, **dict(zip(names, sums, strict=True))}
                    for (day, one), sums in summed.items()])  # fmt: skip
        return
    shown = Table(box=None, pad_edge=False)
    for heading in ("DAY", "EXPECTATION", "CHECKS", "FAILED", "ROWS", "FAILING"):
        shown.add_column(heading)
    for (day, one), (checks, failed, checked, unexpected) in sorted(summed.items()):
        share = f"{100 * unexpected / checked:.3f} %" if checked else "-"
        shown.add_row(day, one, str(checks), str(failed), f"{checked:,}", share)
    out.print(shown)


@gate_app.command("what-if")
@reported
def what_if(
    table: TableArgument,
    suite: Annotated[Path, typer.Option(help="The changed suite; a file named TABLE.json.", show_default=False)],
    last: Annotated[int, typer.Option(min=1, help="The number of newest ranges.")] = 100,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a changed suite would have decided about the ranges that were checked. Publishes nothing."""
    from streamwarden.quality.suites import load_suite
    from streamwarden.quality.what_if import what_if as replay

    workspace = open_workspace(profile, root=root)
    changed = load_suite(suite)
    if changed.name != table:
        raise typer.BadParameter(f"{suite} is the suite of {changed.name}")
    with err.status("checking"):
        found = replay(workspace, changed, suite.parent, last=last)
    if as_json:
        print_json([{**vars(one), "would_pass": not one.failed} for one in found])
        return
    held = [one for one in found if one.failed]
    before = sum(not one.passed for one in found)
    out.print(f"{table}: of {len(found)} ranges, {len(held)} would be held; {before} were", markup=False)
    for one in held:
        out.print(f"  versions {version_range(one.after, one.version)}: {', '.join(one.failed)}", markup=False)


@gate_app.command()
@reported
def repair(table: TableArgument, profile: ProfileOption = None, root: RootOption = None) -> None:
    """Write damaged entries of the log of published versions again, from the table's own log.

    A damaged document of the gate is removed: the gate decides again about what is not published.
    """
    workspace = open_workspace(profile, root=root)
    done = PublishedLog(workspace, table).repair()
    words = f"wrote {', '.join(map(str, done))} again" if done else "every entry is sound"
    if remove_damaged(workspace, table):
        words += f"; removed the damaged {gate_key(table)}"
    out.print(f"{table}: {words}", markup=False)


@gate_app.command()
@reported
def watch(profile: ProfileOption = None, root: RootOption = None, expectations: ExpectationsOption = None) -> None:
    """Decide about each new version of all tables that have a suite, until a signal. The `gate` DAG runs this."""
    from streamwarden.quality.gate import Gate
    from streamwarden.quality.gate_watch import watch as watch_tables
    from streamwarden.quality.lineage import open_lineage

    workspace = open_workspace(profile, root=root)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def told(table: str, found: Decision | Exception) -> None:
        if isinstance(found, Exception):
            words = str(found) if isinstance(found, StreamwardenError) else f"{type(found).__name__}: {found}"
            err.print(f"{table}: {words}; the gate tries again", markup=False, style="red", soft_wrap=True)
            return
        held = found.verdict is Verdict.HELD
        err.print(decision_sentence(table, found), markup=False, style="red" if held else None, soft_wrap=True)
        if held:
            for line in hold_lines(gate_state(workspace, table)):
                err.print(line, markup=False, soft_wrap=True)

    err.print("the gate watches the tables that have a suite", markup=False)
    with open_lineage(workspace) as lineage:
        watch_tables(workspace, Gate(workspace, expectations, lineage), told, stop)


@app.command()
@reported
def published(
    table: TableArgument, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """Show how to read a table's published versions from Spark, DuckDB, delta-rs and pandas."""
    workspace = open_workspace(profile, root=root)
    state = gate_state(workspace, table)
    path = workspace.uri(published_key(table))
    if as_json:
        print_json({"table": table, "path": path, "version": state.published.number})
        return
    number = state.published.number
    out.print(f"{table}: {f'version {number}' if number >= 0 else 'nothing'} is published, at {path}", markup=False)
    for title, code in (
        ("Spark", f'spark.read.format("delta").load("{path}")  # or spark.readStream'),
        ("DuckDB", f'rows = DeltaTable("{path}").scan(); duckdb.sql("SELECT * FROM rows")'),
        ("delta-rs", f'pyarrow.table(DeltaTable("{path}").scan())'),
        ("pandas", f'pyarrow.table(DeltaTable("{path}").scan()).to_pandas()'),
    ):
        out.print(f"  {title:9}{code}", markup=False, soft_wrap=True)


def _as_json(state: GateState) -> dict[str, Any]:
    return {
        "table": state.table,
        "latest": state.latest,
        "published": state.published.content,
        "waiting": state.waiting,
        "hold": state.hold.model_dump(mode="json") if state.hold else None,
        "trouble": state.record.trouble.model_dump(mode="json") if state.record.trouble else None,
        "error": str(state.error) if state.error else None,
        "last": state.record.decisions[-1].model_dump(mode="json") if state.record.decisions else None,
    }


def _lost_files(workspace: Workspace, state: GateState) -> list[str]:
    # A damaged log is named as such, and must not hide the other tables.
    if state.error is not None:
        return []
    with suppress(StreamwardenError):
        return PublishedLog(workspace, state.table).lost_files()
    return []


def _explain(state: GateState) -> None:
    for line in hold_lines(state):
        out.print(line, markup=False, soft_wrap=True)


def _number(value: int | None) -> str:
    return "-" if value is None or value < 0 else f"{value:,}"
