"""Commands for landed files: list and reread."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from streamwarden.cli.terminal import JsonOption, ProfileOption, RootOption, out, print_json, reported, who
from streamwarden.errors import StreamwardenError
from streamwarden.landing.inspect import FileState, Landed, ask_reread, landed_files
from streamwarden.model.spec import JobSpec
from streamwarden.store.config import job_names
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import CONTROL
from streamwarden.store.workspace import Workspace, open_workspace

__all__ = ["landing_app"]

landing_app = typer.Typer(help="Landed files: list, reread.", no_args_is_help=True)

_JobOption = Annotated[
    str | None, typer.Option("--job", help="The job that reads them; default: the only job that reads files.")
]


@landing_app.command("list")
@reported
def list_files(
    job: _JobOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Also files that were read and are unchanged.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """List landed files by state. Exits with status 1 if any is replaced, quarantined or gone."""
    workspace = open_workspace(profile, root=root)
    spec = _spec(workspace, job)
    found = landed_files(workspace, spec)
    wanted = [one for one in found if everything or one.state is not FileState.READ]
    if as_json:
        print_json([asdict(one) for one in wanted])
    else:
        if wanted:
            out.print(_table(wanted))
        counts = Counter(one.state for one in found)
        out.print(", ".join(f"{counts[state]:,} {state}" for state in FileState if counts[state]) or "no files")
    if any(one.state.needs_a_look for one in found):
        raise typer.Exit(1)


@landing_app.command()
@reported
def reread(
    files: Annotated[list[str], typer.Argument(help="Names as `landing list` shows them.", show_default=False)],
    job: _JobOption = None,
    double: Annotated[bool, typer.Option("--double", help="Also where a table will have the rows twice.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read landed files again, such as a replaced one. Rows whose keys are in the table already are dropped."""
    workspace = open_workspace(profile, root=root)
    spec = _spec(workspace, job)
    request = ask_reread(workspace, spec, files, by=who(), doubling=double)
    if as_json:
        print_json(request.model_dump(mode="json"))
    else:
        out.print(f"{spec.name}: {len(request.files)} files requested; the driver reads them with its next plan")


def _spec(workspace: Workspace, job: str | None) -> JobSpec:
    if job is not None:
        return _described(workspace, job) or workspace.job(job)
    known = {*job_names(workspace.config), *workspace.files.folders(CONTROL)}
    specs = [spec for spec in (_described(workspace, name) for name in sorted(known)) if spec is not None]
    reading = [spec for spec in specs if spec.files_source is not None]
    if len(reading) != 1:
        names = ", ".join(spec.name for spec in reading) or "none"
        raise StreamwardenError("LANDING_NONE", f"name a job with --job; these read files: {names}")
    return reading[0]


def _described(workspace: Workspace, job: str) -> JobSpec | None:
    """Return a job's spec by its YAML; if that was removed, the deployed one; None without either."""
    if job in job_names(workspace.config):
        return workspace.job(job)
    desired = JobDocuments(workspace.storage, job).desired.read()
    return desired.spec if desired is not None else None


def _table(found: list[Landed]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("file", "state", "bytes", "modified (UTC)", "batch", "reading", "why"):
        table.add_column(name, justify="right" if name in ("bytes", "batch", "reading") else "left")
    for one in found:
        table.add_row(
            escape(one.name),
            one.state,
            "" if one.length is None else decimal(one.length),
            f"{one.modified:%Y-%m-%d %H:%M:%S}" if one.modified else "",
            "" if one.batch is None else str(one.batch),
            str(one.reading or ""),
            escape(one.detail),
        )
    return table
