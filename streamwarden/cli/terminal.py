"""What every command shares: its options, how it prints, and how it reports an error."""

from __future__ import annotations

import getpass
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer

from streamwarden.console import err, out, use_place
from streamwarden.errors import StreamwardenError, of_file_system

__all__ = [
    "JobArgument",
    "JsonOption",
    "ProfileOption",
    "ReasonOption",
    "RootOption",
    "err",
    "out",
    "print_json",
    "reported",
    "until_stopped",
    "who",
]

P = ParamSpec("P")

ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", "-p", help="A name in config/profiles; default: STREAMWARDEN_PROFILE, else local."),
]
RootOption = Annotated[
    Path | None, typer.Option("--root", help="Replaces the profile's root; default: STREAMWARDEN_ROOT.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
JobArgument = Annotated[str, typer.Argument(help="A name in config/jobs.", show_default=False)]
ReasonOption = Annotated[str, typer.Option("--reason", help="Reason, kept in the record.")]


def who() -> str:
    """Return the user, for the record."""
    return f"cli:{getpass.getuser()}"


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def until_stopped() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set, for a command that runs until then. It logs to standard error."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("streamwarden").setLevel(logging.INFO)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """Print a StreamwardenError, or a refusal of the file system, with its remedy, and exit with status 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        use_place(kwargs)
        try:
            command(*args, **kwargs)
        except (StreamwardenError, OSError) as error:
            named = of_file_system(error) if isinstance(error, OSError) else error
            if named is None:
                raise
            err.print(str(named), markup=False, style="red", soft_wrap=True)
            raise typer.Exit(2) from None

    return run
