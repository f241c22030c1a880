"""The command that rescales a job, or cancels a rescale."""

from __future__ import annotations

from typing import Annotated, get_args

import typer
from rich.table import Table

from streamwarden.cli.operation_table import operation_table
from streamwarden.cli.savepoints import progress
from streamwarden.cli.terminal import (
    JobArgument,
    JsonOption,
    ProfileOption,
    ReasonOption,
    RootOption,
    out,
    print_json,
    reported,
    who,
)
from streamwarden.operations.rescale import OnTimeout, cancel, mode_of
from streamwarden.operations.rescale import rescale as run_rescale
from streamwarden.operations.rescale_plan import RescalePlan, plan_rescale
from streamwarden.runtime.operation_lock import active_operation, interrupted_operation
from streamwarden.store.documents import dump
from streamwarden.store.workspace import open_workspace

__all__ = ["app"]

app = typer.Typer()

_TIMEOUT_S = 300.0
_DEFAULT = f"{_TIMEOUT_S:.0f}; with --resume as before"
_HEALTH = f"{_TIMEOUT_S:.0f}, or three trigger intervals if longer; with --resume as before"


@app.command()
@reported
def rescale(
    job: JobArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-n", help="New number of state partitions.")
    ] = None,
    cores: Annotated[int | None, typer.Option("--cores", "-c", help="New resources.cores.")] = None,
    executors: Annotated[
        int | None, typer.Option("--executors", "-e", help="New resources.executors, on a cluster.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", "-m", help="New resources.memory, the JVM heap, such as 2g.")
    ] = None,
    on_timeout: Annotated[
        str, typer.Option(help="If the job runs but has not caught up in time: 'roll back' or 'hold'.")
    ] = "roll back",
    mode: Annotated[
        str,
        typer.Option(
            "--mode", "--way", help="'online': the job runs while its state is copied. 'offline': it is stopped first."
        ),
    ] = "online",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show whether it can be done.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a rescale whose process died.")] = False,
    cancelled: Annotated[bool, typer.Option("--cancel", help="Cancel the running rescale; it is rolled back.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    reason: ReasonOption = "",
    stop_timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the driver to stop.", show_default=_DEFAULT)
    ] = None,
    health_timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for health before rolling back.", show_default=_HEALTH)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change a job's partitions, cores, executors or memory, keeping its state; roll back if it is not healthy."""
    if on_timeout not in get_args(OnTimeout):
        raise typer.BadParameter(f"{on_timeout!r} is not 'roll back' or 'hold'", param_hint="--on-timeout")
    _refuse_together(
        {"--resume": resume, "--cancel": cancelled, "--dry-run": dry_run},
        {"--partitions": partitions, "--cores": cores, "--executors": executors, "--memory": memory},
    )
    workspace = open_workspace(profile, root=root)
    if cancelled:
        asked = cancel(workspace, job, by=who())
        out.print(f"{job}: rescale {asked.id} is asked to roll back", markup=False)
        if active_operation(workspace, job) is None:
            out.print("Its process died: it rolls back once it is resumed with --resume", markup=False)
        return
    if dry_run:
        planned = plan_rescale(workspace, job, partitions=partitions, cores=cores, executors=executors, memory=memory)
        print_json(_described(planned)) if as_json else out.print(_plan_table(planned))
        return
    by, params = who(), {"partitions": partitions, "cores": cores, "executors": executors, "memory": memory}
    params |= {"on_timeout": on_timeout, "mode": mode_of(mode), "reason": reason}
    given: dict[str, float | None] = {"stop_timeout": stop_timeout, "health_timeout": health_timeout}
    timeouts: dict[str, float | None] = {"stop_timeout": _TIMEOUT_S, "health_timeout": None}
    if resume:
        # The interrupted rescale is found again by its requester and its parameters.
        left = interrupted_operation(workspace, job, "rescale")
        by, params = left.by, left.params
        timeouts |= {"stop_timeout": left.plan.stop_timeout, "health_timeout": left.plan.health_timeout}
    timeouts |= {name: value for name, value in given.items() if value is not None}
    with progress(hidden=as_json) as report:
        done = run_rescale(
            workspace,
            job,
            **params,  # type: ignore[arg-type]
            by=by,
            **timeouts,  # type: ignore[arg-type]
            report=report,
        )
    if as_json:
        print_json(dump(done))
    else:
        out.print(operation_table([done]))


def _refuse_together(modes: dict[str, bool], sizes: dict[str, object]) -> None:
    """Refuse options of which one would be ignored silently."""
    chosen = [name for name, is_given in modes.items() if is_given]
    given = [name for name, value in sizes.items() if value is not None]
    if len(chosen) > 1:
        raise typer.BadParameter(f"not together with {chosen[1]}", param_hint=chosen[0])
    if given and chosen and chosen != ["--dry-run"]:
        raise typer.BadParameter(
            f"not together with {chosen[0]}: the rescale keeps its parameters", param_hint=given[0]
        )


def _described(planned: RescalePlan) -> dict[str, object]:
    return {
        "job": planned.job,
        "was": dump(planned.was),
        "to": dump(planned.to),
        "repartitions": planned.repartitions,
        "operators": [{"id": one.id, "name": one.name, "bytes": one.bytes} for one in planned.operators],
        "bytes": planned.bytes,
    }


def _plan_table(planned: RescalePlan) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("changes", planned.words)
    for one in planned.operators:
        table.add_row(f"operator {one.id}", f"{one.name}, {one.bytes} bytes")
    return table
