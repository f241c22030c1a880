"""Commands for data quality: check, and Great Expectations' Data Docs of a check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamwarden.cli.terminal import (
    JsonOption,
    ProfileOption,
    RootOption,
    err,
    out,
    print_json,
    reported,
)
from streamwarden.errors import StreamwardenError
from streamwarden.storage import LocalStorage
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import Workspace, open_workspace

if TYPE_CHECKING:
    from streamwarden.quality.results import QualityRun

__all__ = ["app"]

app = typer.Typer()

_CHECK_FIRST = "Run `streamwarden check`."


@app.command()
@reported
def check(
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="Table to check; default: all that have a suite.")
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    expectations: Annotated[
        Path | None, typer.Option(help="Folder of suites; default: expectations/ beside config/.")
    ] = None,
    data_docs: Annotated[
        bool, typer.Option("--data-docs", help="Also write Great Expectations' Data Docs of the check.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check whole output tables against their expectations. Exits with status 1 if any fails."""
    from streamwarden.formats.quality_table import QualityTable
    from streamwarden.quality.documents import REPORT
    from streamwarden.quality.runner import check as run_check

    workspace = open_workspace(profile, root=root)
    with err.status("checking"):
        run = run_check(
            tables_dir=workspace.tables,
            expectations_dir=expectations or workspace.config.parent / "expectations",
            results_dir=workspace.root / QUALITY,
            tables=table or None,
            # A check reads tables on its own machine, wherever the jobs run.
            master="local[2]",
            settings=workspace.profile.spark if workspace.profile.master.startswith("local") else None,
            s3=workspace.s3,
        )
    try:
        QualityTable(workspace).append(run.rows())
    except StreamwardenError as error:
        # The check itself is done, and its report is written.
        err.print(f"not in the table of results: {error}", markup=False, style="yellow", soft_wrap=True)
    report = workspace.root / QUALITY / run.run_id / REPORT
    found = {**run.brief(), "report": str(report)}
    if data_docs:
        found["data_docs"] = str(_write_docs(workspace, run))
    if as_json:
        print_json(found)
    else:
        for one in found["tables"]:
            out.print(f"{one['table']}: {'ok' if one['success'] else 'FAILED'}", markup=False)
            for failure in one["failures"]:
                words = f"{failure['expectation']} ({failure['column'] or 'table'}): {failure['detail']}"
                out.print(f"  {failure['severity']}: {words}", markup=False)
        out.print(f"report: {report}", markup=False, soft_wrap=True)
        if data_docs:
            out.print(f"data docs: {found['data_docs']}", markup=False, soft_wrap=True)
    if not run.success:
        raise typer.Exit(1)


@app.command("data-docs")
@reported
def data_docs(
    run: Annotated[
        str | None, typer.Argument(help="The id of a check, or of a decision of the gate; default: the newest.")
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write Great Expectations' Data Docs of a check: pages that load nothing from elsewhere, and its JSON objects."""
    from streamwarden.quality.documents import latest_runs, read_run

    workspace = open_workspace(profile, root=root)
    storage = LocalStorage(workspace.root)
    if run is not None:
        found = read_run(storage, QUALITY, run)
    else:
        newest = latest_runs(storage, QUALITY, 1)
        if not newest:
            raise StreamwardenError(
                "DOCUMENT_INVALID", f"{workspace.root / QUALITY}: no check yet", remedy=_CHECK_FIRST
            )
        found = newest[0]
    with err.status("rendering"):
        page = _write_docs(workspace, found)
    if as_json:
        print_json({"run": found.run_id, "data_docs": str(page)})
    else:
        out.print(str(page), markup=False, soft_wrap=True)


def _write_docs(workspace: Workspace, run: QualityRun) -> Path:
    from streamwarden.quality.data_docs.site import write_data_docs

    return workspace.root / write_data_docs(LocalStorage(workspace.root), run)
