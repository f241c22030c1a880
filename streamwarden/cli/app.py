"""The command line: all that the DAGs do, and further commands for operators.

Another package adds commands of its own by an entry point of the group ``streamwarden.commands``, a ``typer.Typer``.

Exit codes: 0 done; 1 the command reports a problem (a failed job, failed expectations, a damaged savepoint); 2 the
command failed.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from streamwarden import __version__
from streamwarden.cli import (
    advise,
    corrections,
    diff,
    doctor,
    features,
    gate,
    hosts,
    jobs,
    landing,
    observability,
    operations,
    quality,
    quarantine,
    repair,
    rescale,
    savepoints,
    state,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="streamwarden",
    help="Operations for stateful Spark Structured Streaming: deploy, supervise, savepoint, restore, rescale, check.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for part in (jobs, diff, observability, savepoints, rescale, advise, quality, gate, doctor, repair, state, hosts):
    app.add_typer(part.app)
app.add_typer(savepoints.catalogue_app, name="savepoints")
app.add_typer(features.features_app, name="features")
app.add_typer(gate.gate_app, name="gate")
app.add_typer(corrections.corrections_app, name="corrections")
app.add_typer(landing.landing_app, name="landing")
app.add_typer(quarantine.quarantine_app, name="quarantine")
app.add_typer(operations.operations_app, name="operations")
for found in entry_points(group="streamwarden.commands"):
    app.add_typer(found.load())


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"streamwarden {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Read the options that go before a command."""


def main() -> None:
    """Run the command line; the entry point of the ``streamwarden`` script."""
    app()
