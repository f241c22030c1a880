"""Fetch a server that the tests run against, as jars, into ``.tools/NAME``: pinned, checked by hash, done once.

Usage: ``fetch_test_server.py kafka`` or ``yarn``, which are folders of ``tests`` with a ``server.toml``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from streamwarden.errors import StreamwardenError
from streamwarden.spark.jars import fetch, pinned

REPOSITORY = Path(__file__).resolve().parents[1]


def main(name: str) -> int:
    """Fetch what is missing."""
    folder, jars = REPOSITORY / ".tools" / name, pinned(REPOSITORY / "tests" / name / "server.toml")
    if not all((folder / jar.file_name).is_file() for jar in jars):
        sys.stdout.write(f"setup: fetching {name} for the tests, once\n")
        sys.stdout.flush()
    try:
        fetch(jars, folder)
    except StreamwardenError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
