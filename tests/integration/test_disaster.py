"""Parts of a place lost and brought back from yesterday's copy, or lost for good: what doctor says leads back.

"Equal" means: the outputs are what a batch computation over the source gives.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.model.savepoint import Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation, Phase
from tests.integration.conftest import BY, REPOSITORY, Place

pytestmark = [pytest.mark.integration, pytest.mark.long]

JOB, SOURCE = "counted", "arrived"
YESTERDAY = [(1, 10), (2, 11), (1, 12)]
TODAY = [(2, 13), (3, 14)]
TOMORROW = [(1, 15), (4, 16)]
"""Key and id of each row of the source."""


PATIENCE = {"deploy": ("--wait", "600"), "restore": ("--stop-timeout", "600", "--health-timeout", "600")}
"""Options of commands, for a busy machine."""


class Day:
    """One day of the job: a source table, the job, copies of the place."""

    def __init__(self, place: Place, copies: Path) -> None:
        self.place = place
        self.root = place.workspace.root
        self.copies = copies
        self.savepoints: dict[str, str] = {}

    def copy(self, name: str) -> None:
        """Copy the place."""
        shutil.copytree(self.root, self.copies / name)

    def remove(self, folder: str = "") -> None:
        """Remove a folder of the place, or all of it."""
        shutil.rmtree(self.root / folder, ignore_errors=True)

    def put(self, name: str, folder: str = "") -> None:
        """Put a removed folder of a copy in place, or all of it."""
        shutil.copytree(self.copies / name / folder, self.root / folder)

    def arrive(self, *rows: tuple[int, int]) -> None:
        """Write each row as a version of the source."""
        for key, number in rows:
            address, options = self.place.workspace.delta_rs(SOURCE)
            row = pa.table({"key": [key], "id": [number]})
            write_deltalake(address, row, mode="append", storage_options=options)

    def source(self) -> list[dict[str, Any]]:
        return self.place.rows(SOURCE)

    def is_equal(self) -> bool:
        rows = self.source()
        expected = Counter(row["key"] for row in rows)
        if not all(DeltaTable.is_deltatable(*self.place.workspace.delta_rs(name)) for name in ("counts", "rows")):
            return False
        counts = {row["key"]: row["rows"] for row in self.place.rows("counts")}
        passed = sorted((row["key"], row["id"]) for row in self.place.rows("rows"))
        return counts == dict(expected) and passed == sorted((row["key"], row["id"]) for row in rows)

    def await_equal(self) -> None:
        def equal(seen: Observation) -> bool:
            assert seen.phase.alive, seen.error
            return self.is_equal()

        self.place.wait(JOB, equal, "its outputs to equal a batch over the source", timeout=900)

    def end(self, name: str) -> None:
        """Take a verified savepoint, stop the job, and copy the place."""
        made = take(self.place.workspace, JOB, origin=Origin.MANUAL, by=BY)
        verify(self.place.workspace, [catalog.find(self.place.workspace, JOB, made.id)], by=BY, state=False)
        self.savepoints[name] = made.id
        assert driver_control.stop(self.place.workspace, JOB, by=BY, timeout=900).phase is Phase.STOPPED
        self.copy(name)

    def bring_back(self, name: str, *folders: str) -> None:
        """Replace folders of the place by their copies of a day."""
        for folder in folders:
            self.remove(folder)
            self.put(name, folder)

    def anew(self) -> None:
        """Bring back all of today."""
        self.place.kill_all()
        self.bring_back("today", "")

    def run(self, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == code, done.output
        return done.stdout

    def doctor(self, code: int = 1) -> tuple[set[str], list[str]]:
        """Return the codes that doctor finds, and the commands that it names."""
        found = json.loads(self.run("doctor", "--json", code=code))
        sys.stdout.write(f"{json.dumps(found, indent=1)}\n")
        return {one["code"] for one in found["findings"] if one["verdict"] == "broken"}, found["commands"]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("disaster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        patch.setenv("STREAMWARDEN_CONFIG", str(folder / "config"))
        patch.setenv("STREAMWARDEN_PROFILE", "test")
        place = Place(folder)
        # With it, a driver may take longer to its first heartbeat: this machine may be busy.
        place.profile(lease="300s")
        made = Day(place, folder / "copies")
        try:
            live(made)
            yield made
        finally:
            place.kill_all()
            for log in made.root.glob("logs/*/*/driver.log"):
                sys.stdout.write(f"--- {log}\n{log.read_text()[-3000:]}\n")


def live(day: Day) -> None:
    """Run the job for two days, each with its copy."""
    day.place.job(
        JOB,
        module="tests.integration.jobs.counts_and_rows",
        source={"kind": "delta", "table": SOURCE, "max_files_per_batch": 1},
        sinks=[
            {"table": "counts", "mode": "upsert", "keys": ["key"]},
            {"table": "rows", "output": "rows", "mode": "append"},
        ],
        resources={"cores": 1, "memory": "512m"},
    )
    for name, rows in (("yesterday", YESTERDAY), ("today", TODAY)):
        day.arrive(*rows)
        deploy_job(day.place.workspace, JOB, by=BY)
        day.await_equal()
        day.end(name)


def _whole_root(day: Day) -> None:
    day.bring_back("yesterday", "")


def _whole_root_under_a_newer_source(day: Day) -> None:
    _whole_root(day)
    day.bring_back("today", f"tables/{SOURCE}")


def older_checkpoint(day: Day) -> None:
    day.bring_back("yesterday", "control", "checkpoints", "savepoints")


def older_outputs(day: Day) -> None:
    day.bring_back("yesterday", "tables/counts", "tables/rows")


def _older_source(day: Day) -> None:
    day.bring_back("yesterday", f"tables/{SOURCE}")


def _no_control(day: Day) -> None:
    day.remove(f"control/{JOB}")


LOSSES: list[tuple[Callable[[Day], None], set[str], str]] = [
    (_whole_root, set(), "deploy"),
    (_whole_root_under_a_newer_source, set(), "deploy"),
    (older_checkpoint, {"CHECKPOINT_BEHIND"}, "restore"),
    (older_outputs, {"OUTPUT_BEHIND", "RESTORE_OUTPUT_GONE"}, "restore"),
    (_older_source, {"SOURCE_BEHIND", "RESTORE_OUTPUT_GONE"}, "restore"),
    (_no_control, {"DOCUMENT_INVALID"}, "repair"),
]


@pytest.mark.parametrize(("loss", "codes", "verb"), LOSSES, ids=[loss.__name__.strip("_") for loss, *_ in LOSSES])
def test_what_doctor_says_leads_back_to_equal(
    day: Day, loss: Callable[[Day], None], codes: set[str], verb: str
) -> None:
    lead_back(day, loss, codes, verb)


def lead_back(day: Day, loss: Callable[[Day], None], codes: set[str], verb: str) -> None:
    """Lose something, find it with doctor, run its commands, and await that the outputs equal a batch."""
    day.anew()
    loss(day)
    found, commands = day.doctor(code=1 if codes else 0)
    assert found == codes
    if not codes:
        # All of one moment: the job goes on where it was.
        commands = [f"streamwarden deploy {JOB}"]
    assert verb in {command.split()[1] for command in commands}
    if verb == "restore":
        assert f"--savepoint {day.savepoints['yesterday']}" in " ".join(commands)
    for command in commands:
        day.run(*shlex.split(command)[1:], *PATIENCE.get(command.split()[1], ()))
    day.arrive(*TOMORROW)
    day.await_equal()
    assert day.doctor(code=0) == (set(), [])


@pytest.mark.parametrize(
    ("loss", "code"),
    [(older_checkpoint, "CHECKPOINT_BEHIND"), (older_outputs, "OUTPUT_BEHIND"), (_older_source, "SOURCE_BEHIND")],
)
def test_without_doctor_the_driver_ends_before_its_first_batch(
    day: Day, loss: Callable[[Day], None], code: str
) -> None:
    day.anew()
    loss(day)
    day.arrive(*(TOMORROW if loss is not _older_source else ()))
    deploy_job(day.place.workspace, JOB, by=BY)
    seen = day.place.wait(JOB, lambda now: not now.phase.alive, "the driver to end", timeout=600)
    assert seen.error is not None and (seen.error.code, seen.error.retryable) == (code, False), seen.error
