"""Commands that a command prints act where it acted."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from streamwarden import console
from streamwarden.cli.app import app

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _nowhere() -> object:
    yield
    console.use_place({})


@pytest.mark.parametrize(
    ("given", "text", "printed"),
    [
        ({"root": "/a b"}, "`streamwarden restore lamp`.", "`streamwarden restore --root '/a b' lamp`."),
        ({"profile": "s3"}, "streamwarden landing list", "streamwarden landing list --profile s3"),
        ({"job": "lamp"}, "Command: streamwarden deploy lamp", "Command: streamwarden deploy lamp"),
        ({"root": "/a"}, "Streamwarden is well, var/streamwarden too", "Streamwarden is well, var/streamwarden too"),
    ],
)
def test_a_printed_command_has_the_options_that_were_given(given: dict[str, str], text: str, printed: str) -> None:
    console.use_place(given)
    out = console._Console(file=io.StringIO(), width=200)
    out.print(text, markup=False)
    assert isinstance(out.file, io.StringIO) and out.file.getvalue() == printed + "\n"


def commands(of: Any, *names: str) -> Iterator[str]:
    """Yield the commands that act in a place, such as `gate check`."""
    inner = getattr(of, "commands", {})
    for name, command in inner.items():
        yield from commands(command, *names, name)
    if not inner and any("--root" in option.opts for option in of.params):
        yield " ".join(names)


COMMANDS = list(commands(get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_accepted_as_it_is_printed(name: str) -> None:
    console.use_place({"profile": "s3", "root": "/a b"})
    out = console._Console(file=io.StringIO(), width=200)
    out.print(f"`streamwarden {name}`", markup=False)
    assert isinstance(out.file, io.StringIO)
    _, *given = shlex.split(out.file.getvalue().strip().strip("`"))
    assert given[-4:] == ["--profile", "s3", "--root", "/a b"]
    # The rest of the command line is parsed before the help is shown.
    found = CliRunner().invoke(app, [*given, "--help"])
    assert found.exit_code == 0, found.output


def test_each_command_in_the_librarys_words_exists() -> None:
    words = {
        found[1]
        for path in Path(console.__file__).parent.rglob("*.py")
        for found in re.finditer(r"`streamwarden ((?:[a-z-]+\b(?: (?=[a-z`]))?)+)", path.read_text())
    }
    known = {*COMMANDS, *(name.split()[0] for name in COMMANDS)}
    assert len(words) > 20
    assert not [one for one in words if one.strip() not in known]
