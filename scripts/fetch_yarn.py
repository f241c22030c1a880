"""Fetch the YARN that the tests run against into ``.tools/yarn``: pinned, checked by hash, done once."""

from __future__ import annotations

import sys
from pathlib import Path

from streamwarden.errors import StreamwardenError
from streamwarden.spark.jars import fetch, pinned

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / ".tools" / "yarn"


def main() -> int:
    """Fetch what is missing."""
    jars = pinned(REPOSITORY / "tests" / "yarn" / "jars.toml")
    if not all((FOLDER / jar.file_name).is_file() for jar in jars):
        sys.stdout.write("setup: YARN, the tests' cluster; once\n")
        sys.stdout.flush()
    try:
        fetch(jars, FOLDER)
    except StreamwardenError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
