"""Where commands print: standard output and standard error.

Without a terminal rich takes 80 columns, and breaks the lines that a script or a log wants whole: there it gets 200.
"""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console

__all__ = ["err", "out"]

_WIDTH = 200


def _width(stream: TextIO) -> int | None:
    return None if stream.isatty() else _WIDTH


out = Console(highlight=False, width=_width(sys.stdout))
err = Console(stderr=True, highlight=False, width=_width(sys.stderr))
