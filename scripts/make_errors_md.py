"""Write ``docs/errors.md`` from the catalogue in ``streamwarden/errors.py``. A test checks that it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from streamwarden.errors import CATALOGUE

TARGET = Path(__file__).resolve().parents[1] / "docs" / "errors.md"

_HEAD = """\
# Errors

<!-- Made by scripts/make_errors_md.py from streamwarden/errors.py: change it there. -->

Every error has a stable code. The command line, the logs, the Airflow UI and this page show the same words.
*Retryable* errors may disappear by themselves: a supervisor restarts the job's driver, within its restart budget.
After any other error, it fails the job at once.
"""


def render() -> str:
    """Return the page."""
    parts = [_HEAD]
    for code, kind in sorted(CATALOGUE.items()):
        summary = kind.summary[0].upper() + kind.summary[1:]
        retryable = "yes" if kind.retryable else "no"
        parts.append(f"## {code}\n\n{summary}.\n\n**What to do:** {kind.remedy}\n\n**Retryable:** {retryable}\n")
    return "\n".join(parts)


def main() -> int:
    """Write the page."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET.name}: {len(CATALOGUE)} errors\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
