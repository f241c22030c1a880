"""Where commands print: standard output and standard error.

Without a terminal rich takes 80 columns, and breaks the lines that a script or a log wants whole: there it gets 200.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console

__all__ = ["err", "out", "use_place"]

_GROUPS = "corrections|features|gate|landing|operations|quarantine|savepoints"
"""Commands that have commands of their own, which take the options."""

_COMMAND = re.compile(rf"(?<![/\w])streamwarden (?:(?:{_GROUPS}) )?[a-z-]+\b")

_WIDTH = 200


def _width(stream: TextIO) -> int | None:
    return None if stream.isatty() else _WIDTH


class _Console(Console):
    place = ""
    """Options of this command that say where the jobs are, for each command that it prints."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print; a command of ours gets the options that the reader would have to add."""
        here = _Console.place
        placed = [_COMMAND.sub(lambda found: found[0] + here, one) if isinstance(one, str) else one for one in objects]
        super().print(*(placed if here else objects), **settings)


def use_place(given: Mapping[str, Any]) -> None:
    """Remember a command's own ``--root`` and ``--profile``: without them, a command that it prints acts elsewhere."""
    named = {name: given.get(name) for name in ("profile", "root")}
    _Console.place = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in named.items() if value)


out = _Console(highlight=False, width=_width(sys.stdout))
err = _Console(stderr=True, highlight=False, width=_width(sys.stderr))
