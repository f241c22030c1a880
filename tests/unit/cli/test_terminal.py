"""Commands that a command prints act where it acted."""

from __future__ import annotations

import io

import pytest

from streamwarden import console

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
