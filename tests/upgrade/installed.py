"""An installation of Streamwarden, used by its commands, and what both versions' jobs are compared with."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import TableNotFoundError
from nyc_taxi.demo.batch import (
    compare_card_sessions,
    compare_zone_windows,
    expected_card_sessions,
    expected_zone_windows,
)
from nyc_taxi.demo.compare import Difference

from tests.integration.conftest import Place

__all__ = ["COMPARE", "Installed", "append", "wait_until_equal"]

COMPARE: dict[str, Callable[[pa.Table, pa.Table], Difference]] = {
    "zone_windows": lambda trips, rows: compare_zone_windows(expected_zone_windows(trips), rows),
    "card_sessions": lambda trips, rows: compare_card_sessions(expected_card_sessions(trips), rows),
}
"""By job: its table's rows against a batch computation over trips."""


@dataclass(frozen=True)
class Installed:
    """An installation of Streamwarden: its program, and the variables that it needs."""

    program: Path
    variables: dict[str, str]

    def run(self, place: Place, *words: str, status: int = 0) -> str:
        """Run a command as a user does, and return its output."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        where = {"STREAMWARDEN_CONFIG": str(place.config), "STREAMWARDEN_PROFILE": "test"}
        done = subprocess.run(
            [self.program, *words],
            cwd=place.config.parent,
            env={**own, **where, **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr if status else done.stdout

    def json(self, place: Place, *words: str) -> Any:
        return json.loads(self.run(place, *words, "--json"))


def append(place: Place, part: pa.Table) -> None:
    address, options = place.workspace.delta_rs("trips")
    write_deltalake(address, part, mode="append", storage_options=options)


def wait_until_equal(place: Place, job: str, trips: pa.Table, table: str | None = None) -> None:
    """Wait until the table of a job equals a batch computation over the trips that have arrived."""
    deadline = time.monotonic() + 120
    difference: Difference | None = None
    while True:
        # Before the first batch there is no table.
        with suppress(TableNotFoundError):
            difference = COMPARE[job](trips, place.table(table or job))
            if difference.equal:
                return
        assert time.monotonic() < deadline, str(difference)
        time.sleep(0.5)
