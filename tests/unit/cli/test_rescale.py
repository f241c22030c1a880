"""Options of `rescale` of which one would be passed over in silence."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from streamwarden.cli.app import app

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resume", "-n", "8"], "not together with --resume"),
        (["--cancel", "--cores", "2"], "not together with --cancel"),
        (["--cancel", "--resume"], "not together with"),
        (["--dry-run", "--resume", "-n", "8"], "not together with"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["rescale", "lamp", *options])
    assert done.exit_code == 2 and words in done.output
