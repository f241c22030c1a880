"""Commands for operations: list them, and abandon a stuck one."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from streamwarden.cli.operation_table import operation_table
from streamwarden.cli.terminal import JobArgument, JsonOption, ProfileOption, RootOption, out, print_json, reported, who
from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.runtime.operation_lock import abandon as end_by_hand
from streamwarden.runtime.operation_lock import active_operation, operations_of
from streamwarden.store.documents import JobDocuments, dump
from streamwarden.store.workspace import Workspace, open_workspace

__all__ = ["operations_app"]


class _ListByDefault(TyperGroup):
    """``operations JOB`` is short for ``operations list JOB``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["list", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


operations_app = typer.Typer(
    cls=_ListByDefault, no_args_is_help=True, help="Restores, rollouts and rescales of a job, step by step."
)


@operations_app.command("list")
@reported
def list_operations(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job's restores, rollouts and rescales with their steps, newest last."""
    workspace = open_workspace(profile, root=root)
    found = list(operations_of(JobDocuments(workspace.storage, job)))[::-1]
    if not found:
        # A removed job's operations are still there; an unknown name is an error.
        workspace.job(job)
    if as_json:
        print_json([dump(one) for one in found])
    elif not found:
        out.print(f"{job}: no operation yet", markup=False)
    else:
        out.print(operation_table(found))


@operations_app.command()
@reported
def abandon(
    job: JobArgument,
    profile: ProfileOption = None,
    root: RootOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="End it; without this option only show what is in force.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End an operation whose process died, without a rollback. Exits with status 1 without --yes."""
    workspace = open_workspace(profile, root=root)
    ended = end_by_hand(workspace, job, by=who()) if yes else _unfinished(workspace, job)
    known = _in_force(workspace, job)
    if as_json:
        print_json({"operation": dump(ended), "in_force": known})
    else:
        out.print(f"{job}: {ended.kind} {ended.id} by {ended.by}", markup=False)
        for name, value in known.items():
            out.print(f"  {name}: {value}", markup=False, soft_wrap=True)
        if not yes:
            out.print("Nothing was changed. --yes ends the operation, and this stays in force", markup=False)
    if not yes:
        raise typer.Exit(1)


def _unfinished(workspace: Workspace, job: str) -> Operation:
    found = JobDocuments(workspace.storage, job).operation.read()
    if found is None or found.state != "running":
        raise StreamwardenError("OPERATION_NONE", f"{job}: no operation is unfinished")
    if active_operation(workspace, job) is not None:
        raise StreamwardenError("OPERATION_RUNNING", f"{job}: {found.kind} {found.id}, by {found.by}")
    return found


def _in_force(workspace: Workspace, job: str) -> dict[str, Any]:
    documents = JobDocuments(workspace.storage, job)
    desired, reference = documents.desired.read(), documents.checkpoint.read()
    return {
        "wanted": desired.state if desired else None,
        "spec": desired.digest if desired else None,
        "spec of": desired.updated_by if desired else None,
        "state.partitions": desired.spec.state.partitions if desired else None,
        "checkpoint": reference.path if reference else None,
        "generation": reference.generation if reference else None,
        "tables to put back": [start.table for start in reference.outputs] if reference else [],
    }
