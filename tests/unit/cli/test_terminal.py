"""Commands that a command prints act where it acted."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from streamwarden import console
from streamwarden.cli import terminal
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


def test_a_root_that_cannot_be_written_has_a_code() -> None:
    # Nobody makes folders there, not even root.
    said = CliRunner().invoke(app, ["deploy", "ingest_trips", "--root", "/sys/streamwarden"])
    assert said.exit_code == 2 and "[ACCESS_REFUSED]" in said.output and "'/sys/streamwarden'" in said.output


def test_a_full_disk_has_a_code_and_a_missing_file_stays_an_error_of_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @terminal.reported
    def full() -> None:
        with Path("/dev/full").open("w", encoding="utf-8") as file:
            file.write("x")

    with pytest.raises(typer.Exit) as ended:
        full()
    assert ended.value.exit_code == 2 and "[DISK_FULL]" in capsys.readouterr().err

    @terminal.reported
    def missing() -> None:
        Path("/sys/streamwarden").read_bytes()

    with pytest.raises(FileNotFoundError):
        missing()
