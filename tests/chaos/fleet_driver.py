"""The driver of a fleet of which a few jobs are real: the three run on Spark, all others are stand-ins without it."""

from __future__ import annotations

import os
import sys

from tests.chaos.plan import JOBS


def main() -> int:
    """Run the job that the arguments name."""
    if sys.argv[sys.argv.index("--job") + 1] in JOBS:
        from streamwarden.driver.__main__ import main as run
    else:
        from tests.airflow.standin_driver import main as run
    return run()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # As streamwarden.driver does: threads of a broken gateway must not keep it alive.
    os._exit(code)
