"""Commands about late rows: find them, fold them in."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from streamwarden.cli.terminal import JsonOption, ProfileOption, RootOption, out, print_json, reported, who
from streamwarden.operations.corrections import Found, corrections_of
from streamwarden.store.workspace import open_workspace

__all__ = ["corrections_app"]

corrections_app = typer.Typer(help="Late rows that the watermark dropped: find them, and fold them in.")

NameArgument = Annotated[
    str | None, typer.Argument(help="A job, or a table of one; default: all with `reconcile`.", show_default=False)
]


@corrections_app.command()
@reported
def find(
    name: NameArgument = None, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """Compare the rows that can't change any more with the query of `reconcile`. Changes nothing."""
    found = [one.find() for one in corrections_of(open_workspace(profile, root=root), name)]
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        _show(one)


@corrections_app.command()
@reported
def apply(
    name: NameArgument = None, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """Fold late rows in, and mark what was corrected. A second time, it changes nothing. The job may run."""
    done = [one.apply(by=who()) for one in corrections_of(open_workspace(profile, root=root), name)]
    if as_json:
        print_json([{**asdict(one.found), "commit": one.commit} for one in done])
        return
    for one in done:
        _show(one.found)
        words = "nothing to correct" if one.commit is None else f"corrected by version {one.commit}"
        out.print(f"{one.found.table}: {words}", markup=False)


def _show(found: Found) -> None:
    if found.closed_before is None or found.version is None:
        out.print(f"{found.table}: no row is closed yet", markup=False)
        return
    amounts = "".join(f", {name} {value:+}" for name, value in (found.amounts or {}).items())
    out.print(
        f"{found.table}: {found.late:,} late rows in {found.rows:,} rows ({found.missing:,} of them new){amounts};"
        f" compared {found.compared:,} rows that ended by {found.closed_before:%Y-%m-%d %H:%M:%SZ}",
        markup=False,
        soft_wrap=True,
    )
    for example in found.examples:
        out.print(f"  {_words(example)}", markup=False, soft_wrap=True)
    if found.other:
        out.print(
            f"{found.table}: {found.other:,} rows differ, and not because of late rows: they are left alone",
            markup=False,
            soft_wrap=True,
        )
        for example in found.other_examples:
            out.print(f"  {_words(example)}", markup=False, soft_wrap=True)


def _words(example: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in example.items())
