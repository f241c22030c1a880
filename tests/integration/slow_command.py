"""The command line with a file store that takes its time: so that a kill meets a copy in its middle."""

from __future__ import annotations

import sys
import time
from typing import Any

from streamwarden.cli.app import app
from streamwarden.storage import FileStore, LocalFiles, S3Files


def _slowed(store: type[FileStore], seconds: float) -> None:
    quick: Any = store.copy

    def copy(self: Any, source: str, target: str) -> None:
        time.sleep(seconds)
        quick(self, source, target)

    store.copy = copy  # type: ignore[method-assign]


if __name__ == "__main__":
    for kind in (LocalFiles, S3Files):
        _slowed(kind, 0.05)
    app(sys.argv[1:])
